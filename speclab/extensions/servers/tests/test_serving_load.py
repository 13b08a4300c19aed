"""The command under load, end to end: goodput, k by load, knees, and texts that are wrong only there."""

import json
import statistics

import pytest

from speclab.extensions.servers import server_comparison
from speclab.extensions.servers.tests.conftest import K

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


def test_goodput_has_limits_that_are_given_or_said(run, tmp_path):
    _, _, _, made = run("--concurrency", "2", "--goodput", "60000,60000")
    (row,) = made.load
    assert row.plain.n_good == row.speculative.n_good == row.n_requests
    assert (made.limits.first, made.limits.token, made.limits.given) == (60, 60, True)
    _, _, err, made = run("--concurrency", "2", "--goodput", "0.000001,60000")
    assert made.load[0].plain.n_good == made.load[0].speculative.n_good == 0
    assert "first chunk within 0 ms" in (tmp_path / "out" / "results" / "local-vllm.md").read_text()
    _, _, err, made = run("--concurrency", "2")
    plain = [one for one in made.requests if one.method == "baseline"]
    first = statistics.median(one.first_seconds for one in plain)
    assert made.limits.first == pytest.approx(4 * first, rel=1e-5)
    assert "a request under load is good with its first chunk within" in " ".join(err.split())


def scripted_load(monkeypatch, speedups):
    """Levels whose speedups are these: (k by load?, k, requests at a time) -> of the two passes."""
    real = server_comparison.load.level

    def level(plain, other, orders, concurrency):
        found = real(plain, other, orders, concurrency)
        pair = speedups["by load" in other.name, int(other.name[-1]) if other.name[-1].isdigit() else 0, concurrency]
        plain_passes = [one._replace(seconds=1.0) for one in found.plain]
        return found._replace(
            plain=plain_passes, other=[one._replace(seconds=1 / s) for one, s in zip(found.other, pair, strict=True)]
        )

    monkeypatch.setattr(server_comparison.load, "level", level)


def test_k_follows_the_load_where_that_differs(run, script, monkeypatch, tmp_path):
    fixed = {(1, 1): 1.2, (1, 2): 1.1, (1, 4): 0.8, (2, 1): 1.4, (2, 2): 1.0, (2, 4): 0.5}
    speedups = {(False, k, n): (s, s) for (k, n), s in fixed.items()} | {(True, 0, n): (1.3, 1.5) for n in (1, 2, 4)}
    scripted_load(monkeypatch, speedups)
    _, _, err, made = run("-k", "1,2", "--concurrency", "1,2,4", "--schedule", draft="ngram")
    by_load = [row for row in made.load if row.schedule]
    assert [row.concurrency for row in by_load] == [1, 2, 4]
    assert {json.dumps(row.schedule) for row in by_load} == {"[[1, 1, 2], [2, 2, 1], [3, 4, 0]]"}
    assert [(one.ranges, one.left_out) for one in made.schedules] == [([[1, 1, 2], [2, 2, 1], [3, 4, 0]], "")]
    assert "starting vLLM: ngram, k by load" in err
    started_with = json.loads((tmp_path / "script.json.words").read_text().splitlines()[-1])
    assert started_with["num_speculative_tokens_per_batch_size"] == [[1, 1, 2], [2, 2, 1], [3, 4, 0]]
    assert started_with["num_speculative_tokens"] == 2
    page = (tmp_path / "out" / "results" / "local-vllm.md").read_text()
    assert "ngram, k by load: at 1 k = 2, 2 k = 1, 3 to 4 k = 0" in page
    assert "1.40x, k = 2" in page, "the best fixed k of a level beside it"


@pytest.mark.parametrize(
    ("speedup", "why"), [(0.9, "no k pays at any level"), (1.1, "the same k is best at every level")]
)
def test_no_server_runs_where_k_would_not_change(run, monkeypatch, speedup, why):
    scripted_load(monkeypatch, {(False, K, n): (speedup, speedup) for n in (1, 2)})
    code, out, err, made = run("--concurrency", "1,2", "--schedule")
    assert code == 0
    assert [one.left_out for one in made.schedules] == [why]
    assert "k by load" in err
    assert f"not run: {why}" in " ".join(out.split())


def test_a_schedule_that_the_engine_refuses_is_one_line(run, script, honest, monkeypatch):
    scripted_load(monkeypatch, {(False, K, 1): (1.2, 1.2), (False, K, 2): (0.8, 0.8)})
    script(**honest, refuse_schedule="NotImplementedError: no schedule with draft_model")
    code, out, _, made = run("--concurrency", "1,2", "--schedule")
    assert code == 3
    assert [one.reason for one in made.refused] == ["NotImplementedError: no schedule with draft_model"]
    assert "not run: model, k by load" in out
    assert [row.concurrency for row in made.load] == [1, 2]
    assert made.failure is None


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ((1.2, 1.3), (0.8, 0.9), "at a time: 1.5"),
        ((1.2, 1.3), (1.1, 1.2), "at a time: more than 2"),
        ((0.8, 0.9), (0.7, 0.9), "at a time: none"),
        ((1.2, 1.3), (0.8, 1.1), "at a time: unclear, the passes do not agree at 2"),
        ((0.9, 1.3), (0.8, 0.9), "at a time: unclear, the passes do not agree at 1"),
        ((1.2, 1.3), (0.9, 1.2), "at a time: unclear, the passes do not agree at 2"),
    ],
)
def test_a_knee_is_shown_where_the_passes_agree(run, monkeypatch, first, second, says):
    scripted_load(monkeypatch, {(False, K, 1): first, (False, K, 2): second})
    _, out, _, _ = run("--concurrency", "1,2")
    assert says in " ".join(out.split())


def test_another_text_under_load_is_found(run, script, honest, monkeypatch):
    """All texts are right one at a time, and one is wrong among many."""
    real = server_comparison.load.under_load

    def under_load(server, orders, concurrency):
        found = real(server, orders, concurrency)
        if server.name != "baseline":
            tokens = found.answers[0].tokens
            found.answers[0] = found.answers[0]._replace(tokens=[*tokens[:-1], (tokens[-1] + 1) % 8])
        return found

    monkeypatch.setattr(server_comparison.load, "under_load", under_load)
    code, out, _, made = run("--concurrency", "1")
    assert code == 1
    assert [row.same_text for row in made.served] == [3, 3]
    assert (made.load[0].plain.n_same, made.load[0].speculative.n_same) == (6, 4)
    assert "under load, greedy: 10 of 12 texts are the lab's own" in out
    assert "model k=2 under load, prompt 0, token 11" in out
