"""The places of a text at which a draft is right: those at which rounds accept its first token."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import places
from speclab.drafts.feature import FeatureDrafter
from speclab.models.cached import CachedModel
from speclab.records.files import read
from tests.decoding import plain_text, speculative_rounds
from tests.heads import tiny_head, trained
from tests.tiny_models import VOCAB


@pytest.mark.parametrize("narrow", [False, True], ids=["all ids", "some ids"])
def test_rounds_accept_where_the_draft_is_right(narrow):
    """Each round of one drafted token accepts it exactly where its place is counted as right."""
    model, head, texts = trained()
    prompt, ids = texts[:1, :9], torch.arange(0, VOCAB, 2) if narrow else None
    drafter = FeatureDrafter(tiny_head(draft_vocab=len(ids)) if narrow else head, ids)
    target = CachedModel(model)
    target.hidden_layers = (0, 1)
    text = [*prompt[0].tolist(), *plain_text(target, prompt, 26)]
    right = places.is_right(drafter, model, torch.tensor([text]))
    place, n_accepted = prompt.shape[1] + 1, 0  # tokens before the first drafted one: the prompt, and the prefill's
    for round_ in list(speculative_rounds(target, drafter, prompt, 1, 26))[1:]:
        if round_.n_drafted and place - 2 < len(right):
            assert round_.n_accepted == int(right[place - 2]), place
            n_accepted += round_.n_accepted
        place += len(round_.tokens)
    assert narrow or n_accepted > 3


@given(st.integers(3, 9000))
def test_every_place_is_counted_once(n):
    """From the first edge on, each in the part that it lies in."""
    right = torch.arange(n - 2) % 3 == 0
    parts = places.by_place(0, right)
    first, end = places.EDGES[0], min(n, places.EDGES[-1])
    assert sum(part.n for part in parts) == max(0, end - first)
    assert sum(part.n_right for part in parts) == int(right[first - 2 : max(first, end) - 2].sum())
    assert [part.first for part in parts] == [edge for edge in places.EDGES[:-1] if edge < n]


def test_the_command_writes_a_record(tmp_path, capsys):
    lines = [{"kind": "some", "prompt": f"def f{i}(x):\n" + "    x += 1\n" * 60} for i in range(2)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--texts", str(tmp_path / "texts.jsonl"), "--kinds", "some", "--out-dir", str(tmp_path), "--name", "x"]
    assert places.main([*words, "--dtype", "float32", "--device", "cpu"]) == 0
    record = tmp_path / "results" / "x-places.json"
    run = read(record, places.PlacesRun)
    assert run.raw
    assert all(0 <= part.n_right <= part.n for part in run.raw)
    assert "| right |" in record.with_suffix(".md").read_text("utf-8")
    assert json.loads(record.read_text("utf-8"))["settings"]["draft"] == "feature"
    capsys.readouterr()
    assert places.main([*words, "--draft", "ngram"]) == 2
    assert "reads no states of the target" in capsys.readouterr().err
    assert places.main([*words[:2], "--kinds", "none", *words[4:]]) == 2
