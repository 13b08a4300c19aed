"""A plan and its check on a tiny pair: what is looked at, what comes out, and whether it is true."""

import json
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace

import pytest

from speclab import load
from speclab.drafts.heads.files import write_head
from speclab.extensions.plan import intervals, plan_views, plans
from speclab.extensions.plan.__main__ import main
from speclab.extensions.plan.plan_record import DraftFacts, LengthSpeedup, PlanEntry, PlanRun, Verified, VerifiedDraft
from speclab.lab import comparison, output_checks
from speclab.lab.bench import Bench
from speclab.lab.known_texts import acceptance_probs
from speclab.models import prompts
from speclab.present.tables import show
from speclab.records.arms import BASELINE, BASELINE_REPEAT
from speclab.records.files import as_dict, read
from speclab.system import cores
from speclab.system.errors import EnvironmentProblem
from speclab.system.paths import ROOT
from speclab.theory import noise
from speclab.theory.costs import Costs
from tests.branching import add_branching
from tests.heads import tiny_block_head
from tests.lab.test_harness import Machine

# The tiny target repeats itself after some of these, so that prompt lookup finds something in each half.
TEXTS = [("code", "((("), ("code", "return x"), ("prose", "x + 1, x + 1,"), ("prose", "hello world")]


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch):
    """The command on the tiny pair and four short prompts of two kinds; returns (exit code, stdout, stderr).

    The picture takes longer than the plan and is drawn only where it is asked for.
    """
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    draw = plan_views.picture

    def call(*words, picture=False):
        monkeypatch.setattr(plan_views, "picture", draw if picture else lambda *args: tmp_path)
        models = ["--target", str(pair_folder / "target"), "--draft", f"{pair_folder / 'draft'},ngram"]
        size = ["--max-new-tokens", "16", "--repeats", "1"]
        machine = ["--threads", "1", "--engine", "eager", "--out-dir", str(tmp_path)]
        code = main([*models, *size, *machine, *words])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def measurements(monkeypatch):
    """What the plan measured: (arms, prompts, instruments, result) of each measurement."""
    seen, honest = [], comparison.measure

    def watched(bench, arms, temperatures, texts, *rest, **named):
        found = honest(bench, arms, temperatures, texts, *rest, **named)
        seen.append((list(arms), [p.text for p in texts], rest[1], found))
        return found

    monkeypatch.setattr(comparison, "measure", watched)
    return seen


def loaded(tmp_path) -> PlanRun:
    return read(tmp_path / "results" / "local-plan.json", PlanRun)


def of_draft(entries: list[PlanEntry], fact: DraftFacts) -> list[PlanEntry]:
    key = attrgetter("method", "draft", "temperature")
    return [e for e in entries if key(e) == key(fact)]


# --- the plan ---------------------------------------------------------------------------------------------------------


