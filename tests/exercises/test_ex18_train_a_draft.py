"""Checks of exercise 18: the agreement of two rows, the loss, its gradient, and what the loss promises."""

import itertools
import math

import pytest
import torch

from solutions import ex18_train_a_draft as right
from tests.exercises.answers import asked

SHAPES = [(1, 2), (1, 3), (3, 2), (4, 5)]  # places, vocabulary


def rounded(numbers: object) -> object:
    """For comparing: six digits are enough, and NaN is equal to itself."""
    if isinstance(numbers, torch.Tensor):
        return [rounded(one) for one in numbers] if numbers.ndim else rounded(float(numbers))
    return "NaN" if math.isnan(numbers) else float(f"{float(numbers):.6g}") + 0.0  # -0.0 is 0.0


def rows(n: int, vocab: int, seed: int, spread: float = 2.0) -> torch.Tensor:
    """Logits."""
    return spread * torch.randn(n, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(n: int, vocab: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The target's probabilities and the draft's logits."""
    return rows(n, vocab, seed).softmax(-1), rows(n, vocab, seed + 100)


CERTAIN = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
CASES = [
    (torch.tensor([[0.5, 0.3, 0.2]]).double(), torch.tensor([[0.2, 0.7, 0.1]]).double().log()),
    *(both(*shape, seed) for seed, shape in enumerate(SHAPES * 2)),
    (CERTAIN, torch.tensor([[300.0, 0.0, 0.0], [300.0, 0.0, 150.0]])),  # in float32 its softmax rounds to 0
]


def in_words(p: torch.Tensor, logits: torch.Tensor) -> str:
    return f"p = {rounded(p)}, the draft's logits {rounded(logits)}"


@asked(CASES, lambda p, logits: f"p = {rounded(p)}, q = {rounded(logits.softmax(-1))}")
def test_how_likely_a_drafted_token_is_kept(one, p, logits):
    """agreement: of each row it is the sum of min(p, q) over the tokens, which is 1 less half the sum of |p - q|."""
    return rounded(one.agreement(p.clone(), logits.softmax(-1)))


@asked(CASES, in_words)
def test_the_loss(one, p, logits):
    """loss: it is the mean over places of -sum(p ln q), and right where q itself would round to 0, too."""
    return rounded(one.loss(p.clone(), logits.clone()))


@asked(CASES, in_words)
def test_the_gradient(one, p, logits):
    """gradient: of each row it is q - p, over the number of rows; q is the softmax of a row of logits."""
    return rounded(one.gradient(p.clone(), logits.clone()))


BOUNDS = [*itertools.product((0.5, 2.0), (0.0, 0.125, 0.5, 1.0, 1.28, 2.0, 3.0, -1e-9))]  # entropy, KL


@asked(BOUNDS, "a target of entropy {}, a loss that is higher by {}: the least agreement")
def test_what_the_loss_promises(one, entropy, divergence):
    """least_agreement: loss - entropy is the divergence, below 0 by rounding only; 1 less the root of half of it."""
    return rounded(one.least_agreement(entropy + divergence, entropy))


@pytest.mark.parametrize("seed", range(20))
def test_the_solution_is_what_autograd_and_pinsker_say(seed):
    p, logits = both(4, 5, seed)
    learned = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(learned, p).backward()
    cross_entropy = right.loss(p, logits)
    assert cross_entropy == pytest.approx(float(torch.nn.functional.cross_entropy(logits, p)))
    assert torch.allclose(right.gradient(p, logits), learned.grad)
    kept = right.agreement(p, logits.softmax(-1))
    assert torch.allclose(kept, 1 - (p - logits.softmax(-1)).abs().sum(-1) / 2)
    assert kept.mean() >= right.least_agreement(cross_entropy, right.loss(p, p.log()))
