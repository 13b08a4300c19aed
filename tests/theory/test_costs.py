"""The seconds of a round's phases, fitted to rounds made up from known costs: what comes back, and what stays sane."""

import functools
import operator
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_models import ModelDrafter
from speclab.core.sampling import Sampling
from speclab.lab.known_texts import calibrated
from speclab.records.rows import Arm, Decoded, RoundCounts
from speclab.theory.attribution import price
from speclab.theory.costs import Costs, RoundTime, catch_ups, fit, without_clock
from tests.decoding import ScriptedTarget

given_cases = settings(max_examples=40)

# A CPU of the lab's kind: 10 ms a step, widths cost a flight of stairs, the draft an eighth of a step.
VERIFY = {1: 0.0100, 2: 0.0115, 3: 0.0118, 4: 0.0119, 5: 0.0120, 6: 0.0124, 7: 0.0126, 8: 0.0127, 9: 0.0139}


def line(first: float, each: float) -> list[tuple[int, float]]:
    """Drafting that costs the same for every token after the first."""
    return [(n, first + each * (n - 1)) for n in range(1, 9)]


SLOPES = {"step_slope": 3e-6, "verify_slope": 5e-6, "draft_slope": 4e-7, "draft_catch": 0.0002, "rest_each": 0.00002}
ALONE = {"step_at": 0.0098, "draft_idle": 0.0001, "rest_at": 0.00058}
MODEL = Costs(verify_at=[*VERIFY.items()], draft_at=line(0.0014, 0.0012), **ALONE, **SLOPES)
NGRAM = replace(MODEL, draft_at=line(9e-5, 1e-6), draft_catch=0.0, draft_slope=0.0, rest_at=0.0005)
WARM = replace(MODEL, step_at=0.0105, draft_at=line(0.0017, 0.0012), rest_at=0.001, rest_each=0.0004)


# --- made-up machines -------------------------------------------------------------------------------------------------


def steady(seconds: float) -> float:
    """A machine whose every phase takes what it should."""
    return seconds


class Shared:
    """A machine in two states, 1.0 and 1.4, that it keeps for 20 phases on average, with 5 % jitter."""

    def __init__(self, seed: int):
        self.dice, self.factor = np.random.default_rng(seed), 1.0

    def __call__(self, seconds: float) -> float:
        if self.dice.random() < 0.05:
            self.factor = 2.4 - self.factor
        return seconds * self.factor * self.dice.uniform(0.95, 1.05)


SAID = {  # what costs say that a phase of a round takes
    "draft": lambda costs, r: costs.draft_seconds(r.n_drafted, r.context, r.catch_up),
    "verify": lambda costs, r: costs.verify_seconds(r.n_drafted + 1, r.context),
    "rest": lambda costs, r: costs.overhead_seconds(r.n_drafted),
}


def decode(truth, drafter, temperature, lengths, n_rounds, machine, seed=0, context=(100, 300), accept=0.7):
    """-> (n_rounds,) of rounds whose phases cost what `truth` says on that machine"""
    dice = np.random.default_rng([seed, 1])
    drafted = [int(n) for n in dice.choice(lengths, n_rounds)]
    accepted = [next((i for i in range(n) if dice.random() >= accept), n) for n in drafted]
    rounds = []
    for n, catch_up in zip(drafted, catch_ups(map(RoundCounts, drafted, accepted)), strict=True):
        made = RoundTime(drafter, temperature, int(dice.integers(*context)), n, catch_up, 0.0, 0.0, 0.0)
        rounds.append(made._replace(**{phase: machine(said(truth, made)) for phase, said in SAID.items()}))
    return rounds


def step(temperature, context, seconds):
    """A step of the baseline."""
    return RoundTime("", temperature, context, 0, 1, 0.0, seconds, 0.0)