def test_plan_has_every_length_and_names_the_best(run, tmp_path, measurements):
    code, out, _ = run("--temperature", "0,0.2", picture=True)
    made = loaded(tmp_path)
    assert code == 0
    assert made.verified is None
    assert not made.interrupted
    facts = made.facts.drafts
    assert [(f.method, f.temperature) for f in facts] == [
        ("model", 0.0), ("ngram", 0.0), ("model", 0.2), ("ngram", 0.2),
    ]  # fmt: skip
    for fact in facts:
        mine = of_draft(made.plan, fact)
        assert [e.draft_length for e in mine] == list(range(17))
        best = max(mine, key=lambda e: e.speedup)
        assert fact.best_draft_length == best.draft_length
        assert (fact.speedup, fact.acceptance_rate) == (best.speedup, best.acceptance_rate)
        assert all(e.band_low <= e.band_high for e in mine)
        assert all((e.time_low is None) == (e is best) for e in mine)
        raw = acceptance_probs.calibrated(measurements[0][3])[fact.draft, fact.temperature]
        assert Costs.from_json(fact.costs).draft_at == pytest.approx(raw.draft_at, rel=1e-6)
        samples = measurements[0][3].of(BASELINE, fact.temperature)
        context = sum(s.n_prompt + len(s.texts[0]) // 2 for s in samples) // len(samples)
        for e in mine:  # the costs of a length are those that were calibrated
            assert e.verify_cost == pytest.approx(raw.verify_cost(e.draft_length + 1, context), rel=1e-6), "smoothed"
        assert all(fact.oracle >= e.speedup * (1 - 1e-6) for e in mine), "something passed the bound"
        plain = mine[0]
        assert (plain.tokens_per_round, plain.drafted_per_round, plain.acceptance_rate) == (1, 0, None)
        for e in mine:  # records round to seven digits
            assert 1 <= e.tokens_per_round <= e.drafted_per_round + 1 + 1e-6 <= e.draft_length + 1 + 2e-6
        assert fact.n_tokens == len(TEXTS) * 15
    assert sorted(p.name for p in tmp_path.rglob("local*")) == ["local-plan.json", "local-plan.md", "local-plan.png"]
    for fact in facts:
        assert plan_views.verdict(made, fact) in " ".join(out.split())


def test_plan_makes_no_speculative_run(run, measurements, monkeypatch):
    """The samples it is made from are baselines; what drafts and verifies are the instruments, for their cost alone."""
    arms, honest = [], Bench.decoding

    def watched(bench, arm, *args, **kwargs):
        arms.append((arm, kwargs.get("lengths") is not None))
        return honest(bench, arm, *args, **kwargs)

    monkeypatch.setattr(Bench, "decoding", watched)
    assert run("-k", "0,2,4")[0] == 0
    ((asked, texts, tools, found),) = measurements
    assert asked == [BASELINE]
    assert texts == [text for _, text in TEXTS]
    assert [max(lengths) for lengths in tools.values()] == [4, 4]
    assert {s.arm for s in found.lines} == {BASELINE, BASELINE_REPEAT}
    assert all(instrument == arm.speculative for arm, instrument in arms)
    assert any(instrument for _, instrument in arms)


def test_a_plan_on_two_prompts_has_no_interval(run, tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS[:2])
    code, out, _ = run("-k", "0,2")
    made = loaded(tmp_path)
    assert code == 0
    assert all(e.band_low is e.time_low is None for e in made.plan)
    assert "no interval: " in " ".join(out.split()) or "leave speculation off" in out


def test_a_quick_plan_is_a_short_one(run, tmp_path):
    assert run("--quick")[0] == 0
    made = loaded(tmp_path)
    assert {e.draft_length for e in made.plan} == set(range(9))
    assert made.noise, "the baseline ran twice"


def test_each_prompt_is_left_out_with_its_calibration(run, measurements):
    """The rounds and steps of a prompt carry its index; without it, costs are fitted to the others' alone."""
    assert run("-k", "0,2", "--repeats", "2")[0] == 0
    ((_, _, _, found),) = measurements
    assert {r.prompt for r in found.rounds} == {s.prompt for s in found.steps} == set(range(len(TEXTS)))
    tables = plans.without_each_prompt(found)
    assert set(tables) == set(range(len(TEXTS)))
    slow = [r._replace(seconds={**r.seconds, "host": 1.0}) if r.prompt == 2 else r for r in found.rounds]
    found.rounds = slow
    hosts = {index: table["ngram", 0.0].host for index, table in plans.without_each_prompt(found).items()}
    assert min(hosts, key=hosts.get) == 2
    assert hosts[2] < 0.1


def test_the_intervals_are_of_what_the_prompts_add(run, tmp_path, monkeypatch):
    """Where every prompt pays the same prices, what they add sums up to the expectation: of the baseline over a length
    that is its speedup, of a length over the best one the quotient of their speedups."""
    PricedPair(monkeypatch, None, by_width=lambda width: 1 + 0.05 * width, slope=0.002, draft=0.1, catch=0.01)
    monkeypatch.setattr(intervals, "interval", lambda tops, bottoms: (tops.sum() / bottoms.sum(), float(len(tops))))
    assert run("-k", "0,4,2,1")[0] == 0
    made = loaded(tmp_path)
    for fact in made.facts.drafts:
        mine = of_draft(made.plan, fact)
        assert [e.draft_length for e in mine] == [0, 1, 2, 4]
        for e in mine:
            assert (e.band_low, e.band_high) == (pytest.approx(e.speedup, rel=1e-5), len(TEXTS))
            if e.draft_length != fact.best_draft_length:
                assert (e.time_low, e.time_high) == (pytest.approx(fact.speedup / e.speedup, rel=1e-5), len(TEXTS))


def test_a_committed_plan_of_an_older_version_is_shown_as_what_it_was():
    """It took the shortest length near the best, which its page says."""
    old = read(ROOT / "results" / "cpu-2-cores-plan.json", PlanRun)
    assert all(fact.choice for fact in old.facts.drafts)
    page = plan_views.page(old)
    assert "take k = 3, expected 1.66x (1.51 to 1.82);" in page
    assert plan_views.OLD_METHOD in page
    assert plan_views.METHOD not in page


def test_plan_to_stdout_is_json_alone(run, tmp_path):
    code, out, err = run("-k", "0,2", "--json", "-")
    assert code == 0
    assert json.loads(out) == as_dict(loaded(tmp_path))
    assert "decode step" in " ".join(err.split())


def test_plan_of_the_dial(run, tmp_path, pair_folder):
    """An acceptance that is known: the plan's alpha is the dial's."""
    assert run("-k", "2,4", "--draft", f"dial:0.75:{pair_folder / 'draft'}")[0] == 0
    assert [e.acceptance_rate for e in loaded(tmp_path).plan] == pytest.approx([0.75, 0.75])


def test_interrupted_plan_rests_on_what_is_complete(run, tmp_path, monkeypatch):
    honest = Bench.decoding

    def decoding(bench, arm, sampling, prompt, *args, **kwargs):
        if prompt.text == TEXTS[2][1]:
            raise KeyboardInterrupt
        return honest(bench, arm, sampling, prompt, *args, **kwargs)

    monkeypatch.setattr(Bench, "decoding", decoding)
    code, out, _ = run("-k", "0,2")
    made = loaded(tmp_path)
    assert code == 0
    assert made.interrupted
    assert all(f.n_tokens == 15 for f in made.facts.drafts)
    assert "Stopped before the end" in out


# --- the plan put to the test -----------------------------------------------------------------------------------------


def test_verify_plan_measures_on_the_other_half(run, tmp_path, measurements):
    code, out, _ = run("--verify", "-k", "0,1,2,4")
    made = loaded(tmp_path)
    assert code == 0
    (_, planned_on, _, _), (arms, reported_on, tools, found) = measurements
    assert planned_on == ["(((", "x + 1, x + 1,"]
    assert reported_on == ["return x", "hello world"]
    assert tools == {}
    assert arms[0] == BASELINE
    verified, facts = made.verified, made.facts.drafts
    assert verified.n_prompts == 2
    for item, fact in zip(verified.drafts, facts, strict=True):
        mine = [r for r in verified.rows if r.method == item.method]
        assert [r.draft_length for r in mine] == sorted({1, 2, 4, fact.best_draft_length})
        by_length = {r.draft_length: r.speedup for r in mine}
        assert item.planned == LengthSpeedup(draft_length=fact.best_draft_length, speedup=fact.speedup)
        assert item.measured == by_length[fact.best_draft_length]
        best = max(by_length, key=by_length.get)
        assert item.best_measured == LengthSpeedup(draft_length=best, speedup=by_length[best])
        assert item.share_of_best == pytest.approx(item.measured / by_length[best], rel=1e-6)
        assert item.share_of_best <= 1
        assert all(r.n_prompts == 2 and r.prompt_kind == "all" for r in mine)
    assert {s.arm.label for s in found.lines} >= {"baseline", "model k=2", "ngram k=4"}
    assert "2 other prompts" in " ".join(out.split())
    assert out.index("token for token: identical") < out.index("break-even")


@pytest.mark.parametrize("texts", [TEXTS[:1], [TEXTS[0], TEXTS[2]]], ids=["one prompt", "one of each kind"])
def test_verify_plan_needs_prompts_to_hold_out(run, monkeypatch, texts):
    monkeypatch.setattr(prompts, "standard", lambda: texts)
    monkeypatch.setattr(comparison, "measure", lambda *a, **k: pytest.fail("measured first"))
    code, _, err = run("--verify")
    assert code == 2
    assert "at least two prompts of a kind" in err


class PricedPair(Machine):
    """The price list of tests/lab/test_harness.py for models that compare.py loads itself."""

    def is_target(self, model) -> bool:
        return model.config._name_or_path.endswith("target")


def test_where_prices_hold_the_plan_comes_true(run, tmp_path, monkeypatch):
    """On a clock that is a price list, with the same prompts in both halves: what is planned is what is measured."""
    twice = [(kind, text) for kind, text in (TEXTS[0], TEXTS[2]) for _ in range(2)]
    monkeypatch.setattr(prompts, "standard", lambda: twice)
    PricedPair(monkeypatch, None, by_width=lambda width: 1 + 0.05 * width, slope=0.002, draft=0.1, catch=0.01)
    assert run("--verify", "-k", "1,2,3,4")[0] == 0
    made = loaded(tmp_path)
    planned = {(e.method, e.draft_length): e.speedup for e in made.plan}
    measured = {(r.method, r.draft_length): r.speedup for r in made.verified.rows}
    assert len(measured) == 8
    assert measured == pytest.approx(planned, rel=1e-6)  # records round to seven digits
    assert [item.share_of_best for item in made.verified.drafts] == pytest.approx([1.0, 1.0])
    for row in made.verified.rows:
        assert row.forecast == pytest.approx(row.speedup, rel=1e-6)


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (EnvironmentProblem("not finite"), 3)])
def test_a_check_that_is_stopped_loses_no_measured_length(run, tmp_path, monkeypatch, stop, code):
    def fail(*args):
        raise stop

    monkeypatch.setattr(output_checks, "judge_greedy", fail)
    found, out, _ = run("--verify", "-k", "0,2")
    made = loaded(tmp_path)
    assert found == code
    assert made.interrupted
    assert made.verified.rows
    assert made.verified.correctness == []
    assert "NOT CHECKED: model k=" in " ".join(out.split())


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 0), (EnvironmentProblem("not finite"), 3)])
def test_a_plan_that_is_stopped_keeps_the_drafts_that_are_done(run, tmp_path, monkeypatch, stop, code):
    honest = acceptance_probs.accept_probs

    def accept_probs(bench, draft, *rest):
        if draft == "ngram":
            raise stop
        return honest(bench, draft, *rest)

    monkeypatch.setattr(acceptance_probs, "accept_probs", accept_probs)
    assert run("-k", "0,2")[0] == code
    made = loaded(tmp_path)
    assert made.interrupted
    assert [fact.method for fact in made.facts.drafts] == ["model"]
    assert [entry.draft_length for entry in made.plan] == [0, 2]


