"""The martingale statistics: quiet on lossless output, loud on the two commonest mistakes."""

import math

import pytest
import torch
from scipy.stats import binom, chi2
from torch import Tensor

from speclab.core.accept import accept
from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling, draw
from speclab.theory.losslessness import RESOLVED, Z_BOUND, ZStatistics, z_of, z_statistics

VOCAB = 50


def random_logits(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Target's and draft's, (n, vocab) each; the draft is the target with noise, as a real one is."""
    generator = torch.Generator().manual_seed(seed)
    target = 2 * torch.randn(n, VOCAB, generator=generator, dtype=torch.float64)
    return target, target + torch.randn(n, VOCAB, generator=generator, dtype=torch.float64)


def uniforms(n: int, seed: int) -> Tensor:
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def judged(tokens: Tensor, p: Tensor, q: Tensor) -> ZStatistics:
    return z_statistics([(tokens, p, q, p > 0)])


def speculated(p: Tensor, q: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The first token of a round of one draft, by the production rule, and whether the draft was kept."""
    drafted = draw(q, uniforms(len(q), seed))[:, None]
    target = torch.stack([p, p], dim=1)  # the second row is for the bonus token, which is not looked at
    u = torch.stack([uniforms(len(p), seed + 1), uniforms(len(p), seed + 2)], dim=1)
    verdict = accept(Draft(drafted, torch.ones(len(p), dtype=torch.long), q[:, None]), target, u)
    kept = verdict.n_accepted == 1
    return torch.where(kept, drafted[:, 0], verdict.next_token), kept


def test_quiet_on_tokens_of_the_target():
    """A false alarm here would accuse correct decoders. Drawn from p itself, then through the accept rule."""
    p, q = (Sampling(1.0).probs(logits) for logits in random_logits(6000, 0))
    honest = judged(draw(p, uniforms(6000, 100)), p, q)
    assert honest.passed
    assert honest.n_tokens == 6000
    tokens, kept = speculated(p, q, 200)
    assert 0.2 < kept.double().mean() < 0.9  # both branches of the rule have been seen
    assert judged(tokens, p, q).passed


def test_both_are_standard_normal_even_for_dependent_tokens():
    """400 texts whose distributions depend on their last token: mean 0 and variance 1, each within 1e-6 odds.

    A variance that is wrong by a third would move every verdict and would not show in a single text.
    """
    n_texts, length = 400, 60
    logits = random_logits(VOCAB, 1)
    p_table, q_table = (Sampling(1.0).probs(rows) for rows in logits)  # row: distribution after that token
    state, places, tokens = torch.zeros(n_texts, dtype=torch.long), [], []
    for step in range(length):
        places.append(state)
        state = draw(p_table[state], uniforms(n_texts, 1000 + step))
        tokens.append(state)
    at, emitted = torch.stack(places, dim=1), torch.stack(tokens, dim=1)  # (n_texts, length)
    z = [judged(emitted[i], p_table[at[i]], q_table[at[i]]) for i in range(n_texts)]
    low, high = chi2.ppf([2.5e-7, 1 - 2.5e-7], n_texts)
    for values in ([one.residual for one in z], [one.surprise for one in z]):
        assert low < sum(value**2 for value in values) < high
        assert abs(sum(values)) < 5.1 * math.sqrt(n_texts)


def test_loud_when_rejections_are_resampled_from_the_target():
    """The commonest bug: after a rejection the token comes from p, not from the residual. z_S sees it, upwards."""
    p, q = (Sampling(1.0).probs(logits) for logits in random_logits(6000, 0))
    drafted, u = draw(q, uniforms(6000, 300)), uniforms(6000, 400)
    row = torch.arange(6000)
    kept = u * q[row, drafted] < p[row, drafted]
    wrong = judged(torch.where(kept, drafted, draw(p, uniforms(6000, 500))), p, q)
    assert wrong.residual > Z_BOUND
    assert not wrong.passed


K5 = Sampling(1.2, top_k=5)
OTHER_LAWS = [  # what tokens were drawn from, the law that was asked for, and the sign of z_L
    (Sampling(0.8), Sampling(1.0), -1),
    (Sampling(1.25), Sampling(1.0), 1),
    (Sampling(1.2, top_k=4), K5, -1),  # the last token of the filter is missing
    (Sampling(1.2, top_k=6), K5, math.inf),  # impossible tokens
]


@pytest.mark.parametrize(("drawn", "asked", "sign"), OTHER_LAWS)
def test_loud_when_top_k_is_off_by_one_or_the_temperature_is_another(drawn, asked, sign):
    logits, draft_logits = random_logits(3000, 7)
    z = judged(draw(drawn.probs(logits), uniforms(3000, 700)), asked.probs(logits), asked.probs(draft_logits))
    assert sign * z.surprise > Z_BOUND
    assert math.isinf(z.surprise) == math.isinf(sign)
    assert not z.passed


@pytest.mark.parametrize("spread", [True, False])
def test_one_impossible_token_is_infinite_evidence(spread):
    """Among 1000 honest tokens as among greedy ones, where nothing varies: it must not be averaged away."""
    p, q = (Sampling(1.0 if spread else 0.0, top_k=10).probs(logits) for logits in random_logits(1000, 9))
    tokens = draw(p, uniforms(1000, 900))
    assert judged(tokens, p, q).passed
    tokens[500] = p[500].argmin()
    assert p[500, tokens[500]] == 0
    assert judged(tokens, p, q).surprise == math.inf
    honest = draw(p, uniforms(1000, 901))  # texts afterwards that do not heal it
    found = z_statistics([(tokens, p, q, p > 0), (honest, p, q, p > 0)])
    assert found.surprise == math.inf
    assert not found.passed


def test_greedy_output_that_agrees_is_silent():
    """Nothing varies, so 0 / 0: two zeros and not NaN, which would compare false and look like a failure."""
    p, q = (Sampling().probs(logits) for logits in random_logits(200, 10))
    assert judged(p.argmax(-1), p, q) == ZStatistics(0.0, 0.0, 200, 0)
    assert z_statistics([]) == ZStatistics(0.0, 0.0, 0, 0)


def test_hand_computed():
    """p = (1/4, 3/4), q = (3/4, 1/4), tokens 0, 0, 1: token 0 is the one the draft likes more."""
    p, q = torch.tensor([[0.25, 0.75]] * 3), torch.tensor([[0.75, 0.25]] * 3)
    z = judged(torch.tensor([0, 0, 1]), p, q)
    assert z.residual == pytest.approx(
        straightened((2 - 0.75) / math.sqrt(3 * 0.25 * 0.75), 0.5 / math.sqrt(0.1875 * 3))
    )
    entropy = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    variance = 0.25 * math.log(0.25) ** 2 + 0.75 * math.log(0.75) ** 2 - entropy**2
    seen = -2 * math.log(0.25) - math.log(0.75)
    third = 0.25 * (-math.log(0.25) - entropy) ** 3 + 0.75 * (-math.log(0.75) - entropy) ** 3
    z_l = (seen - 3 * entropy) / math.sqrt(3 * variance)
    assert z.surprise == pytest.approx(straightened(z_l, 3 * third / (3 * variance) ** 1.5))


def straightened(z: float, skewness: float) -> float:
    """The w of z = w + skewness * (w * w - 1) / 6, by bisection."""
    low, high = -10.0, 10.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if middle + skewness * (middle**2 - 1) / 6 < z else (low, middle)
    return low


@pytest.mark.parametrize("z", [(5.0, 0.0), (0.0, -5.0), (0.0, math.nan)])
def test_verdict_is_two_sided_and_needs_all(z):
    """Too few liked tokens are as wrong as too many; and NaN is no pass."""
    assert ZStatistics(4.8, -4.8, 1, 0).passed
    assert not ZStatistics(*z, 1, 0).passed


@pytest.mark.parametrize("expected", [0.01, 0.64, 30])
def test_the_bound_holds_for_rare_events_too(expected):
    """What lies beyond the bound has a probability of at most 6e-7 on either side, exactly, of independent events."""
    n = 1000  # places
    counts = range(n)
    chance = expected / n
    variance, third = n * chance * (1 - chance), n * chance * (1 - chance) * (1 - 2 * chance)
    z = [z_of(count - expected, variance, third) for count in counts]
    high = next(count for count in counts if z[count] >= Z_BOUND)
    low = next((count for count in reversed(counts[: int(expected) + 1]) if z[count] <= -Z_BOUND), -1)
    assert binom.sf(high - 1, n, expected / n) < 6e-7
    assert binom.cdf(low, n, expected / n) < 6e-7
    assert z == sorted(z)


@pytest.mark.parametrize("chance", [0.0005, 0.0001, 0.01])
def test_quiet_where_nearly_all_tokens_are_certain(chance):
    """At a low temperature a rare token may be drawn once. 2,000 runs of 64 tokens; false-alarm rate below 1e-3."""
    p = torch.tensor([[1 - chance, chance]] * 64, dtype=torch.float64)
    generator = torch.Generator().manual_seed(17)
    runs = torch.rand(2000, 64, generator=generator, dtype=torch.float64) < chance
    assert runs.any(-1).sum() > 5
    for tokens in runs[runs.any(-1)].long():
        assert judged(tokens, p, p.flip(-1)).passed


def test_rounding_that_is_tested_at_all_is_not_felt():
    """Tokens are drawn from a law whose ln p are off as far as a tested place allows."""
    logits, draft_logits = random_logits(1000, 12)
    found = []
    for seed in range(40):  # the mean of so many has a standard deviation of 0.16
        generator = torch.Generator().manual_seed(1200 + seed)
        off = RESOLVED * torch.randn(logits.shape, generator=generator, dtype=torch.float64)
        p, q, moved = (Sampling(1.0).probs(rows) for rows in (2 * logits, draft_logits, 2 * logits + off))
        found.append(judged(draw(moved, uniforms(1000, 1300 + seed)), p, q)[:2])
    assert torch.tensor(found, dtype=torch.float64).mean(0).abs().max() < 0.5 + 4 * 0.16


def test_tokens_at_an_edge_are_counted_and_change_no_statistic():
    p = torch.tensor([[0.25, 0.75, 0.0, 0.0]] * 3)
    possible = torch.tensor([[True, True, True, False]] * 3)
    places = [(torch.tensor([0, 1, 2]), p, p.flip(-1), possible)]
    assert z_statistics(places)[:2] == judged(torch.tensor([0, 1]), p[:2], p[:2].flip(-1))[:2]
    assert z_statistics(places)[2:] == (3, 1)
    places.append((torch.tensor([3]), p[:1], p[:1].flip(-1), possible[:1]))
    assert z_statistics(places).surprise == math.inf
