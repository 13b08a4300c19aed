"""Logits to probabilities, probabilities to tokens, and the single decisions of the accept rule.

That the rule as a whole is exact is proved in tests/test_exact.py; here stand the edges: zeros, ones, ties, corners of
[0, 1), numbers that are not finite.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draft_models import as_drawn
from speclab.core.accept import accept, accept_from_logits
from speclab.core.rounds import Draft
from speclab.core.sampling import NOT_FINITE, Sampling, draw, draw_draft, draw_next, to_host, uniforms
from speclab.system.errors import EnvironmentProblem

NAN, INF = float("nan"), float("inf")
LARGEST_BELOW_1 = math.nextafter(1.0, 0.0)

given_cases = settings(max_examples=80)
number_formats = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])

finite_logits = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12)
unit_uniforms = st.one_of(
    st.floats(0, 1, exclude_max=True), st.just(0.0), st.just(LARGEST_BELOW_1), st.just(math.nextafter(0.0, 1.0))
)
samplings = st.builds(
    Sampling,
    temperature=st.one_of(st.just(0.0), st.floats(0.05, 5)),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.01, 1),
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
@given(finite_logits, samplings)
def test_rows_are_distributions(logits, sampling):
    """A row that does not sum to 1 scales every acceptance test against the other model's rows."""
    probs = sampling.probs(double([logits, logits[::-1]]))
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(-1), torch.ones(2, dtype=torch.float64), rtol=1e-12, atol=0)


@given_cases
@given(finite_logits, st.integers(0, 14), st.floats(0.01, 1))
def test_temperature_0_is_the_one_hot_of_the_argmax(logits, top_k, top_p):
    """Greedy decoding rests on it: one token has the whole mass, the first of the highest, whatever the filters say."""
    probs = Sampling(0.0, top_k, top_p).probs(double([logits]))[0]
    assert probs.tolist() == [float(i == logits.index(max(logits))) for i in range(len(logits))]


@given_cases
@given(finite_logits, st.floats(0.05, 5))
def test_temperature_divides_the_logits(logits, temperature):
    """Multiplying instead, or forgetting it, changes every sampled text."""
    weights = np.exp((np.array(logits) - max(logits)) / temperature)
    torch.testing.assert_close(
        Sampling(temperature).probs(double([logits]))[0],
        torch.from_numpy(weights / weights.sum()),
        rtol=1e-9,
        atol=1e-300,
    )


@given_cases
@given(finite_logits, st.floats(0.5, 2), st.integers(1, 14))
def test_top_k_keeps_the_k_most_probable(logits, temperature, top_k):
    """Also among ties exactly k tokens stay, and their ratios do not change."""
    full = Sampling(temperature).probs(double([logits]))[0]
    probs = Sampling(temperature, top_k=top_k).probs(double([logits]))[0]
    kept = probs > 0
    assert kept.sum() == min(top_k, len(logits))
    if not kept.all():
        assert full[kept].min() >= full[~kept].max()
    torch.testing.assert_close(probs[kept], full[kept] / full[kept].sum(), rtol=1e-9, atol=0)