# --- in words ---------------------------------------------------------------------------------------------------------

PAYS = DraftFacts(
    method="model",
    draft="models/lab-pair/draft",
    temperature=0.0,
    best_draft_length=5,
    speedup=1.8449,
    acceptance_rate=0.812,
    oracle=2.051,
    break_even=0.416,
    draft_cost=0.0612,
    verify_cost=1.204,
    step_seconds=0.00912,
    n_tokens=1000,
    costs={},
)


def planned(k: int, **others) -> PlanEntry:
    values = {"method": "model", "draft": "models/lab-pair/draft", "temperature": 0.0, "draft_length": k}
    values |= {"speedup": 1.5, "tokens_per_round": 3.0, "drafted_per_round": 3.0, "acceptance_rate": 0.8}
    return PlanEntry(**values | {"draft_cost": 0.1, "verify_cost": 1.2, "overhead": 0.02} | others)


def of_lengths(band_low: float | None = 1.701) -> list[PlanEntry]:
    """What is expected beside `PAYS`: 3, 6 and 7 may be as fast as 5; the intervals of 4 and 9 leave out 1."""
    times = {3: (0.97, 1.04), 4: (1.01, 1.2), 5: (None, None), 6: (1.0, 1.05), 7: (0.98, 1.0), 9: (0.9, 0.97)}
    band = {"band_low": band_low, "band_high": 2.004}
    return [planned(k, **band, time_low=low, time_high=high) for k, (low, high) in times.items()]


