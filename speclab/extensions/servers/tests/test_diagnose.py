"""The four answers: each is given for what it is about, and its numbers are those that were measured."""

import doctest
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import counters, diagnose
from speclab.extensions.servers.counters import EngineCounts
from speclab.extensions.servers.diagnose import COST, LOAD, MORE, NOTHING, REJECTED, UNKNOWN, Measured
from speclab.extensions.servers.vllm import vllm_requirements
from speclab.theory.formulas import expected_tokens_per_round

N = 10_000  # rounds


def of(rates, cost, plain=0.02, n_running=0):
    """What is measured of a draft with these acceptances by position, in a round of so many plain tokens."""
    at, left = [], N
    for rate in rates:
        left = round(left * rate)
        at.append(left)
    counts = EngineCounts(n_drafts=N, n_drafted=N * len(rates), n_accepted=sum(at), accepted_at=at)
    return of_counts(counts, N, cost, plain, n_running)


def of_counts(counts, n_rounds, cost, plain=0.02, n_running=0):
    made = n_rounds + counts.n_accepted
    seconds = cost * (plain or 0.02) * n_rounds / made
    known = {"plain_seconds": plain, "seconds": seconds, "n_running": n_running}
    return Measured(counts=counts, n_rounds=n_rounds, n_tokens=made, **known)


TWELVE = (0.75, 0.7, 0.65, 0.6, 0.55, 0.5, *[0.4] * 6)
# A lookup of llama-server on chat prompts, as it was measured: 1.18 tokens a round at 1.15 plain tokens.
SELDOM = EngineCounts(n_drafts=100, n_drafted=800, n_accepted=150, accepted_at=[75, 75, 0, 0, 0, 0, 0, 0])
HALF = EngineCounts(n_drafts=500, n_drafted=1000, n_accepted=500, accepted_at=[500, 0])


@pytest.mark.parametrize(
    ("found", "answer", "says"),
    [
        (of((0.8, 0.8, 0.8, 0.8), 1.5), NOTHING, "nothing has to change"),
        (of((0.02, 0, 0, 0), 1.4), REJECTED, "predicts nothing"),  # states of the wrong layers
        (of((0.02, 0, 0, 0), 4.5), REJECTED, "predicts nothing"),  # on an engine whose rounds are dear, too
        (of((0.3, 0.25, 0.25, 0.25), 1.5), REJECTED, "trained for this target"),  # a draft of another model
        (of((0.8, 0.75, 0.7, 0.7), 4.5), COST, "a smaller draft"),  # a draft as large as its target
        (of(TWELVE, 3.1), COST, "k = "),
        (of((0.9, 0.9), 3.5), COST, "even a draft that is never rejected"),
        (of((0.8, 0.8, 0.8, 0.8), 3.6, n_running=16), LOAD, "--load"),
        (of((0.02, 0, 0, 0), 1.3, n_running=16), REJECTED, ""),  # a batch is no excuse for what is never kept
        (of((0.02, 0, 0, 0), 1.4, plain=None), REJECTED, ""),
        (of((0.8, 0.8, 0.8, 0.8), 1.4, plain=None), UNKNOWN, "--plain-url"),
        (of((0.5, 0.5), 2.0), COST, "a round brings 1.75 tokens; it has to bring 2.00"),
        (Measured(plain_seconds=0.02, seconds=0.01), NOTHING, "counts no rounds"),
        (Measured(plain_seconds=0.01, seconds=0.02), UNKNOWN, "--metrics"),
        (Measured(), UNKNOWN, "--metrics"),
        (of_counts(SELDOM, 1000, 1.12), NOTHING, "90% of the rounds drafted nothing"),
        (of_counts(SELDOM, 1000, 2.3), COST, "90% of the rounds drafted nothing"),  # it does little, and costs a lot
        (of_counts(HALF, 1000, 1.4), NOTHING, f"k = 1, which by this curve makes {1.5 / 1.2:.2f}x"),
    ],
)
def test_the_answer(found, answer, says):
    said = diagnose.diagnose(found)
    assert said.answer.startswith(answer)
    assert says in " ".join([*said.numbers, said.then])


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