def walk(truth, temperature, n_steps, machine, seed=0, context=(100, 300)):
    """-> (n_steps,) of baseline steps"""
    dice = np.random.default_rng([seed, 2])
    where = [int(dice.integers(*context)) for _ in range(n_steps)]
    return [step(temperature, c, machine(truth.step_seconds(c))) for c in where]


def predicted(found, rounds, phase):
    """What the fitted costs say that a phase of these rounds took in all."""
    return sum(SAID[phase](found[r.drafter, r.temperature], r) for r in rounds)


def observed(rounds, phase):
    return sum(getattr(r, phase) for r in rounds)


def numbers(found):
    plain = [value for value in asdict(found).values() if isinstance(value, float)]
    return [*plain, *(seconds for _, seconds in [*found.verify_at, *found.draft_at])]


# --- known truth ------------------------------------------------------------------------------------------------------


def test_a_quiet_machine_gives_its_costs_away():
    """Two drafts and two temperatures at once: every parameter comes back to rounding."""
    everything = range(9)
    rounds = decode(MODEL, "model", 0.0, everything, 200, steady, seed=1)
    rounds += decode(NGRAM, "ngram", 0.0, everything, 200, steady, seed=2)
    rounds += decode(WARM, "model", 0.8, everything, 200, steady, seed=3)
    steps = walk(MODEL, 0.0, 50, steady) + walk(WARM, 0.8, 50, steady)
    found = fit(rounds, steps)
    assert list(found) == [("model", 0.0), ("ngram", 0.0), ("model", 0.8)]
    for key, truth in zip(found, (MODEL, NGRAM, WARM), strict=True):
        if key[0] == "ngram":  # asking in vain costs an n-gram draft what any other round does
            truth = replace(truth, draft_idle=NGRAM.draft_idle)
        assert numbers(found[key]) == pytest.approx(numbers(truth), rel=1e-7, abs=1e-12)
        assert [width for width, _ in found[key].verify_at] == list(range(1, 10))


def test_a_clock_that_makes_rounds_longer_leaves_the_costs_as_they_are():
    """The controls have no phases, and other lengths and contexts. A stall among them counts as three times what it
    should be, and a replay is expected. Too few of them are not believed, nor those of another draft."""
    truth = {("model", 0.0): MODEL, ("ngram", 0.0): NGRAM, ("model", 0.8): replace(WARM, replay=0.004)}
    slower, slow, controls = {"model": 1.08, "ngram": 1.2}, [], []
    for (draft, temperature), costs in truth.items():
        machine = functools.partial(operator.mul, slower[draft])
        slow += replayed(costs, decode(costs, draft, temperature, range(9), 200, machine, seed=1), slower[draft])
        plain = replayed(costs, decode(costs, draft, temperature, [4], 40, steady, seed=3, context=(200, 500)), 1.0)
        controls += [r._replace(draft=0.0, verify=0.0, rest=r.draft + r.verify + r.rest) for r in plain]
    steps = walk(MODEL, 0.0, 50, steady) + walk(WARM, 0.8, 50, steady)
    found = calibrated(SimpleNamespace(rounds=slow, controls=controls, steps=steps))
    for key, costs in truth.items():
        measured, expected = (replace(one, draft_idle=0.0) for one in (found[key], costs))  # of ngram, see above
        assert numbers(measured) == pytest.approx(numbers(expected), rel=1e-6, abs=1e-9)
    stalled = [controls[0]._replace(rest=1e3 * controls[0].rest), *controls[1:]]
    factor = without_clock(slow, stalled)[0].draft / without_clock(slow, controls)[0].draft
    assert 1 < factor < 1.2
    few = [*controls[:15], *(r._replace(drafter="another") for r in controls)]
    assert without_clock(slow, few) == slow != without_clock(slow, controls[:16])


def replayed(costs, rounds, slower):
    """Every third round reads accepted tokens again."""
    return [
        r._replace(n_replays=1, rest=r.rest + slower * costs.replay) if i % 3 == 0 and costs.replay else r
        for i, r in enumerate(rounds)
    ]


