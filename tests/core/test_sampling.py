"""Logits to probabilities, probabilities to tokens, and the single decisions of the accept rule.

That the rule as a whole is exact is proved in tests/test_exact.py; here stand the edges: zeros, ones, ties, corners of
[0, 1), numbers that are not finite.
"""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draft_models import as_drawn
from speclab.core.accept import accept, accept_from_logits
from speclab.core.rounds import Draft
from speclab.core.sampling import NOT_FINITE, Sampling, draw, draw_draft, draw_next, probability, uniforms
from tests.decoding import reference_probs

NAN, INF = float("nan"), float("inf")
LARGEST_BELOW_1 = math.nextafter(1.0, 0.0)

given_cases = settings(max_examples=80)
number_formats = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])

levels = st.sampled_from([-INF, -1.0, 0.0, 0.5, 2.0, NAN, INF])
finite_logits = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12)
unit_uniforms = st.one_of(
    st.floats(0, 1, exclude_max=True), st.just(0.0), st.just(LARGEST_BELOW_1), st.just(math.nextafter(0.0, 1.0))
)
weight_lists = st.lists(
    st.one_of(st.just(0.0), st.floats(1e-6, 1e6)),  # zeros often
    min_size=1,
    max_size=8,
).filter(any)


def double(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def distribution(weights: list[float]) -> Tensor:
    """(vocab,) float64, summing to 1"""
    return double(weights) / double(weights).sum()


# --- Sampling.probs ---------------------------------------------------------------------------------------------------


@given_cases
@given(
    finite_logits,
    st.sampled_from([0.0, 0.05, 0.5, 1.0, 2.0, 5.0]),
    st.integers(0, 14),
    st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
)
def test_probabilities_are_the_definition(logits, temperature, top_k, top_p):
    """Temperature, then top-k, then top-p with the crossing token. Of ties as many stay as there is room for."""
    greedy = temperature == 0
    everything = math.inf  # a sum reaches 1 where the smallest are lost in rounding
    steps = (1.0, 1, everything) if greedy else (temperature, top_k, everything if top_p == 1 else top_p)
    ordered = sorted(reference_probs(logits, *steps[:2], everything), reverse=True)
    # Where a sum hits top_p to the last bit, rounding decides.
    assume(top_p == 1 or all(abs(mass - top_p) > 1e-9 for mass in itertools.accumulate(ordered)))
    probs = Sampling(temperature, top_k, top_p).probs(double([logits]))[0]
    right = sorted(reference_probs(logits, *steps), reverse=True)
    torch.testing.assert_close(probs.sort(descending=True).values, double(right), rtol=1e-9, atol=1e-300)
    by_logit = [p for _, p in sorted(zip(logits, probs.tolist(), strict=True), reverse=True)]
    assert by_logit == sorted(by_logit, reverse=True), "a token has more than a likelier one"
    assert not greedy or probs.argmax() == logits.index(max(logits)), "the first of the highest"


def test_top_p_at_a_mass_that_is_reached_exactly():
    """(1/2, 1/4, 1/4) at 0.5 and at 0.75: a set that reaches the mass needs no further token."""
    logits = double([[0.25, 0.5, 0.25]]).log()
    assert Sampling(1.0, top_p=0.5).probs(logits).tolist() == [[0, 1, 0]]
    assert (Sampling(1.0, top_p=0.75).probs(logits) > 0).tolist() == [[True, True, False]]


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_the_most_probable_token_stays_in_every_number_format(dtype, wanted):
    """Sampling accepts any top_p above 0 and any temperature. Probabilities have at least the bits of float32."""
    logits = torch.tensor([[1.0, 20.0, 3.0]], dtype=dtype)
    for sampling in (Sampling(1.0, top_p=1e-46), Sampling(5e-324), Sampling(1e-38), Sampling()):
        assert sampling.probs(logits).tolist() == [[0, 1, 0]]
    assert Sampling(0.7, 2, 0.9).probs(logits).dtype == wanted


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(0.5, top_k=2), Sampling(2.0, 2, 0.5)])
@pytest.mark.parametrize("u", [0.0, LARGEST_BELOW_1])
def test_damage_is_noticed_and_a_mask_is_none(sampling, u):
    """NaN and +inf end in NOT_FINITE, also under greedy decoding. -inf forbids a token; here top-k exceeds the rest."""
    damaged = [[0, NAN, 1, 2], [0, INF, 1, 2], [INF, INF, -INF, NAN], [-INF] * 4, [NAN] * 4]
    rows = [*damaged, [-INF, -INF, 1.5, -INF]]
    assert draw(sampling.probs(double(rows)), double([u] * 6)).tolist() == [NOT_FINITE] * 5 + [2]
    weights = [[0.0] * 3, [0.5, NAN, 0.5], [NAN] * 3, [0.5, INF, 0.0], [1e308] * 3, [0.0, 1.0, 0.0]]
    assert draw(double(weights), double([u] * 6)).tolist() == [NOT_FINITE] * 5 + [1]


