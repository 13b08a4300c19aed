"""The four answers: each is given for what it is about, and its numbers are those that were diagnose."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import counters, diagnose
from speclab.extensions.servers.client import Answer
from speclab.extensions.servers.counters import EngineCounts
from speclab.extensions.servers.diagnose import (
    COST,
    LOAD,
    MORE,
    NOTHING,
    REJECTED,
    UNKNOWN,
    Measured,
    Texts,
    reading_seconds,
)

N = 10_000  # rounds


def of(rates, cost, plain=0.02, n_running=0):
    """What is measured of a draft with these acceptances by position, in a round of so many plain tokens."""
    at, left = [], N
    for rate in rates:
        left = round(left * rate)
        at.append(left)
    counts = EngineCounts(n_drafts=N, n_drafted=N * len(rates), n_accepted=sum(at), accepted_at=at)
    made = N + sum(at)
    return Measured(
        counts=counts,
        n_rounds=N,
        n_tokens=made,
        draft_length=len(rates),
        plain_seconds=plain,
        seconds=cost * (plain or 0.02) * N / made,
        n_running=n_running,
    )


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (of((0.8, 0.8, 0.8, 0.8), 1.5), NOTHING),
        (of((0.02, 0, 0, 0), 1.4), REJECTED),  # states of the wrong layers
        (of((0.02, 0, 0, 0), 4.5), REJECTED),  # the same on an engine whose rounds are dear, too
        (of((0.3, 0.25, 0.25, 0.25), 1.5), REJECTED),  # a draft of another model
        (of((0.8, 0.75, 0.7, 0.7), 4.5), COST),  # a draft as large as its target
        (of((0.75, 0.7, 0.65, 0.6, 0.55, 0.5, *[0.4] * 6), 3.1), COST),  # k = 12
        (of((0.9, 0.9), 3.5), COST),  # even a draft that is never rejected makes no gain
        (of((0.8, 0.8, 0.8, 0.8), 3.6, n_running=16), LOAD),
        (of((0.02, 0, 0, 0), 1.3, n_running=16), REJECTED),  # a batch is no excuse for a draft that is never kept
        (of((0.02, 0, 0, 0), 1.4, plain=None), REJECTED),
        (of((0.8, 0.8, 0.8, 0.8), 1.4, plain=None), UNKNOWN),
        (Measured(plain_seconds=0.02, seconds=0.01), NOTHING),
        (Measured(plain_seconds=0.01, seconds=0.02), UNKNOWN),
        (Measured(), UNKNOWN),
        (Measured(fraction=0.35, draft_length=4, plain_seconds=0.021, seconds=0.0225), COST),
        (Measured(fraction=0.05, draft_length=4, plain_seconds=0.021, seconds=0.0235), REJECTED),
    ],
)
def test_the_answer(found, answer):
    assert diagnose.diagnose(found).answer.startswith(answer)


@given(st.lists(st.floats(0.05, 0.99), min_size=1, max_size=8), st.floats(1e-4, 1.0), st.floats(1.0, 10))
def test_without_a_plain_server_it_is_said_what_its_token_must_take(rates, plain, cost):
    """Just above that time of a plain token it would pay, and just below it would not."""
    found = replace(of(rates, cost, plain=plain), plain_seconds=None)
    said = " ".join([diagnose.diagnose(found).answer, *diagnose.diagnose(found).numbers])
    limit = float(re.search(r"takes more than ([\d.]+) ms", said)[1]) / 1e3
    assert replace(found, plain_seconds=limit + 6e-6).speedup > 1
    assert replace(found, plain_seconds=limit - 6e-6).speedup < 1 if limit > 6e-6 else True
    assert f"up to {found.tokens_per_round:.2f} plain tokens" in said
    assert "ms" not in " ".join(diagnose.diagnose(replace(found, seconds=None)).numbers), "no time is known there"


RATES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(RATES, st.floats(0.5, 20), st.integers(0, 40))
def test_what_is_faster_has_nothing_wrong_and_nothing_else_has(rates, cost, n_running):
    found = of(rates, cost, n_running=n_running)
    answer = diagnose.diagnose(found).answer
    assert (answer == NOTHING) == (found.tokens_per_round / found.round_cost >= diagnose.FASTER)
    assert answer != UNKNOWN
    assert answer != LOAD or n_running >= diagnose.LOADED


@given(RATES, st.floats(1.1, 20))
def test_a_better_draft_never_turns_cost_into_rejection(rates, cost):
    """What is accepted more often is not rejected more often."""
    better = [min(1, rate + 0.2) for rate in rates]
    if diagnose.diagnose(of(rates, cost)).answer == COST:
        assert diagnose.diagnose(of(better, cost)).answer in (COST, NOTHING)


def test_a_lookup_that_seldom_drafts_is_neither_rejected_nor_dear():
    """As a lookup of llama-server was measured on chat prompts: 1.18 tokens a round at 1.15 plain tokens."""
    counts = EngineCounts(n_drafts=100, n_drafted=800, n_accepted=150, accepted_at=[75, 75, 0, 0, 0, 0, 0, 0])
    seldom = Measured(counts=counts, n_rounds=1000, n_tokens=1150, draft_length=8, plain_seconds=0.02, seconds=0.0195)
    assert seldom.drafting_share == 0.1
    found = diagnose.diagnose(seldom)
    assert (found.answer, "90% of the rounds drafted nothing" in found.numbers[0]) == (NOTHING, True)
    assert diagnose.diagnose(replace(seldom, seconds=0.04)).answer == COST, "it does little, and that costs a lot"


def test_what_is_expected_of_another_length_counts_the_rounds_without_drafts():
    counts = EngineCounts(n_drafts=500, n_drafted=1000, n_accepted=500, accepted_at=[500, 0])
    found = Measured(counts=counts, n_rounds=1000, n_tokens=1500, draft_length=2, plain_seconds=1.0, seconds=1.4 / 1.5)
    assert found.round_cost == pytest.approx(1.4)
    assert "k = 1" in diagnose.diagnose(found).then
    assert f"{1.5 / 1.2:.2f}x" in diagnose.diagnose(found).then


def test_a_length_is_advised_only_where_it_is_expected_to_pay():
    assert diagnose.diagnose(of((0.75, 0.7, 0.65, 0.6, 0.55, 0.5, *[0.4] * 6), 3.1)).then.startswith("k = ")
    assert not diagnose.diagnose(of((0.9, 0.9), 3.5)).then.startswith("k = ")


def test_the_numbers_are_the_measured_ones():
    found = of((0.5, 0.5), 2.0)
    assert found.tokens_per_round == pytest.approx(1.75)
    assert found.round_cost == pytest.approx(2.0)
    assert "1.75" in "".join(diagnose.diagnose(found).numbers)
    assert "2.00" in "".join(diagnose.diagnose(found).numbers)


# --- shapes, texts and causes -----------------------------------------------------------------------------------------

SHAPES = [shape for shape in vars(diagnose).values() if isinstance(shape, diagnose.Shape)]
NAMES = list(vars(diagnose))
CLOSED = {vars(diagnose)[name] for name in NAMES[NAMES.index("STATES") : NAMES.index("BUSY") + 1]}
MAYBE = st.sampled_from([None, True, False])
TEXTS = st.builds(Texts, st.booleans(), st.booleans(), MAYBE, MAYBE)


@given(RATES, st.floats(0.5, 20), st.sampled_from([None, 0.02]), st.lists(st.sampled_from(SHAPES), max_size=2), TEXTS)
def test_nothing_is_never_wrong_beside_the_shape_of_a_fault(rates, cost, plain, seen, texts):
    found = diagnose.diagnose(of(rates, cost, plain=plain), seen, texts)
    assert len(found.causes) == len(set(found.causes)) <= 2
    assert set(found.causes) <= CLOSED
    if any(shape.faulty for shape in seen):
        assert found.answer == REJECTED
    if texts.wrong or (seen and seen[0].faulty) or found.answer in (REJECTED, COST, LOAD):
        assert found.causes, "what is wrong has a cause"


@given(
    st.lists(st.tuples(st.integers(40, 2000), st.floats(0.2, 0.99)), min_size=1, max_size=4),
    st.integers(1, 8),
    st.floats(0.5, 6),
)
def test_a_mixture_of_sound_kinds_that_pays_is_not_rejected(sound, k, cost):
    """Each kind is level, and some are easier than others: that is a hybrid on copied text and on prose."""
    kinds = []
    for n, rate in sound:
        at = [round(n * rate**place) for place in range(1, k + 1)]
        kinds.append(EngineCounts(n_drafts=n, n_drafted=n * k, n_accepted=sum(at), accepted_at=at))
    counts = counters.total(kinds)
    n, made = counts.n_drafts, counts.n_drafts + counts.n_accepted
    found = Measured(
        counts=counts,
        n_rounds=n,
        n_tokens=made,
        draft_length=k,
        plain_seconds=0.02,
        seconds=cost * 0.02 * n / made,
    )
    shape = diagnose.shape_of(counts, n, kinds)
    said = diagnose.diagnose(found, [shape] if shape else [])
    if found.speedup >= diagnose.FASTER:
        assert said.answer == (MORE if shape is diagnose.RISING else NOTHING)
    if shape is diagnose.LOW and said.answer == NOTHING:
        assert not said.causes
    alone = diagnose.diagnose(found, [diagnose.shape_of(counts)] if diagnose.shape_of(counts) else [])
    assert alone.answer == said.answer, "where kinds are not known, too"


@given(RATES, st.floats(0.3, 5), TEXTS)
def test_a_shape_of_which_nobody_knows_the_cause_is_neither_fine_nor_at_fault(rates, cost, texts):
    """It is said that it pays, and both causes are named: a fault of the draft, and easy texts beside hard ones."""
    found = of(rates, cost)
    said = diagnose.diagnose(found, [diagnose.RISING], texts)
    assert (said.answer == MORE) == (found.speedup >= diagnose.FASTER)
    assert said.answer != NOTHING
    if said.answer == MORE and not texts.wrong:
        assert set(said.causes) == {diagnose.PARTIAL, diagnose.STATES}


def test_a_weak_draft_that_pays_has_no_fault_and_its_acceptance_is_said():
    found = of((0.4, 0.3), 1.2)
    said = diagnose.diagnose(found, [diagnose.LOW])
    assert (said.answer, said.causes) == (NOTHING, ())
    assert f"{found.counts.acceptance_rate:.2f}" in said.then
    assert diagnose.diagnose(replace(found, plain_seconds=0.01), [diagnose.LOW]).causes, "where it does not pay, it has"


def test_a_cause_is_one_line_of_the_screen():
    assert max(map(len, CLOSED)) <= diagnose.WIDTH - diagnose.LABEL


def test_a_cliff_outranks_a_shorter_draft():
    """As a head was measured whose second pass reads the wrong token: k = 1 would pay, and the draft is at fault."""
    found = of((0.78, 0.05, 0.23, 0.0), 1.81)
    assert diagnose.diagnose(found).answer == COST
    said = diagnose.diagnose(found, [diagnose.CLIFF])
    assert (said.answer, said.causes[0]) == (REJECTED, diagnose.FEEDBACK)
    assert "k = 1" in said.then


def test_a_right_text_says_that_the_targets_pass_is_right():
    found = of((0.8, 0.04, 0.0), 1.5)
    assert diagnose.WIDE_PASS in diagnose.diagnose(found, [diagnose.CLIFF]).causes
    assert diagnose.WIDE_PASS not in diagnose.diagnose(found, [diagnose.CLIFF], Texts(compared=True)).causes


@pytest.mark.parametrize(
    ("seen", "texts", "first"),
    [
        ([], Texts(wrong=True, repeats=False), diagnose.SAMPLES),
        ([], Texts(wrong=True, repeats=True, alone=False), diagnose.OTHER_TARGET),
        ([], Texts(wrong=True, repeats=True, alone=True), diagnose.LENIENT),
        ([diagnose.ALL], Texts(wrong=True, repeats=True, alone=True), diagnose.LENIENT),
        ([diagnose.CLIFF], Texts(wrong=True, repeats=True, alone=True), diagnose.WIDE_PASS),
        ([diagnose.ZERO], Texts(wrong=True), diagnose.WIDE_PASS),
        ([diagnose.CLIFF], Texts(wrong=True, repeats=True, alone=False), diagnose.OTHER_TARGET),
    ],
)
def test_a_wrong_text_has_a_cause_of_its_own(seen, texts, first):
    assert diagnose.diagnose(of((0.6, 0.6), 1.4), seen, texts).causes[0] == first


@given(st.floats(2.0, 20), st.floats(0.0, 3.0))
def test_reading_that_is_slow_explains_a_dear_pass(cost, reading):
    found = replace(of((0.5, 0.5, 0.5, 0.5), cost), reading_seconds=reading * 0.02)
    slow = 4 * reading >= diagnose.EXPLAINS * (cost - 1)
    assert diagnose.dear(found)[0] == (diagnose.DEAR_PASS if slow and reading else diagnose.DEAR_DRAFT)
    assert set(diagnose.dear(found)) == {diagnose.DEAR_PASS, diagnose.DEAR_DRAFT}


def test_a_draft_that_keeps_nothing_at_all_is_more_likely_damaged_than_one_off():
    for rate, first in ((0.0, diagnose.DAMAGED), (0.04, diagnose.STATES)):
        assert diagnose.diagnose(of((rate, 0.2), 1.4), [diagnose.ZERO]).causes[0] == first


def answers(lengths, slope, fixed=0.05):
    return [Answer("x", 2, 1, fixed + slope * n, 0.1, 1.0, [], {}, n_prompt=n) for n in lengths]


@given(st.lists(st.integers(10, 40), min_size=4, max_size=9), st.floats(1e-4, 1e-1))
def test_what_reading_costs_is_the_slope_of_the_first_token(lengths, slope):
    """Whatever every request costs besides is left out."""
    found = reading_seconds(answers([*lengths, 80], slope))
    assert found == pytest.approx(slope, rel=1e-6)
    assert reading_seconds(answers([20] * 6, slope)) is None, "prompts of one length say nothing"
    assert reading_seconds(answers([10, 80], slope)) is None, "two prompts are too few"