@given_cases
@given(finite_logits, st.floats(0.5, 2), st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(logits, temperature, top_p):
    """The crossing token belongs to the set: without it the kept mass is below top_p."""
    full = Sampling(temperature).probs(double([logits]))[0]
    ordered = full.sort(descending=True).values.cumsum(-1)
    assume((ordered - top_p).abs().min() > 1e-9)  # where a sum hits top_p to the last bit, rounding decides
    probs = Sampling(temperature, top_p=top_p).probs(double([logits]))[0]
    kept = probs > 0
    assert full[kept].sum() >= top_p
    assert full[kept].sum() - full[kept].min() < top_p
    if not kept.all():
        assert full[kept].min() >= full[~kept].max()
    torch.testing.assert_close(probs[kept], full[kept] / full[kept].sum(), rtol=1e-9, atol=0)


def test_top_p_at_a_mass_that_is_reached_exactly():
    """(1/2, 1/4, 1/4) at 0.5 and at 0.75: a set that reaches the mass needs no further token."""
    logits = double([[0.25, 0.5, 0.25]]).log()
    assert Sampling(1.0, top_p=0.5).probs(logits).tolist() == [[0, 1, 0]]
    assert (Sampling(1.0, top_p=0.75).probs(logits) > 0).tolist() == [[True, True, False]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("top_p", [1e-2, 1e-9, 1e-30])
def test_tiny_top_p_keeps_exactly_one(dtype, top_p):
    """The most probable token stays however small top_p is; an empty set would be a division by zero."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=dtype)
    probs = Sampling(1.0, top_p=top_p).probs(logits)
    assert torch.equal(probs, torch.nn.functional.one_hot(logits.argmax(-1), 40).to(dtype))


def test_top_p_below_the_smallest_float32_keeps_one():
    """Sampling accepts any top_p above 0, so it has to work with it."""
    assert Sampling(1.0, top_p=1e-46).probs(torch.tensor([[1.0, 2.0]])).tolist() == [[0, 1]]


def test_temperature_near_0_is_the_greedy_limit():
    """Sampling accepts any finite temperature of 0 or more, so it has to work with it."""
    for temperature in (1e-38, 1e-300, 5e-324):
        assert Sampling(temperature).probs(torch.tensor([[1.0, 20.0]])).tolist() == [[0, 1]]


def test_filters_come_after_temperature_and_top_p_after_top_k():
    """Another order keeps another set: top-p sees what temperature and top-k have left, renormalised."""
    logits = double([[0.4, 0.3, 0.2, 0.1]]).log()
    # Top-k first: (4/7, 3/7), and 4/7 reaches 0.55. Top-p first: 0.4 does not, so two tokens would stay.
    assert Sampling(1.0, top_k=2, top_p=0.55).probs(logits).tolist() == [[1, 0, 0, 0]]
    # At temperature 0.5 the masses are 16, 9, 4, 1 of 30, so 0.5 is reached by one; at temperature 1 by two.
    assert Sampling(0.5, top_p=0.5).probs(logits).tolist() == [[1, 0, 0, 0]]
    assert (Sampling(1.0, top_p=0.5).probs(logits) > 0).tolist() == [[True, True, False, False]]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7), Sampling(0.7, 3, 0.9)])
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_dtypes(sampling, dtype, wanted):
    """Eight bits of mantissa are too few for probabilities, and float64 must not be thrown away."""
    logits = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0)).to(dtype)
    probs = sampling.probs(logits)
    assert probs.dtype == wanted
    assert probs.shape == logits.shape
    assert torch.equal(probs, sampling.probs(logits.to(wanted)))


ALL_SAMPLINGS = [
    Sampling(),
    Sampling(0, 2, 0.5),
    Sampling(1.0),
    Sampling(0.5, top_k=2),
    Sampling(0.5, top_p=0.5),
    Sampling(2.0, 2, 0.5),
]


@pytest.mark.parametrize("sampling", ALL_SAMPLINGS)
@pytest.mark.parametrize("logits", [[0, NAN, 1, 2], [0, INF, 1, 2], [INF, INF, -INF, NAN], [-INF] * 4, [NAN] * 4])
@pytest.mark.parametrize("u", [0.0, 0.5, LARGEST_BELOW_1])
def test_logits_that_are_not_finite_end_in_not_finite(sampling, logits, u):
    """Damaged weights must be noticed, also under greedy decoding, where an argmax would quietly return something."""
    healthy = [3.0, 1.0, 2.0, 0.0]  # the row beside it must not suffer
    tokens = draw(sampling.probs(double([logits, healthy])), double([u, 0.0]))
    assert tokens.tolist() == [NOT_FINITE, 0]


@pytest.mark.parametrize("sampling", ALL_SAMPLINGS)
@pytest.mark.parametrize("u", [0.0, 0.5, LARGEST_BELOW_1])
def test_minus_infinity_forbids_a_token_and_nothing_else(sampling, u):
    """Masks are written as -inf; they must not look like damage. Here top-k even exceeds what is left."""
    token = draw(sampling.probs(double([[-INF, -INF, 1.5, -INF]])), double([u]))
    assert token.tolist() == [2]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -0.1}, {"temperature": INF}, {"temperature": NAN}, {"top_k": -1}]
    + [{"top_p": top_p} for top_p in (0.0, -0.5, 1.01, NAN)],
)
def test_impossible_settings_are_refused(wrong):
    """They would end as NaN far away from their cause."""
    with pytest.raises(ValueError, match="must be"):
        Sampling(**wrong)


# --- draw -------------------------------------------------------------------------------------------------------------


@given_cases
@given(weight_lists, unit_uniforms)
def test_draw_returns_tokens_that_have_weight(weights, u):
    """A token of weight zero is impossible under the target: emitting it once breaks losslessness."""
    token = draw(double([weights]), double([u])).item()
    assert token != NOT_FINITE
    assert weights[token] > 0


@given_cases
@given(weight_lists)
def test_draw_at_the_ends_of_the_unit_interval(weights):
    """u = 0 gives the first token with weight; the largest u, which may round up to 1, gives the last, never a pad."""
    positive = [token for token, weight in enumerate(weights) if weight]
    assert draw(double([weights] * 2), double([0.0, LARGEST_BELOW_1])).tolist()[0] == positive[0]
    # A last weight below the resolution of the sum has no place on the line; then an earlier one comes out.
    last = draw(double([weights]), double([LARGEST_BELOW_1])).item()
    assert last == positive[-1] or weights[positive[-1]] < 1e-9 * sum(weights)


def test_draw_survives_a_uniform_that_rounds_up_to_the_total():
    """Where u * total = total no entry of the CDF is larger; without a clamp an id past the vocabulary comes out."""
    smallest = 5e-324  # half of it and more rounds up to it
    weights = [[0.0, smallest, 0.0], [0.0, 0.0, smallest], [smallest, 0.0, 0.0]]
    assert draw(double(weights), double([0.9, LARGEST_BELOW_1, 0.6])).tolist() == [1, 2, 0]
    scaled = double([[0.1, 0.1, 0.1, 0.0, 0.0]]) * torch.linspace(0.1, 10, 500, dtype=torch.float64)[:, None]
    assert set(draw(scaled, torch.full((500,), LARGEST_BELOW_1, dtype=torch.float64)).tolist()) == {2}


def test_draw_cuts_half_open():
    """A uniform at a corner belongs to the next token. Dyadic weights, so the corners are exact."""
    weights = double([[0.25, 0.0, 0.5, 0.25]])
    corners = [0.0, 0.25, 0.75]
    assert draw(weights.expand(3, -1), double(corners)).tolist() == [0, 2, 3]
    below = [math.nextafter(c, 0.0) for c in (*corners[1:], 1.0)]
    assert draw(weights.expand(3, -1), double(below)).tolist() == [0, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [2.0**-60, 2.0**-3, 2.0**60])
def test_draw_needs_no_normalised_weights(scale, dtype):
    """The residual is handed over as it is; a draw that expected mass 1 would favour the last token."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(200, 7, generator=generator, dtype=dtype)
    u = torch.rand(200, generator=generator, dtype=torch.float64)
    tokens = draw(weights, u)
    assert torch.equal(draw(weights * scale, u), tokens)  # a power of two changes no bit but the exponent's
    assert len(tokens.unique()) == 7


def test_draw_adds_float32_weights_up_in_float64():
    """In float32, 2^24 + 1 = 2^24: 64 rare tokens behind a likely one would never come out."""
    weights = torch.ones(1, 65)
    weights[0, 0] = 2**24
    tokens = draw(weights.expand(64, -1), (2**24 + torch.arange(64, dtype=torch.float64) + 0.5) / (2**24 + 64))
    assert tokens.tolist() == list(range(1, 65))


@pytest.mark.parametrize(
    "weights", [[0.0, 0.0, 0.0], [0.5, NAN, 0.5], [NAN] * 3, [0.5, INF, 0.0], [1e308, 1e308, 1e308]]
)
@pytest.mark.parametrize("u", [0.0, 0.3, LARGEST_BELOW_1])
def test_mass_that_is_zero_or_not_finite_gives_not_finite(weights, u):
    """Any id instead would be an ordinary token that nobody drew."""
    assert draw(double([weights, [0.0, 1.0, 0.0]]), double([u, u])).tolist() == [NOT_FINITE, 1]


# --- accept -----------------------------------------------------------------------------------------------------------


def accept_one(token: int, p: Tensor, q: Tensor | None, u: float, u_next: float = 0.5) -> tuple[int, int]:
    """One drafted token, tested with u. The bonus row is one-hot at 0, so that a bonus token shows as a 0."""
    vocab = len(p)
    bonus = torch.zeros(vocab, dtype=p.dtype)
    bonus[0] = 1
    draft = Draft(torch.tensor([[token]]), torch.tensor([1]), None if q is None else q[None, None])
    verdict = accept(draft, torch.stack([p, bonus])[None], double([[u, u_next]]))
    return verdict.n_accepted.item(), verdict.next_token.item()


def test_a_token_the_target_forbids_is_refused_even_at_u_0():
    """0 < 0 is false: with <= in its place a forbidden token gets through once in 2^53 draws, or always if u is 0."""
    p = double([0.0, 0.5, 0.5])
    assert accept_one(0, p, double([0.0, 1.0, 0.0]), u=0.0)[0] == 0  # q = 0 as well: a division would be 0 / 0
    assert accept_one(0, p, double([1.0, 0.0, 0.0]), u=0.0)[0] == 0
    assert accept_one(0, p, None, u=0.0)[0] == 0


def test_the_test_is_strict_and_at_p_over_q():
    """p / q = 1/2 exactly: below it the token stays, at it and above it goes."""
    p, q = double([0.25, 0.25, 0.5]), double([0.25, 0.5, 0.25])
    assert accept_one(1, p, q, u=math.nextafter(0.5, 0.0)) == (1, 0)
    assert accept_one(1, p, q, u=0.5) == (0, 2)  # the residual is all on token 2
    assert accept_one(1, p, q, u=LARGEST_BELOW_1) == (0, 2)
    assert accept_one(2, p, q, u=LARGEST_BELOW_1) == (1, 0)  # p > q: always kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given_cases
@given(weight_lists, st.data())
def test_p_equal_to_q_is_never_refused(dtype, weights, data):
    """The draft is the target: every token is kept, up to the largest uniform, so alpha is 1 and not 1 - epsilon."""
    p = distribution(weights).to(dtype)
    token = data.draw(st.sampled_from([i for i, weight in enumerate(p.tolist()) if weight]))
    assert accept_one(token, p, p, LARGEST_BELOW_1) == (1, 0)


@given_cases
@given(weight_lists, st.data())
def test_no_uniforms_emit_a_token_of_probability_zero(weights, data):
    """Three drafts, any q, any uniforms, stored or one-hot: nothing the target forbids gets out."""
    vocab, n = len(weights), 3
    rows = st.lists(st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.0]), min_size=vocab, max_size=vocab).filter(any)
    target = torch.stack([distribution(weights)] + [distribution(data.draw(rows)) for _ in range(n)])
    tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=n, max_size=n))
    stored = data.draw(st.booleans())
    q = torch.stack([distribution(data.draw(rows)) for _ in range(n)])[None] if stored else None
    u = data.draw(st.lists(unit_uniforms, min_size=n + 1, max_size=n + 1))
    verdict = accept(Draft(torch.tensor([tokens]), torch.tensor([n]), q), target[None], double([u]))
    emitted = [*tokens[: verdict.n_accepted.item()], verdict.next_token.item()]
    assert emitted[-1] != NOT_FINITE
    assert all(target[i, token] > 0 for i, token in enumerate(emitted))