@given(st.floats(0.5, 2), st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_a_speedup_is_clear_where_its_interval_is(speedup, below, above):
    """It is not where 1 is inside, and something that is a gain or a loss."""
    low, high = speedup / below, speedup * above
    found = replace(of((0.8, 0.8), 1.4), seconds=0.02 / speedup, speedup_interval=(low, high))
    inside = low < 1 < high and (high > diagnose.FASTER or low < 1 / diagnose.FASTER)
    assert diagnose.diagnose(found).answer.startswith("not clear") == inside


SHAPES = [shape for shape in vars(diagnose).values() if isinstance(shape, diagnose.Shape)]
NAMES = list(vars(diagnose))
CLOSED = {vars(diagnose)[name] for name in NAMES[NAMES.index("STATES") : NAMES.index("BUSY") + 1]}
TEXTS = st.sampled_from([None, True, False])


@given(RATES, st.floats(0.5, 20), st.sampled_from([None, 0.02]), st.sampled_from([None, *SHAPES]), TEXTS)
def test_nothing_is_never_wrong_beside_the_shape_of_a_fault(rates, cost, plain, shape, texts):
    found = diagnose.diagnose(of(rates, cost, plain=plain), shape, texts)
    assert len(found.causes) == len(set(found.causes)) <= 2
    assert set(found.causes) <= CLOSED
    assert max(map(len, CLOSED)) <= diagnose.WIDTH - diagnose.LABEL, "a cause is one line of the screen"
    faulty = shape and shape.faulty
    assert not faulty or found.answer == REJECTED
    if texts is False or faulty or found.answer in (REJECTED, COST, LOAD):
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
    found = of_counts(counts, counts.n_drafts, cost)
    shape = diagnose.shape_of(counts, counts.n_drafts, kinds)
    said = diagnose.diagnose(found, shape)
    if found.speedup >= diagnose.FASTER:
        assert said.answer == (MORE if shape is diagnose.RISING else NOTHING)
    if shape is diagnose.LOW and said.answer == NOTHING:
        assert not said.causes
    assert diagnose.diagnose(found, diagnose.shape_of(counts)).answer == said.answer, "where kinds are not known, too"


@given(RATES, st.floats(0.3, 5), TEXTS)
def test_a_shape_of_which_nobody_knows_the_cause_is_neither_fine_nor_at_fault(rates, cost, texts):
    """It is said that it pays, and both causes are named: a fault of the draft, and easy texts beside hard ones."""
    found = of(rates, cost)
    said = diagnose.diagnose(found, diagnose.RISING, texts)
    assert (said.answer == MORE) == (found.speedup >= diagnose.FASTER)
    assert said.answer != NOTHING
    if said.answer == MORE and texts is not False:
        assert set(said.causes) == {diagnose.PARTIAL, diagnose.STATES}


def test_a_weak_draft_that_pays_has_no_fault_and_its_acceptance_is_said():
    found = of((0.4, 0.3), 1.2)
    said = diagnose.diagnose(found, diagnose.LOW)
    assert (said.answer, said.causes) == (NOTHING, ())
    assert f"{found.counts.acceptance_rate:.2f}" in said.then
    assert diagnose.diagnose(replace(found, plain_seconds=0.01), diagnose.LOW).causes, "where it does not pay, it has"


@pytest.mark.parametrize(
    ("shape", "same_text", "causes"),
    [
        (None, False, (diagnose.OTHER_TARGET, diagnose.LENIENT)),
        (diagnose.ALL, False, (diagnose.LENIENT, diagnose.OTHER_TARGET)),
        (diagnose.ZERO, False, (diagnose.WIDE_PASS, diagnose.OTHER_TARGET)),
        (diagnose.CLIFF, False, (diagnose.WIDE_PASS, diagnose.OTHER_TARGET)),
        (diagnose.CLIFF, None, (diagnose.FEEDBACK, diagnose.WIDE_PASS)),
        (diagnose.CLIFF, True, (diagnose.FEEDBACK, diagnose.SHALLOW)),  # the target's pass is right
    ],
)
def test_what_texts_say_of_a_cause(shape, same_text, causes):
    """A head whose second pass reads the wrong token: k = 1 would pay, and the draft is at fault."""
    found = of((0.78, 0.05, 0.23, 0.0), 1.81)
    assert diagnose.diagnose(found).answer == COST
    said = diagnose.diagnose(found, shape, same_text)
    assert said.causes == causes
    assert (said.answer == REJECTED) == (shape in (diagnose.CLIFF, diagnose.ZERO))
    assert "k = 1" in said.then
    assert diagnose.diagnose(of((1.0,) * 4, 1.2), diagnose.ALL, True).causes == (diagnose.SAME_TEXT,)


@pytest.mark.parametrize("module", [diagnose, vllm_requirements])
def test_the_examples_in_the_docstrings_are_right(module):
    found = doctest.testmod(module)
    assert (found.attempted > 0, found.failed) == (True, 0)


@given(st.integers(1, 12), st.floats(0.2, 20))
def test_at_the_break_even_a_round_brings_what_it_costs(k, cost):
    alpha = diagnose.break_even_acceptance(k, cost)
    if cost > k + 1:
        assert alpha is None
    elif cost > 1:
        assert expected_tokens_per_round(alpha, k) == pytest.approx(cost)
    else:
        assert alpha == 0


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.floats(1.001, 5.9))
def test_the_best_length_is_the_best_of_all_and_no_draft_passes_the_ceiling(kept, cost):
    marginal = [sum(n > place for n in kept) / len(kept) for place in range(5)]
    best = diagnose.best_length(marginal, 5, cost)
    speedups = {k: (1 + sum(marginal[:k])) / (1 + (cost - 1) * k / 5) for k in range(6)}
    assert best.speedup == pytest.approx(max(speedups.values()))
    assert best.speedup == pytest.approx(speedups[best.draft_length])
    assert all(speedups[k] < best.speedup for k in range(best.draft_length))
    assert speedups[5] <= 6 / cost * (1 + 1e-12)