def verdict(fact: DraftFacts, entries: list[PlanEntry] | None = None) -> str:
    return plan_views.verdict(
        SimpleNamespace(plan=[planned(fact.best_draft_length)] if entries is None else entries), fact
    )


def test_the_verdict_on_a_draft_that_pays():
    line = verdict(PAYS, of_lengths())
    assert line.startswith(
        "model, T = 0 (greedy): take k = 5, expected 1.84x (1.70 to 2.00); these may be as fast: k = 3, 6, 7;"
    )
    assert "break-even α = 0.42;" in line
    assert "2.05x" in line
    assert "decode step 9.12 ms" in line


def test_a_length_without_equals_stands_alone():
    alone = [planned(5, band_low=1.701, band_high=2.004), planned(6, time_low=1.01, time_high=1.2)]
    assert plan_views.advice(PAYS, alone) == "take k = 5, expected 1.84x (1.70 to 2.00)"


def test_a_gain_that_may_be_none_is_called_that():
    """The length 0 is held against the best in the same way as all others; without it the best one's own interval."""
    said = "take k = 5, expected 1.84x ({} to 2.00), which may be no gain: its interval includes 1"
    expected = f"{said}; these may be as fast: k = 3, 6, 7"
    assert plan_views.advice(PAYS, of_lengths(band_low=0.98)) == expected.format("0.98")
    plain = planned(0, time_low=0.99, time_high=1.8)
    assert plan_views.advice(PAYS, [plain, *of_lengths(band_low=1.7)]) == expected.format("1.70")
    slower = planned(0, time_low=1.01, time_high=1.8)
    assert plan_views.advice(PAYS, [slower, *of_lengths(band_low=0.98)]).startswith(
        "take k = 5, expected 1.84x (0.98 to 2.00);"
    )


