"""Accept rules with a law of their own in a run: the distance from the target's law is measured, and no speed stands
without it.

The rules are the stand-ins of tests/rules.py.
"""

import itertools
import math
from unittest import mock

import pytest
import torch

import compare
import optimized_speculative
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.lab import output_checks
from speclab.lab.bench import Bench
from speclab.lab.instruments import LoopFunctions
from speclab.lab.output_checks import distances, judged_places
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from speclab.present.screen import screen, small_print
from speclab.records.files import ComparisonRun
from speclab.records.rows import Arm, RoundCounts
from tests.heads import tiny_head
from tests.lab.conftest import call
from tests.rules import LOSSLESS, LOSSY, make_known
from tests.tiny_models import tiny


@pytest.fixture(autouse=True)
def known(monkeypatch):
    make_known(monkeypatch)


def test_distances_of_a_known_case():
    p, q = torch.tensor([[1 / 3, 2 / 3]]).double(), torch.tensor([[2 / 3, 1 / 3]]).double()
    assert distances(LOSSY, p, q).tolist() == pytest.approx([1 / 3])
    assert distances(LOSSLESS, p, q).tolist() == [0]


@pytest.mark.parametrize("words", [("--temperature", "0"), ("--temperature", "0,0.8"), ()])
def test_greedy_decoding_is_refused(words, capsys):
    """Where nothing is lossy, nothing may be called that."""
    assert compare.main(["--target", "nowhere", "--rule", "credulous", *words]) == 2
    assert "give --temperature above 0" in capsys.readouterr().err
    if len(words) == 0 or words[1] == "0":
        assert optimized_speculative.main(["--target", "nowhere", "--rule", "credulous", *words]) == 2
        assert "give --temperature above 0" in capsys.readouterr().err


# --- the places that a rule has judged --------------------------------------------------------------------------------


def test_tested_places():
    """Prefill's token, then: 2 of 3 kept, all 2 kept and a bonus token, no draft, 0 of 3 kept behind the end. A round
    commits one token more than it accepts, so near the end it asks for at most one less than are left."""
    rounds = [RoundCounts(3, 2), RoundCounts(2, 2), RoundCounts(0, 0), RoundCounts(3, 0)]
    places = [(1, 0, 3), (1, 1, 3), (1, 2, 3), (4, 0, 3), (4, 1, 3), (8, 0, 1)]
    assert judged_places(rounds, 9, 3, 10) == places
    assert judged_places(rounds, 8, 3, 48) == places[:-1]
    assert [n for *_, n in judged_places([RoundCounts(1, 0)] * 4, 9, 3, 5)] == [3, 2, 1, 0]


def bench_of(drafter) -> Bench:
    target = CachedModel(tiny("llama"))
    target.hidden_layers = (0, 1)
    setup = Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    functions = LoopFunctions(optimized_speculative.speculative_decode).judged_by(LOSSY)
    return Bench(setup, {"draft": drafter}, 24, seed=0, functions=functions)


@pytest.mark.parametrize("kind", ["model", "feature", "ngram"])
def test_laws_of_proposals_are_those_that_were_drawn_from(kind):
    """Recomputed without caches from the text and its rounds, at every tested place of a real decoding."""
    made = {
        "model": lambda: ModelDrafter(CachedModel(tiny("llama", seed=1))),
        "feature": lambda: FeatureDrafter(tiny_head()),
        "ngram": NgramDrafter,
    }
    drafter, arm = made[kind](), Arm("draft", "draft", 3)
    bench, sampling = bench_of(drafter), Sampling(0.9, top_k=2 if kind == "ngram" else 0)
    ids = [3, 5, 3, 5, 7, 3, 5] * 3
    settings, kept, propose = optimized_speculative.DecodeSettings(48, sampling, seed=3), [], drafter.propose
    with mock.patch.object(drafter, "propose", lambda k, u: kept.append((k, propose(k, u))) or kept[-1][1]):
        rounds = list(bench.functions.rounds(bench.setup.target, drafter, torch.tensor([ids]), 3, settings))
    tokens = [token for round_ in rounds for token in round_.tokens]
    pairs = [RoundCounts(round_.n_drafted, round_.n_accepted) for round_ in rounds if not round_.prefill]
    asked = judged_places(pairs, len(tokens), 3, 48)
    assert {depth for _, depth, _ in asked} >= {0, 1}
    law = drafter.law(bench.setup.target, ids, tokens, sampling, arm.draft_length)
    places = itertools.accumulate(len(round_.tokens) for round_ in rounds[:-1])
    used = dict(zip(places, kept, strict=True))
    assert all(n == min(3, used[start][0]) for start, _, n in asked)
    found = law.drawn_from(asked)
    for (start, depth, _), row in zip(asked, found, strict=True):
        _, draft = used[start]
        if draft.probs is not None:
            assert torch.allclose(row, draft.probs[0, depth].to(row), atol=1e-6)
        else:
            assert row.argmax().item() == draft.tokens[0, depth].item()
            assert row.sum() == 1


