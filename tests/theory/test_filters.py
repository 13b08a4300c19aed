"""Which tokens a filter keeps when logits are known up to rounding, against the production filters on moved logits."""

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from speclab.core.sampling import Sampling
from speclab.theory import losslessness
from speclab.theory.losslessness import kept

SAMPLINGS = st.builds(
    Sampling,
    st.sampled_from([0.3, 0.7, 1.2]),
    st.sampled_from([0, 1, 2, 5, 40]),
    st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
)


@st.composite
def moved(draw) -> tuple[Tensor, Tensor, Tensor, Sampling]:
    """Logits, many of them equal, a deviation for each row, and logits that are off by at most half of APART times as
    much. (n, vocab)"""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    n, vocab = draw(st.integers(1, 40)), draw(st.sampled_from([2, 5, 30]))
    step = draw(st.sampled_from([0.0, 0.25, 1.0]))
    logits = 2 * torch.randn(n, vocab, generator=generator, dtype=torch.float64)
    if step:
        logits = (logits / step).round() * step
    deviation = torch.rand(n, generator=generator, dtype=torch.float64) * draw(st.sampled_from([0.0, 0.002, 0.02]))
    # Half of the logits at one end of what the bound allows, so that the ends are tried.
    off = (2 * torch.rand(n, vocab, generator=generator, dtype=torch.float64) - 1).mul(2).clamp(-1, 1)
    return logits, deviation, logits + off * losslessness.APART / 2 * deviation[:, None], draw(SAMPLINGS)


@given(moved())
@settings(max_examples=150, deadline=None)
def test_what_the_production_filters_keep_lies_between_the_two_bounds(case):
    logits, deviation, off, sampling = case
    sure, possible = kept(logits, deviation, sampling)
    probs = sampling.probs(off)
    cut, kept_all_the_same = (probs > math.exp(-losslessness.NEVER)) & ~possible, sure & (probs == 0)
    assert not (cut | kept_all_the_same).any()


@given(moved())
@settings(max_examples=50, deadline=None)
def test_without_an_error_both_bounds_are_the_filter_itself_where_no_logits_are_equal(case):
    logits, _, _, sampling = case
    logits = logits + torch.arange(logits.shape[1]) * 1e-3 * 2**0.5
    sure, possible = kept(logits, torch.zeros(len(logits)), sampling)
    probs = sampling.probs(logits)
    unfiltered = replace(sampling, top_p=1.0).probs(logits).sort(descending=True).values.cumsum(-1)
    clear = ((unfiltered - sampling.top_p).abs() > 1e-4).all(-1) | (sampling.top_p == 1)  # no sum close to top_p
    assert torch.equal(sure[clear], (probs > 0)[clear])
    assert torch.equal(possible[clear], (probs > math.exp(-losslessness.NEVER) / 2)[clear])


def test_equal_tokens_at_the_edge_may_all_be_kept_and_none_surely():
    """Three of the four first tokens are equal and two places are left for them: a matter of chance."""
    sure, possible = kept(torch.tensor([[3.0, 1.0, 1.0, 1.0, 0.0]]), torch.zeros(1), Sampling(1.0, top_k=3))
    assert sure.tolist() == [[True, False, False, False, False]]
    assert possible.tolist() == [[True, True, True, True, False]]


@pytest.mark.parametrize("sampling", [Sampling(0.01), Sampling(0.01, top_k=2), Sampling(0.01, top_p=0.5)])
def test_rows_that_rounding_makes_uncertain_are_not_tested_and_impossible_tokens_still_are(sampling):
    deviation = torch.tensor([0.1, 0.0])  # the first is 20 times too large at this temperature
    sure, possible = kept(torch.tensor([[9.0, 8.9, -50.0]] * 2), deviation, sampling)
    assert not sure[0].any()
    assert sure[1, 0]
    assert possible[0].tolist() == [True, True, False]