def test_a_plan_without_an_interval_says_so():
    assert plan_views.advice(PAYS, [planned(5)]) == "take k = 5, expected 1.84x (no interval)"
    two = replace(PAYS, n_prompts=2)
    assert plan_views.advice(two, [planned(5)]) == "take k = 5, expected 1.84x (no interval: 2 prompts)"


def test_a_break_even_of_nothing_is_explained():
    assert "break-even α = 0, a round costs no more than a decode step;" in verdict(replace(PAYS, break_even=0.001))


def test_the_verdict_on_a_draft_that_never_pays():
    fact = replace(PAYS, method="ngram", temperature=0.8, best_draft_length=0, speedup=0.97, break_even=None)
    line = verdict(replace(fact, acceptance_rate=None))
    assert line.startswith("ngram, T = 0.8 (sampling): leave speculation off, no k is expected to be faster;")
    assert "break-even α = -;" in line


@pytest.mark.parametrize(("k", "speedup", "off"), [(3, 1.02, False), (3, 0.99, True), (3, 1.0, True), (0, 1.01, True)])
def test_only_a_length_that_is_faster_is_recommended(k, speedup, off):
    line = verdict(replace(PAYS, best_draft_length=k, speedup=speedup))
    assert ("leave speculation off" in line) == off


def table_of(fact: DraftFacts, entries: list[PlanEntry]) -> list[list[str]]:
    run = SimpleNamespace(plan=entries, verified=None)
    return [line.split() for line in show([plan_views.plan_table(run, fact)]).splitlines()[2:]]