@given_cases
@given(seed=st.integers(0, 10**6), n_rounds=st.integers(1, 30), longest=st.integers(1, 8), up=st.booleans())
def test_totals_are_preserved(seed, n_rounds, longest, up):
    """Over the fitted rounds, prediction and observation have the same sum: the accounting is nothing but a sum.

    Also where slopes were clipped (`up` False makes everything fall with context, length and catch-up) and where a
    handful of rounds met many parameters. Noise stays below 3 medians, so nothing counts as a stall.
    """
    # Long waits without a draft must not look like stalls, so catching up costs little here.
    rising = replace(MODEL, draft_catch=1e-5)
    falling = replace(
        MODEL, verify_slope=-5e-6, step_slope=-3e-6, draft_at=line(0.0024, -1e-4), draft_catch=-1e-5, rest_each=-1e-5
    )
    truth = rising if up else falling
    machine = Shared(seed)
    groups = [
        decode(*who, range(longest + 1), n_rounds, machine, seed) + decode(*who, [longest], 1, machine, seed)
        for who in [(truth, "model", 0.0), (NGRAM, "ngram", 0.0), (truth, "model", 1.0)]
    ]
    steps = walk(truth, 0.0, n_rounds, machine, seed) + walk(truth, 1.0, n_rounds, machine, seed)
    rounds = [r for g in groups for r in g]
    found = fit(rounds, steps)
    for group in groups:
        for phase in ("draft", "rest"):
            assert predicted(found, group, phase) == pytest.approx(observed(group, phase), rel=1e-9)
    for pool in (groups[0] + groups[1], groups[2]):
        assert predicted(found, pool, "verify") == pytest.approx(observed(pool, "verify"), rel=1e-9)
    for temperature in (0.0, 1.0):
        mine = [s for s in steps if s.temperature == temperature]
        total = sum(found["model", temperature].step_seconds(s.context) for s in mine)
        assert total == pytest.approx(observed(mine, "verify"), rel=1e-9)
    assert min(n for c in found.values() for n in numbers(c)) >= 0


def test_passes_are_pooled():
    """They are the same whoever drafted at that temperature: a mean over all."""
    slower = replace(MODEL, verify_at=[(5, 0.0240)])
    rounds = decode(MODEL, "model", 0.0, [4], 30, steady, context=(200, 201))
    rounds += decode(slower, "ngram", 0.0, [4], 10, steady, context=(200, 201))
    rounds += decode(slower, "ngram", 1.0, [4], 10, steady, context=(200, 201))
    found = fit(rounds, [])
    for key, share in ((("model", 0.0), 0.25), (("ngram", 0.0), 0.25), (("ngram", 1.0), 1.0)):
        verify = 0.012 + share * 0.012 + MODEL.verify_slope * 200
        assert found[key].verify_seconds(5, 200) == pytest.approx(verify, rel=1e-9)
        assert found[key].draft_seconds(0, 200) == found[key].step_seconds(200) == 0, "none was seen"


# --- hardly any data --------------------------------------------------------------------------------------------------


def test_a_lookup_that_never_found_anything():
    """Its rounds cost what asking in vain costs; the other drafter's costs are what they are without it."""
    silent = decode(NGRAM, "ngram", 0.0, [0], 30, Shared(6))
    model = decode(MODEL, "model", 0.0, range(9), 200, steady)
    steps = walk(MODEL, 0.0, 20, steady)
    found = fit(silent + model, steps)
    asked = observed(silent, "draft") / 30
    for n in (0, 1, 4, 16):
        assert found["ngram", 0.0].draft_seconds(n, 300, catch_up=9) == pytest.approx(asked, rel=1e-9)
    assert found["model", 0.0].draft_seconds(4, 200, 2) == pytest.approx(MODEL.draft_seconds(4, 200, 2), rel=1e-7)
    assert len(fit(silent, steps)["ngram", 0.0].verify_at) == 1