def test_a_refused_token_of_one_hot_drafts_does_not_come_back():
    """The residual of a one-hot is p without the token; had it been p, the token would get a second chance."""
    p = double([0.25, 0.5, 0.25])
    for u_next in (0.0, 0.3, 0.49, 0.51, 0.7, LARGEST_BELOW_1):
        assert accept_one(1, p, None, u=0.5, u_next=u_next) == (0, 0 if u_next < 0.5 else 2)


def test_everything_behind_a_refusal_is_dropped():
    """Passes behind a refusal do not count: tests pass, fail, pass; one token is kept."""
    p = double([0.5, 0.5]).expand(1, 4, 2).clone()
    p[0, 1] = double([1.0, 0.0])  # forbids the second draft
    verdict = accept(Draft(torch.tensor([[1, 1, 1]]), torch.tensor([3])), p, double([[0.0, 0.0, 0.0, 0.5]]))
    assert (verdict.n_accepted.item(), verdict.next_token.item()) == (1, 0)


def test_token_0_is_a_token_like_any_other():
    """Renaming the tokens renames the verdict: id 0 is neither padding nor "no token"."""
    generator = torch.Generator().manual_seed(3)
    batch, n, vocab = 300, 3, 4
    p = torch.rand(batch, n + 1, vocab, generator=generator, dtype=torch.float64).softmax(-1)
    tokens = torch.randint(0, vocab, (batch, n), generator=generator)
    u = torch.rand(batch, n + 1, generator=generator, dtype=torch.float64)
    size = torch.full((batch,), n)
    kept = []
    for shift in range(vocab):  # token x is called x + shift; the same uniforms test the same tokens
        verdict = accept(Draft((tokens + shift) % vocab, size), p.roll(shift, dims=-1), u)
        kept.append(verdict.n_accepted)
        assert (verdict.next_token == 0).any()
    assert all(torch.equal(n_accepted, kept[0]) for n_accepted in kept)
    assert set(kept[0].tolist()) == {0, 1, 2, 3}