def test_impossible_settings_are_refused():
    """They would end as NaN far away from their cause."""
    impossible = {"temperature": (-0.1, INF, NAN), "top_k": (-1,), "top_p": (0.0, -0.5, 1.01, NAN)}
    for wrong in ({name: value} for name, values in impossible.items() for value in values):
        with pytest.raises(ValueError, match="must be"):
            Sampling(**wrong)


# --- draw -------------------------------------------------------------------------------------------------------------


@given_cases
@given(weight_lists, unit_uniforms)
def test_draw_returns_tokens_that_have_weight(weights, u):
    """u = 0 gives the first of them; the largest u, which may round up to 1, the last, never an id past the ids."""
    positive = [token for token, weight in enumerate(weights) if weight]
    first, some, last = draw(double([weights] * 3), double([0.0, u, LARGEST_BELOW_1])).tolist()
    assert first == positive[0]
    assert some in positive
    # A last weight below the resolution of the sum has no place on the line; then an earlier one comes out.
    assert last == positive[-1] or (last in positive and weights[positive[-1]] < 1e-9 * sum(weights))


def test_draw_survives_a_uniform_that_rounds_up_to_the_total():
    """Where u * total = total no entry of the CDF is larger; without a clamp an id past the vocabulary comes out."""
    smallest = 5e-324  # half of it and more rounds up to it
    weights = [[0.0, smallest, 0.0], [0.0, 0.0, smallest], [smallest, 0.0, 0.0]]
    assert draw(double(weights), double([0.9, LARGEST_BELOW_1, 0.6])).tolist() == [1, 2, 0]


def test_draw_cuts_half_open():
    """A uniform at a corner belongs to the next token. Dyadic weights, so the corners are exact."""
    weights = double([[0.25, 0.0, 0.5, 0.25]])
    corners = [0.0, 0.25, 0.75]
    assert draw(weights.expand(3, -1), double(corners)).tolist() == [0, 2, 3]
    below = [math.nextafter(c, 0.0) for c in (*corners[1:], 1.0)]
    assert draw(weights.expand(3, -1), double(below)).tolist() == [0, 2, 3]


def test_draw_adds_float32_weights_up_in_float64():
    """In float32, 2^24 + 1 = 2^24: 64 rare tokens behind a likely one would never come out."""
    weights = torch.ones(1, 65)
    weights[0, 0] = 2**24
    tokens = draw(weights.expand(64, -1), (2**24 + torch.arange(64, dtype=torch.float64) + 0.5) / (2**24 + 64))
    assert tokens.tolist() == list(range(1, 65))


# --- accept -----------------------------------------------------------------------------------------------------------


def accept_one(token: int, p: Tensor, q: Tensor | None, u: float, u_next: float = 0.5) -> tuple[int, int]:
    """One drafted token, tested with u. The bonus row is one-hot at 0, so that a bonus token shows as a 0."""
    vocab = len(p)
    bonus = torch.zeros(vocab, dtype=p.dtype)
    bonus[0] = 1
    draft = Draft(torch.tensor([[token]]), torch.tensor([1]), None if q is None else q[None, None])
    verdict = accept(draft, torch.stack([p, bonus])[None], double([[u, u_next]]))
    return verdict.n_accepted.item(), verdict.next_token.item()


def test_the_test_is_strict_and_at_p_over_q():
    """p / q = 1/2 exactly: below it the token stays, at it and above it goes."""
    p, q = double([0.25, 0.25, 0.5]), double([0.25, 0.5, 0.25])
    assert accept_one(1, p, q, u=math.nextafter(0.5, 0.0)) == (1, 0)
    assert accept_one(1, p, q, u=0.5) == (0, 2)  # the residual is all on token 2
    assert accept_one(1, p, q, u=LARGEST_BELOW_1) == (0, 2)
    assert accept_one(2, p, q, u=LARGEST_BELOW_1) == (1, 0)  # p > q: always kept
    sure = double([0.0, 1.0, 0.0])
    assert accept_one(1, sure, sure, u=1.0) == (0, 1)  # rejected without a residual: the target's own token


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given_cases
@given(weight_lists, st.data())
def test_p_equal_to_q_is_never_refused(dtype, weights, data):
    """The draft is the target: every token is kept, up to the largest uniform, so alpha is 1 and not 1 - epsilon."""
    p = distribution(weights).to(dtype)
    token = data.draw(st.sampled_from([i for i, weight in enumerate(p.tolist()) if weight]))
    assert accept_one(token, p, p, LARGEST_BELOW_1) == (1, 0)