def test_contexts_that_hardly_differ_make_no_slope_of_noise():
    """20 seeds, contexts 180 and 181: no slope, so ten times the context does not cost ten times as much.

    A slope needs 3 standard errors, so of 60 fitted ones 0.1 pass by chance: more than 2 in 1 of 10 000 sets of seeds.
    """
    passed = 0
    for seed in range(20):
        machine = Shared(seed)
        rounds = decode(MODEL, "model", 0.0, [2, 4], 60, machine, seed, context=(180, 182))
        found = fit(rounds, walk(MODEL, 0.0, 60, machine, seed, context=(180, 182)))["model", 0.0]
        passed += sum(slope > 0 for slope in (found.step_slope, found.verify_slope, found.draft_slope))
    assert passed <= 2


def test_a_slope_has_three_standard_errors_and_eight_observations_more_than_parameters():
    """Of steps at two contexts, with noise that is at right angles to them in 12 steps; parameters are three. A slope
    is as steep as leaves no cost below zero."""
    rounds, noise = decode(MODEL, "model", 0.0, [2], 30, steady), [1, 1, -1, -1] * 3
    for n, slope, believed in ((12, 1.1, True), (12, 0.9, False), (11, 9.0, True), (10, 9.0, False)):
        steps = [step(0.0, 200 + i % 2 * 2, 0.01 + 1e-5 * (slope * (i % 2 * 2) + noise[i])) for i in range(n)]
        assert (fit(rounds, steps)["model", 0.0].step_slope > 0) == believed
    found = fit(rounds, [step(0.0, context, 1e-5 * (context - 100)) for context in range(110, 230, 10)])["model", 0.0]
    assert (found.step_at, found.step_slope) == (pytest.approx(0, abs=1e-12), pytest.approx(65e-5 / 165))


def test_a_stall_owns_no_cell():
    """Whether a width was seen three times or twice, 100 ms once count as no more than three times the usual."""
    quiet = decode(MODEL, "model", 0.0, [1, 2, 3, 5, 6], 100, steady, context=(200, 201))
    for n_seen in (2, 3):
        rare = decode(MODEL, "model", 0.0, [4], n_seen, steady, context=(200, 201))
        usual = rare[0].verify
        rare[1] = rare[1]._replace(verify=usual + 0.1)
        found = fit(quiet + rare, walk(MODEL, 0.0, 5, steady))["model", 0.0]
        assert found.verify_seconds(5, 200) == pytest.approx(usual * (n_seen + 2) / n_seen, rel=1e-9)
        assert found.verify_seconds(4, 200) == pytest.approx(MODEL.verify_seconds(4, 200), rel=1e-9)  # not next door
    with_stall = [*walk(MODEL, 0.0, 9, steady, context=(200, 201)), step(0.0, 200, 5.0)]
    usual = MODEL.step_seconds(200)
    assert fit(quiet, with_stall)["model", 0.0].step_seconds(200) == pytest.approx(usual * 12 / 10, rel=1e-9)


FALLING = {"verify_slope": -1e-5, "step_slope": -1e-5, "draft_catch": -1e-3, "draft_slope": -1e-7, "rest_each": -1e-5}


@pytest.mark.parametrize("parameter", FALLING)
def test_costs_that_fall_are_flat(parameter):
    """Nothing gets cheaper by doing more; what looks so is the machine's mood."""
    truth = replace(MODEL, **{parameter: FALLING[parameter]})
    rounds = decode(truth, "model", 0.0, range(1, 9), 300, steady)
    found = fit(rounds, walk(truth, 0.0, 100, steady))["model", 0.0]
    assert getattr(found, parameter) == 0
    for phase in SAID:
        assert predicted({("model", 0.0): found}, rounds, phase) == pytest.approx(observed(rounds, phase), rel=1e-9)