# --- a whole run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(pair_folder, tmp_path):
    """compare.py on the tiny pair with a rule.  -> exit code, stdout, the record"""

    def ran(rule: str, *words: str) -> tuple[int, str, ComparisonRun]:
        usual = ("-k", "0,3", "--max-new-tokens", "24", "--repeats", "2", "--temperature", "0.8", "--rule", rule)
        found = call(pair_folder, tmp_path, *usual, *words)
        return found.code, found.out, found.record

    return ran


def test_every_row_of_a_lossy_rule_says_so_and_how_far_it_is_off(run):
    rule = "credulous"
    code, out, record = run(rule)
    assert code == 0
    assert record.settings["rule"] == rule
    assert f"rule    {rule}: LOSSY" in out
    drafted = [row for row in record.rows if row.draft and row.draft_length]
    assert {row.prompt_kind for row in drafted} == {"all", "code", "prose", "copy"}
    assert all(row.lossy_rule == rule and row.forecast is None for row in drafted)
    off = [row.total_variation for row in drafted if row.method == "model"]
    assert all(0.001 < distance < 1 for distance in off)
    assert off[0] == pytest.approx(sum(off[1:]) / 3)  # of all prompts: all have as many tokens
    assert all(row.lossy_rule is row.total_variation is None for row in record.rows if not row.draft_length)
    for entry in record.correctness:
        assert entry["passed"]
        assert ("lossy_rule" in entry) == entry["arm"].endswith("k=3")
    shown = screen(record)
    (line,) = [line for line in shown.splitlines() if line.startswith("model     3")]
    assert f"x LOSSY {off[0]:.3f}" in line
    assert "no difference found" not in shown
    assert f"LOSSY, accept rule {rule}" in small_print(record)


def test_a_distance_that_was_not_measured_is_a_dash(run, monkeypatch):
    """Ctrl-C in the checks: the rows are lossy all the same."""

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(output_checks, "distances", stop)
    code, out, record = run("credulous", "-k", "3")
    assert code == 130
    assert "NOT CHECKED: model k=3" in out
    assert {row.total_variation for row in record.rows} == {None}
    assert "x LOSSY - " in out


def test_the_z_statistics_are_a_fact_and_impossible_tokens_a_failure(run, monkeypatch):
    """Beyond the bound the run exits 0; a token that the target cannot emit is wrong with any rule."""
    right = output_checks.losslessness.ZSums.result
    result = lambda surprise: lambda sums: right(sums)._replace(residual=40.0, surprise=surprise)  # noqa: E731
    monkeypatch.setattr(output_checks.losslessness.ZSums, "result", result(9.0))
    code, out, _ = run("credulous", "-k", "3", "--draft", "ngram", "--repeats", "1")
    assert code == 0
    assert "z_S = +40.00" in out
    monkeypatch.setattr(output_checks.losslessness.ZSums, "result", result(math.inf))
    code, out, _ = run("credulous", "-k", "3", "--draft", "ngram", "--repeats", "1")
    assert code == 1
    assert "NOT the target's distribution" in " ".join(out.split())


def test_one_script_says_so_at_its_end(pair_folder, capsys):
    words = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft"), "--prompt", "def f(x):"]
    words += ["--max-new-tokens", "12", "--threads", "1", "--engine", "eager", "--temperature", "0.8", "--rule"]
    assert optimized_speculative.main([*words, "credulous"]) == 0
    assert "LOSSY: the texts leave" in capsys.readouterr().out
    assert optimized_speculative.main([*words, "renamed"]) == 0
    assert "LOSSY" not in capsys.readouterr().out
