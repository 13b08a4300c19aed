"""The four answers: each is given for what it is about, and its numbers are those that were measured."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import diagnosis
from speclab.extensions.servers.diagnosis import COST, LOAD, NOTHING, REJECTED, UNKNOWN, diagnose
from speclab.extensions.servers.measured import Measured
from speclab.extensions.servers.vllm.server_record import EngineCounts

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
        (Measured(accept_length=1.1, draft_length=4, plain_seconds=0.02, seconds=0.03), REJECTED),
    ],
)
def test_the_answer(found, answer):
    assert diagnose(found).answer == answer


RATES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(RATES, st.floats(0.5, 20), st.integers(0, 40))
def test_what_is_faster_has_nothing_wrong_and_nothing_else_has(rates, cost, n_running):
    found = of(rates, cost, n_running=n_running)
    answer = diagnose(found).answer
    assert (answer == NOTHING) == (found.tokens_per_round / found.round_cost >= diagnosis.FASTER)
    assert answer != UNKNOWN
    assert answer != LOAD or n_running >= diagnosis.LOADED


@given(RATES, st.floats(1.1, 20))
def test_a_better_draft_never_turns_cost_into_rejection(rates, cost):
    """What is accepted more often is not rejected more often."""
    better = [min(1, rate + 0.2) for rate in rates]
    if diagnose(of(rates, cost)).answer == COST:
        assert diagnose(of(better, cost)).answer in (COST, NOTHING)


def test_a_lookup_that_seldom_drafts_is_neither_rejected_nor_dear():
    """As a lookup of llama-server was measured on chat prompts: 1.18 tokens a round at 1.15 plain tokens."""
    counts = EngineCounts(n_drafts=100, n_drafted=800, n_accepted=150, accepted_at=[75, 75, 0, 0, 0, 0, 0, 0])
    seldom = Measured(counts=counts, n_rounds=1000, n_tokens=1150, draft_length=8, plain_seconds=0.02, seconds=0.0195)
    assert seldom.drafting_share == 0.1
    found = diagnose(seldom)
    assert (found.answer, "90% of the rounds drafted nothing" in found.numbers[0]) == (NOTHING, True)
    assert diagnose(replace(seldom, seconds=0.04)).answer == COST, "it does little, and that costs a lot"


def test_what_is_expected_of_another_length_counts_the_rounds_without_drafts():
    counts = EngineCounts(n_drafts=500, n_drafted=1000, n_accepted=500, accepted_at=[500, 0])
    found = Measured(counts=counts, n_rounds=1000, n_tokens=1500, draft_length=2, plain_seconds=1.0, seconds=1.4 / 1.5)
    assert found.round_cost == pytest.approx(1.4)
    assert "k = 1" in diagnose(found).then
    assert f"{1.5 / 1.2:.2f}x" in diagnose(found).then


def test_a_length_is_advised_only_where_it_is_expected_to_pay():
    assert diagnose(of((0.75, 0.7, 0.65, 0.6, 0.55, 0.5, *[0.4] * 6), 3.1)).then.startswith("k = ")
    assert not diagnose(of((0.9, 0.9), 3.5)).then.startswith("k = ")


def test_the_numbers_are_the_measured_ones():
    found = of((0.5, 0.5), 2.0)
    assert found.tokens_per_round == pytest.approx(1.75)
    assert found.round_cost == pytest.approx(2.0)
    assert "1.75" in "".join(diagnose(found).numbers)
    assert "2.00" in "".join(diagnose(found).numbers)