# --- curves -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "seconds"),
    [
        ({3: 6.0, 5: 8.0, 7: 9.0, 9: 12.0}, {3: 6, 4: 7, 5: 8, 6: 8.5, 9: 12, 11: 14, 17: 20, 2: 5, 1: 4}),
        ({4: 9.0, 8: 8.0}, {16: 8, 2: 9}),  # falls: a wider pass costs no less
        # A step in between: no more per position than the widest, and one of the narrowest costs its share at least.
        ({4: 1.0, 8: 8.0}, {16: 16, 2: 0.5}),
        ({4: 8.0, 5: 8.5}, {7: 9.5, 2: 7}),
        ({5: 7.0}, {1: 7, 50: 7}),  # one width alone
    ],
)
def test_widths_between_and_beyond(curve, seconds):
    found = replace(MODEL, verify_at=[*curve.items()], verify_slope=0.5)
    assert {width: found.verify_seconds(width, 0) for width in seconds} == pytest.approx(seconds)
    assert found.verify_seconds(8, 10) == found.verify_seconds(8, 0) + 5


def test_a_replay_is_priced_where_drafts_are_rejected():
    """A rollback with a replay takes longer by the replay, and rounds without one tell how long it takes alone."""
    rounds = decode(MODEL, "model", 0.0, range(5), 60, steady)
    replays = [i % 3 == 0 and r.n_drafted > 0 for i, r in enumerate(rounds)]
    rounds = [r._replace(rest=r.rest + 0.003 * n, n_replays=int(n)) for r, n in zip(rounds, replays, strict=True)]
    found = fit(rounds, walk(MODEL, 0.0, 50, steady))["model", 0.0]
    assert (found.rest_at, found.replay) == (pytest.approx(MODEL.rest_at), pytest.approx(0.003))
    assert found.overhead_seconds(4, rejected=True) == pytest.approx(MODEL.overhead_seconds(4) + 0.003)
    made = [RoundCounts(4, 4), RoundCounts(4, 1), RoundCounts(0, 0), RoundCounts(2, 0), RoundCounts(2, 2)]
    n_tokens = 1 + sum(n_accepted + 1 for _, n_accepted, _ in made)
    sample = Decoded.begin(Arm("model", "model", 4), 0.0, 0, "code", 100)
    sample.add(0.0, 1.0, [0] * n_tokens, rounds=made)
    plain = price(sample, sample, replace(found, replay=0.0)).overhead
    assert price(sample, sample, found).overhead == pytest.approx(plain + 2 * 0.003)


# --- catching up ------------------------------------------------------------------------------------------------------


rounds_of_counts = st.lists(
    st.integers(0, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n) | st.just(n))), max_size=20
)


@given_cases
@given(counts=rounds_of_counts)
def test_catch_ups_are_what_the_drafter_feeds(counts):
    """The production drafter over a counting cache: the first pass of a round is as wide as predicted, the rest 1."""
    drafter, n_prompt = ModelDrafter(ScriptedTarget(lambda text: [1, 0, 0, 0], 3)), 3
    drafter.prefill(drafter.draft, torch.zeros(1, n_prompt, dtype=torch.long), Sampling())
    drafter.observe(0, [1])  # the token from prefill
    n_committed = n_prompt + 1
    expected = catch_ups(RoundCounts(*pair) for pair in counts)
    assert len(expected) == len(counts)
    for (n_drafted, n_accepted), catch_up in zip(counts, expected, strict=True):
        assert catch_up == n_committed - drafter.draft.length
        drafter.draft.widths.clear()
        drafter.propose(n_drafted, torch.zeros(1, n_drafted))
        assert drafter.draft.widths == [catch_up, 1, 1, 1, 1][:n_drafted]
        drafter.observe(n_accepted, [1] * (n_accepted + 1))
        n_committed += n_accepted + 1
    if counts:
        assert expected[0] == 1