def test_without_residual_mass_the_next_token_comes_from_p():
    """p and q agree but for the last bit at the drafted token: it is refused, and max(0, p - q) is zero everywhere."""
    p = double([0.5, 0.25, 0.25])
    q = p.clone()
    q[2] = math.nextafter(0.25, 1.0)
    assert accept_one(2, p, q, LARGEST_BELOW_1, u_next=0.6) == (0, 1)


def test_one_hot_drafts_need_no_storage():
    """probs=None means exactly the one-hot: both spellings give the same verdict."""
    generator = torch.Generator().manual_seed(4)
    batch, n, vocab = 400, 3, 3
    p = torch.rand(batch, n + 1, vocab, generator=generator, dtype=torch.float64).softmax(-1)
    tokens = torch.randint(0, vocab, (batch, n), generator=generator)
    size = torch.randint(0, n + 1, (batch,), generator=generator)
    u = torch.rand(batch, n + 1, generator=generator, dtype=torch.float64)
    stored = torch.nn.functional.one_hot(tokens, vocab).double()
    bare, full = accept(Draft(tokens, size), p, u), accept(Draft(tokens, size, stored), p, u)
    assert torch.equal(bare.n_accepted, full.n_accepted)
    assert torch.equal(bare.next_token, full.next_token)
    assert set(bare.n_accepted.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("damaged_row", [0, 1, 2])
def test_a_damaged_target_row_that_is_used_gives_not_finite(damaged_row, stored):
    """NaN compares false, so it looks like an ordinary refusal; the token drawn after it has to say what happened."""
    p = torch.full((1, 3, 4), 0.25, dtype=torch.float64)
    p[0, damaged_row] = NAN
    q = torch.full((1, 2, 4), 0.25, dtype=torch.float64) if stored else None
    verdict = accept(Draft(torch.tensor([[3, 1]]), torch.tensor([2]), q), p, double([[0.0, 0.0, 0.5]]))
    assert verdict.n_accepted.item() == damaged_row
    assert verdict.next_token.item() == NOT_FINITE


def test_damaged_draft_rows_give_not_finite():
    """A draft model with damaged weights is reported as well, not silently corrected."""
    q = torch.full((1, 1, 4), NAN, dtype=torch.float64)
    p = torch.full((1, 2, 4), 0.25, dtype=torch.float64)
    assert accept(Draft(torch.tensor([[3]]), torch.tensor([1]), q), p, double([[0.0, 0.5]])).next_token == NOT_FINITE


@pytest.mark.parametrize("stored", [True, False])
def test_greedy_accepts_the_argmax_and_corrects_to_it(stored):
    """At temperature 0 the verdict must not depend on the uniforms at all."""
    logits = torch.randn(50, 4, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    best = logits.argmax(-1)  # (50, 4)
    tokens = best[:, :3].clone()
    wrong_at = torch.arange(50) % 4  # 3: none is wrong
    for row in range(50):
        if wrong_at[row] < 3:
            tokens[row, wrong_at[row]] = (tokens[row, wrong_at[row]] + 1) % 6
    probs = torch.nn.functional.one_hot(tokens, 6).double() if stored else None
    for u in (0.0, 0.5, LARGEST_BELOW_1):
        chances = torch.full((50, 4), u, dtype=torch.float64)
        verdict = accept(Draft(tokens, torch.full((50,), 3), probs), Sampling().probs(logits), chances)
        assert torch.equal(verdict.n_accepted, wrong_at)
        assert torch.equal(verdict.next_token, best[torch.arange(50), wrong_at])


# --- randomness and the host ------------------------------------------------------------------------------------------


def test_uniforms_come_from_the_generator_and_from_nothing_else():
    """Two runs with one seed give one text; and a library that moved the global state would change its user's runs."""
    cpu = torch.device("cpu")
    generator = torch.Generator().manual_seed(7)
    before = torch.get_rng_state()
    first, second = uniforms((2, 5), generator, cpu), uniforms((2, 5), generator, cpu)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(12345)  # must not matter to the generator
    generator.manual_seed(7)
    assert torch.equal(uniforms((2, 5), generator, cpu), first)
    torch.set_rng_state(before)
    assert not torch.equal(first, second)
    assert first.shape == (2, 5)
    assert first.dtype == torch.float64
    assert uniforms((1, 0), generator, cpu).shape == (1, 0)


def test_uniforms_fill_the_unit_interval():
    """In [0, 1): a 1 would be outside every box, a wrong range would bias every test. Bounds far beyond 1e-6 chance."""
    u = uniforms((20000,), torch.Generator().manual_seed(8), torch.device("cpu"))
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u, 10, 0, 1)
    assert (counts - 2000).abs().max() < 6 * math.sqrt(1800)
    assert len(u.unique()) == 20000  # 53 bits: float32 draws would repeat about a dozen times


def test_to_host_reports_what_is_not_finite():
    """The decoders have one place where damage is noticed; -1 must not get past it into a text."""
    assert to_host(torch.tensor([0, 5, 3])) == [0, 5, 3]
    assert to_host(torch.empty(0, dtype=torch.long)) == []
    with pytest.raises(EnvironmentProblem, match="not finite"):
        to_host(torch.tensor([4, NOT_FINITE, 2]))


# --- the draft model's choice -----------------------------------------------------------------------------------------


@given_cases
@given(st.lists(st.sampled_from([-INF, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=9), unit_uniforms)
def test_the_greedy_shortcut_is_a_draw(logits, u):
    """The shortcut skips the one-hot; among ties (frequent here) it must still pick what `draw` picks."""
    assume(max(logits) > -INF)
    row = double([logits])
    token, probs, _ = draw_draft(row, Sampling(), double([u]))
    assert probs is None
    assert torch.equal(token, draw(Sampling().probs(row), double([u])))


def test_the_greedy_shortcut_is_a_draw_on_random_logits():
    """The same on wide rows, in the dtypes that models have."""
    logits = torch.randn(200, 1000, generator=torch.Generator().manual_seed(10))
    for dtype in (torch.float64, torch.float32, torch.bfloat16):  # in bfloat16 many maxima are ties
        for row in logits.to(dtype).split(50):
            token = draw_draft(row, Sampling(), torch.rand(50, generator=torch.Generator().manual_seed(11))).token
            assert torch.equal(token, draw(Sampling().probs(row), torch.zeros(50, dtype=torch.float64)))


@pytest.mark.parametrize("sampling", [Sampling(0.7), Sampling(1.3, 5, 0.8)])
def test_a_sampled_draft_reports_what_it_was_drawn_from(sampling):
    """The accept rule divides by these probabilities; any others make it inexact."""
    generator = torch.Generator().manual_seed(12)
    logits = torch.randn(50, 20, generator=generator, dtype=torch.float64)
    u = torch.rand(50, generator=generator, dtype=torch.float64)
    token, probs, _ = draw_draft(logits, sampling, u)
    assert torch.equal(probs, sampling.probs(logits))
    assert torch.equal(token, draw(probs, u))


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
            assert as_drawn([drawn], torch.tensor([0, 1])).faults.tolist() == [0, 0], "a token that does not count"
    large = draw_draft(torch.tensor([[0.0, 3e38]]), Sampling(), double([0.5]))
    assert as_drawn([large, large]).faults.tolist() == [0], "the sum of two is infinite, and neither is"


# --- Greedy verification skips the one-hot rows ----------------------------------------------------------------------

levels = st.sampled_from([-INF, -1.0, 0.0, 0.5, 2.0, NAN, INF])


@st.composite
def greedy_rounds(draw_):
    """Logits with ties, infinities and NaN; drafted tokens, some of them right; a size; draft probabilities or none."""
    n, vocab = draw_(st.integers(0, 4)), draw_(st.integers(2, 5))
    logits = double(draw_(st.lists(st.lists(levels, min_size=vocab, max_size=vocab), min_size=n + 1, max_size=n + 1)))
    right = logits.nan_to_num(nan=-INF).argmax(-1)[:n]
    other = torch.tensor(draw_(st.lists(st.integers(0, vocab - 1), min_size=n, max_size=n)), dtype=torch.long)
    keep = torch.tensor(draw_(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=torch.bool)
    tokens = torch.where(keep, right, other)[None]
    size = torch.tensor([draw_(st.integers(0, n))])
    weights = draw_(
        st.none() | st.lists(st.lists(st.floats(0.01, 1), min_size=vocab, max_size=vocab), min_size=n, max_size=n)
    )
    probs = double([weights]).reshape(1, n, vocab) if weights is not None else None
    probs = probs / probs.sum(-1, keepdim=True) if probs is not None else None
    u = double([draw_(st.lists(unit_uniforms, min_size=n + 1, max_size=n + 1))])
    return Draft(tokens, size, probs), logits[None], u


@given_cases
@given(greedy_rounds())
def test_greedy_verification_is_the_accept_rule(case):
    """The shortcut decides what the rule decides on the one-hot rows, for any uniforms and any draft."""
    draft, logits, u = case
    ours, rule = accept_from_logits(draft, logits, Sampling(), u), accept(draft, Sampling().probs(logits), u)
    assert torch.equal(ours.n_accepted, rule.n_accepted)
    assert torch.equal(ours.next_token, rule.next_token)


@given_cases
@given(st.lists(levels, min_size=1, max_size=7), unit_uniforms, st.sampled_from([0.0, 0.7, 1.3]), number_formats)
def test_the_next_token_is_a_draw(row, u, temperature, dtype):
    logits, sampling = double([row]).to(dtype), Sampling(temperature)
    assert torch.equal(draw_next(logits, sampling, double([u])), draw(sampling.probs(logits), double([u])))