@pytest.mark.parametrize(("low", "mark"), [(1.4, "take"), (0.99, "best")])
def test_the_table_marks_what_is_taken_and_what_is_as_good(low, mark):
    lines = table_of(PAYS, of_lengths(band_low=low))
    assert [line[-1] for line in lines] == ["same", "-", mark, "same", "same", "-"]
    assert lines[1][-8:-1] == ["1.50x", f"{low:.2f}", "to", "2.00", "1.01", "to", "1.20"]
    assert lines[2][-6:-1] == ["1.50x", f"{low:.2f}", "to", "2.00", "-"]


def test_a_plan_without_intervals_has_no_columns_for_them():
    assert [line[-2:] for line in table_of(PAYS, [planned(5), planned(6)])] == [["1.50x", "take"], ["1.50x", "-"]]


def test_the_table_of_a_checked_plan():
    draft = VerifiedDraft(
        method="model",
        draft="d",
        temperature=0.0,
        planned=LengthSpeedup(draft_length=4, speedup=1.5),
        measured=1.6,
        best_measured=LengthSpeedup(draft_length=6, speedup=1.62),
        share_of_best=1.6 / 1.62,
    )
    table = plan_views.checked_table(Verified(n_prompts=12, drafts=[draft], rows=[], correctness=[]))
    assert show([table]).splitlines()[2].split() == ["model", "0", "4", "1.50x", "1.60x", "-6%", "6", "1.62x", "98.8%"]


@pytest.mark.usefixtures("forgetful")
def test_a_wrong_text_of_a_plan_is_said_before_any_number(run, tmp_path):
    code, out, _ = run("--verify", "-k", "0,2")
    page = (tmp_path / "results" / "local-plan.md").read_text()
    assert code == 1
    for text in (out, page):
        assert text.index("WRONG OUTPUT: model k=") < text.index("break-even")


# --- what is refused, and what is doubted -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-k", "2,auto"], ("-k 2,auto", "give numbers")),
        (["-k", "300"], ("-k 300", "256 or less")),
        (["--draft", "branching"], ("branching has branches", "leave it out")),
        (["--draft", "hybrid:ngram+{draft}"], ("hybrid:ngram+draft", "no plan knows it")),
        (["--max-new-tokens", "1"], ("--max-new-tokens 2",)),
        (["--max-new-tokens", "999", "--prompt", "x"], ("512", "at most 511 new tokens")),
    ],
)
def test_a_bad_input_is_one_line_before_anything_is_measured(run, pair_folder, monkeypatch, words, said):
    monkeypatch.setattr(comparison, "measure", lambda *a, **k: pytest.fail("measured first"))
    add_branching(monkeypatch)
    code, _, err = run(*(word.format(draft=pair_folder / "draft") for word in words))
    assert code == 2
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert all(word in err for word in said)


def test_no_plan_is_longer_than_a_block(run, pair_folder, tmp_path):
    target = load(str(pair_folder / "target"), str(pair_folder / "draft"), engine="eager").setup.target.model
    write_head(tmp_path / "head", tiny_block_head(target, markov_rank=3).float(), "tiny", ["LlamaForCausalLM"], 4)
    assert run("--draft", f"block:{tmp_path / 'head'}", "-k", "0,2,4,9", "--limit", "1")[0] == 0
    assert [entry.draft_length for entry in loaded(tmp_path).plan] == [0, 2, 4]


def test_a_plan_on_a_busy_machine_is_marked(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "AT_START", 1000.0)
    _, out, err = run("-k", "0,2")
    assert any(line.startswith("busy") for line in err.splitlines())
    assert "BUSY: when the run began" in out
    assert loaded(tmp_path).machine.probe.free is False


def test_a_rough_plan_hides_nothing(run, tmp_path, monkeypatch):
    """It takes its turns twice, and recommends the length with the highest expected speedup all the same."""
    monkeypatch.setattr(noise, "FURTHEST", 1.0)
    _, out, err = run("-k", "0,2")
    assert "ROUGH" in out
    assert "expected" in out
    assert "taken once more" in err
    assert sum(line.endswith(" rough") for line in out.splitlines()) == len(loaded(tmp_path).plan) > 0
    assert loaded(tmp_path).noise
