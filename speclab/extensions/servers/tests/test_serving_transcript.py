"""The recorder of chapter 17's transcript: what it keeps, what it refuses, and that its file can be read."""

import json
import re

import pytest

from exercises import transcript
from solutions import ex17_serving as right
from speclab.extensions.servers import client
from speclab.extensions.servers import transcript as serving_transcript
from speclab.extensions.servers.tests.conftest import N_NEW, TEXTS, K
from speclab.models import prompts
from speclab.system.errors import Problem

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


@pytest.fixture
def record(pair_folder, tmp_path, monkeypatch, script, honest):
    """Run the recorder on the tiny pair; returns (exit code, where it writes)."""
    where = tmp_path / "transcript.json"
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0.001)
    for name in ("TARGET", "DRAFT"):
        monkeypatch.setattr(serving_transcript, name, str(pair_folder / "target"))
    monkeypatch.setattr(serving_transcript, "DRAFT_LENGTH", K)
    monkeypatch.setattr(serving_transcript, "N_TOKENS", N_NEW)
    monkeypatch.setattr(serving_transcript, "TRANSCRIPT", where)
    monkeypatch.setattr(transcript, "PATH", where)

    def call(**changes):
        script(**honest | changes)
        return serving_transcript.main([]), where

    return call


def test_what_is_recorded_can_be_read_and_reconciled(record):
    code, _ = record()
    assert code == 0
    found = transcript.load()
    assert (found.k, [one.kind for one in found.prompts]) == (K, [kind for kind, _ in TEXTS])
    counts = transcript.prompt_by_prompt(right, found)
    for asked, counted, chunks in zip(found.prompts, counts, found.speculative.streams, strict=True):
        assert len(asked.text) == N_NEW == sum(n for _, n in chunks)
        assert right.reconcile(counted, asked.own_rounds, K) == "equal"
        assert [seconds for seconds, _ in chunks] == sorted(seconds for seconds, _ in chunks)
    assert [len(side.pages) for side in (found.plain, found.speculative)] == [2, len(TEXTS) + 1]
    assert all('model_name="target"' in page for page in found.speculative.pages)


def test_nothing_of_this_machine_is_recorded(record, tmp_path):
    _, where = record()
    text = where.read_text("utf-8")
    assert str(tmp_path) not in text
    assert not re.search(r"speclab-[0-9a-f]{16}|127\.0\.0\.1|process_", text)


def test_another_text_is_refused(record, honest, capsys):
    """A server that writes something else; no file is written."""
    texts = {key: [*text[:-1], text[-1] + 1] for key, text in honest["texts"].items()}
    code, where = record(texts=texts)
    assert (code, where.exists()) == (1, False)
    assert "another text than the lab" in capsys.readouterr().err


def test_a_counter_that_goes_on_between_requests_is_refused():
    before, after, later = ["n 1.0"], ["n 2.0"], ["n 3.0"]
    assert serving_transcript._in_a_row([[before, after], [after, later]]) == [before, after, later]
    with pytest.raises(Problem, match="somebody else"):
        serving_transcript._in_a_row([[before, after], [later, later]])


def test_a_page_is_cut_to_what_the_chapter_needs():
    page = "\n".join(
        [
            "# TYPE process_cpu_seconds_total counter",
            "process_cpu_seconds_total 12.5",
            "# TYPE vllm:generation_tokens_total counter",
            'vllm:generation_tokens_total{engine="0",model_name="secret"} 3.0',
            'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.05",model_name="secret"} 1.0',
            'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.075",model_name="secret"} 2.0',
            'vllm:cache_config_info{engine="0",block_size="16"} 1.0',
        ]
    )
    assert serving_transcript.cut(page, "secret") == [
        "# TYPE vllm:generation_tokens_total counter",
        'vllm:generation_tokens_total{engine="0",model_name="target"} 3.0',
        'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.05",model_name="target"} 1.0',
    ]


def test_the_committed_file_is_what_the_recorder_writes():
    """Its settings, and one line for each short list of numbers."""
    text = serving_transcript.TRANSCRIPT.read_text("utf-8")
    found = json.loads(text)
    settings = found["draft_length"], found["new_tokens"], found["about"]
    asked = serving_transcript.DRAFT_LENGTH, serving_transcript.N_TOKENS, serving_transcript.ABOUT_TIMES
    assert settings == asked
    assert serving_transcript.shown(found) == text
    assert len(text) < 100_000