@pytest.mark.parametrize("stored", [True, False])
def test_damaged_rows_that_are_used_give_not_finite(stored):
    """NaN compares false, so it looks like an ordinary refusal; the token drawn after it has to say what happened."""
    draft = Draft(torch.tensor([[3, 1]]), torch.tensor([2]), torch.full((1, 2, 4), 0.25).double() if stored else None)
    for damaged in range(3):
        p = torch.full((1, 3, 4), 0.25, dtype=torch.float64)
        p[0, damaged] = NAN
        verdict = accept(draft, p, double([[0.0, 0.0, 0.5]]))
        assert (verdict.n_accepted.item(), verdict.next_token.item()) == (damaged, NOT_FINITE)
    q = torch.full((1, 2, 4), NAN, dtype=torch.float64)
    p = torch.full((1, 3, 4), 0.25, dtype=torch.float64)
    assert accept(dataclasses.replace(draft, probs=q), p, double([[0.0, 0.0, 0.5]])).next_token == NOT_FINITE


# --- randomness and the host ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=3)])
def test_the_probability_of_a_drafted_token_is_the_drafts(sampling):
    """Greedily at temperature 1: a draft stops where that is low."""
    logits = torch.tensor([[0.5, 2.0, -1.0, 1.0]])
    drawn = draw_draft(logits, sampling, torch.tensor([0.99], dtype=torch.float64))
    probs = logits.softmax(-1) if sampling.greedy else sampling.probs(logits)
    assert probability(logits, drawn) == pytest.approx(probs[0, drawn.token[0]].item())


def test_uniforms_come_from_the_generator_and_from_nothing_else():
    """Two runs with one seed give one text; and a library that moved the global state would change its user's runs."""
    cpu, before = torch.device("cpu"), torch.get_rng_state()
    first, other, second = (uniforms((2, 5), torch.Generator().manual_seed(seed), cpu) for seed in (7, 8, 7))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert uniforms((1, 0), torch.Generator(), cpu).shape == (1, 0)
    assert first.dtype == torch.float64  # 32 bits would draw from a coarser law


# --- the draft model's choice -----------------------------------------------------------------------------------------


@given_cases
@given(st.lists(levels, min_size=1, max_size=9), unit_uniforms, st.sampled_from([0.0, 0.7, 1.3]), number_formats)
def test_what_a_draft_and_the_loop_choose_is_a_draw(row, u, temperature, dtype):
    """Greedily both skip the one-hot; among ties, frequent here, they pick what `draw` picks."""
    logits, sampling = double([row]).to(dtype), Sampling(temperature)
    right = draw(sampling.probs(logits), double([u]))
    assert torch.equal(draw_next(logits, sampling, double([u])), right)
    if right != NOT_FINITE:
        token, probs = draw_draft(logits, sampling, double([u]))
        assert torch.equal(token, right)
        assert probs is None if sampling.greedy else torch.equal(probs, sampling.probs(logits))


def test_a_damaged_draft_still_proposes_an_id_that_can_be_fed():
    """-1 would crash the embedding before anyone could say why; the draft carries a mark that `to_host` notices."""
    for sampling in (Sampling(), Sampling(1.0)):
        for damaged in ([0.0, NAN, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF]):
            right = [0.0, 2.0, 1.0]
            good, drawn = (draw_draft(double([row, right]), sampling, double([0.5, 0.5])) for row in (right, damaged))
            for tokens in ([good, drawn], [drawn, good], [drawn, drawn]):
                draft = as_drawn(tokens)
                assert draft.faults.tolist() == [NOT_FINITE, 0]
                assert 0 <= int(draft.tokens.min()) <= int(draft.tokens.max()) < 3


# --- Greedy verification skips the one-hot rows ----------------------------------------------------------------------


@given_cases
@given(st.integers(0, 4), st.integers(2, 5), st.data())
def test_greedy_verification_is_the_accept_rule(n, vocab, data):
    """The shortcut decides what the rule decides on the one-hot rows, for any uniforms and any draft: logits have ties,
    infinities and NaN, some drafted tokens are right, and drafts have probabilities or none."""

    def drawn(elements, *shape: int) -> Tensor:
        numbers = data.draw(st.lists(elements, min_size=math.prod(shape), max_size=math.prod(shape)))
        return double(numbers).reshape(shape)

    logits = drawn(levels, 1, n + 1, vocab)
    right = logits[:, :n].nan_to_num(nan=-INF).argmax(-1)
    tokens = torch.where(drawn(st.booleans(), 1, n) > 0, right, drawn(st.integers(0, vocab - 1), 1, n).long())
    probs = drawn(st.floats(0.01, 1), 1, n, vocab) if data.draw(st.booleans()) else None
    probs = probs / probs.sum(-1, keepdim=True) if probs is not None else None
    draft, u = Draft(tokens, torch.tensor([data.draw(st.integers(0, n))]), probs), drawn(unit_uniforms, 1, n + 1)
    ours, rule = accept_from_logits(draft, logits, Sampling(), u), accept(draft, Sampling().probs(logits), u)
    assert torch.equal(ours.n_accepted, rule.n_accepted)
    assert torch.equal(ours.next_token, rule.next_token)


def test_what_stands_behind_the_drafted_tokens_is_not_compared():
    draft = Draft(torch.tensor([[1, 2, 1]]), torch.tensor([1]))
    assert draft.matching(torch.tensor([[1, 2, 0, 0]])).n_accepted.tolist() == [1]
