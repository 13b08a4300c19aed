"""The forecast against the production rule, enumerated exactly.

The law of every round comes from `play` (tests/test_exact.py): the production rule and `draw` run once in each box of
their uniforms, and the boxes' exact volumes add up. Chained over all texts this is E[rounds | text] as a fraction, and
the forecast must equal it. The whole decoder is held against the forecast in tests/lab/test_acceptance_probs.py.
"""

import functools
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch

from draft_models import NgramDrafter
from speclab.core.sampling import Sampling
from speclab.theory.formulas import Forecast, forecast
from tests.decoding import model_accept_probs
from tests.test_exact import Job, Prefix, Tables, play, random_tables, target_law

EXACT = 1e-11  # what float64 sums may lose against fractions


class Case(NamedTuple):
    tables: Tables
    prompt: Prefix
    ngram: bool
    n_tokens: int

    def proposal(self, prefix: Prefix) -> list[int]:
        """What prompt lookup proposes after the prompt and `prefix`, at most k tokens."""
        drafter = NgramDrafter(longest=2, shortest=1)
        drafter.prefill(None, torch.tensor([[*self.prompt, *prefix]]), Sampling(1))
        return drafter.lookup(self.tables.k)

    def accept_probs(self, text: Prefix) -> list[Sequence[float]]:
        """The acceptance chances of the forecast's docstring, from the tables alone."""
        target, draft = self.tables.target, self.tables.draft
        if not self.ngram:
            here = [(target[text[:t]][token], draft[text[:t]][token]) for t, token in enumerate(text)]
            return model_accept_probs([float(min(Fraction(1), q / p)) for p, q in here])
        rows = [zip(self.proposal(text[:t]), text[t:], strict=False) for t in range(len(text))]
        return [[float(proposed == said) for proposed, said in row] for row in rows]

    def round_after(self, prefix: Prefix) -> Job:
        """The round that begins when the tokens of `prefix` are committed."""
        k = min(self.tables.k, self.n_tokens - len(prefix) - 1)
        if not self.ngram:
            return Job(self.tables, prefix, k)
        found, vocab = self.proposal(prefix)[:k], self.tables.vocab
        rows = {(*prefix, *found[:i]): [Fraction(t == token) for t in range(vocab)] for i, token in enumerate(found)}
        return Job(Tables(vocab, self.tables.k, self.tables.target, rows, stored=False), prefix, len(found))


def price(n_drafted: int, state: int) -> Fraction:
    """A made-up cost of a round, by all that it may depend on."""
    return Fraction(3 + n_drafted**2 + 2 * n_drafted * state, 7)


def chained(case: Case) -> dict[Prefix, np.ndarray]:
    """All texts of `n_tokens` with positive probability. (7,) each: its chance, and its rounds, drafted, tested and
    accepted tokens, rounds that accept all of at least one before a round that drafts, and the price of its rounds,
    weighted with the chances of all ways to it."""

    @functools.cache
    def after(prefix: Prefix) -> dict[Prefix, np.ndarray]:
        if len(prefix) == case.n_tokens:
            return {(): np.array([Fraction(n) for n in (1, *[0] * 6)])}
        job, found = case.round_after(prefix), {}
        [outcome] = play([job])
        for block, chance in outcome.law.items():
            n_accepted = len(block) - 1
            n_tested, text = n_accepted + (n_accepted < job.size), prefix + block
            full = 0 < job.size == n_accepted and len(text) < case.n_tokens and case.round_after(text).size > 0
            cost = price(job.size, len(prefix))
            counts = np.array([0, 1, job.size, n_tested, n_accepted, int(full), cost], dtype=object)
            for rest, sums in after(text).items():
                found[block + rest] = found.get(block + rest, 0) + (sums + counts * sums[0]) * chance
        return found

    first = [(token, weight) for token, weight in enumerate(case.tables.target[()]) if weight]
    return {(token, *rest): sums * weight for token, weight in first for rest, sums in after((token,)).items()}


def assert_forecast_is_exact(case: Case) -> None:
    """Text by text, and for the expectation over texts."""
    texts, law, total = chained(case), target_law(case.tables, (), case.n_tokens), 0.0
    assert {text: sums[0] for text, sums in texts.items()} == law
    for text, sums in texts.items():
        predicted = forecast(case.accept_probs(text), case.tables.k)
        assert predicted.n_rejected == pytest.approx(predicted.n_tested - predicted.n_accepted, rel=EXACT, abs=EXACT)
        counts = [predicted.n_rounds, predicted.n_drafted, predicted.n_tested, predicted.n_accepted]
        assert counts == pytest.approx([float(count / sums[0]) for count in sums[1:5]], rel=EXACT, abs=EXACT)
        assert predicted.cost == pytest.approx(predicted.n_rounds, rel=EXACT)
        priced = forecast(case.accept_probs(text), case.tables.k, lambda n, state: float(price(n, state)), 2.0, 5.0)
        cost = sums[6] + 2 * sums[5] + 5 * (sums[3] - sums[4])
        assert priced.cost == pytest.approx(float(cost / sums[0]), rel=EXACT)
        total += float(sums[0]) * predicted.n_rounds
    chance, n_rounds, _, _, n_accepted, *_ = sum(texts.values())
    assert (chance, total) == (1, pytest.approx(float(n_rounds), rel=EXACT))
    assert n_accepted > 0


@pytest.mark.parametrize("family", ["dense", "zeros", "draft blind", "target forbids"])
@pytest.mark.parametrize(("vocab", "k", "n_tokens"), [(2, 1, 4), (2, 2, 5), (2, 3, 6), (3, 1, 4), (3, 2, 4), (3, 3, 4)])
def test_a_model_drafts_forecast_is_the_expectation_of_its_rounds(family, vocab, k, n_tokens):
    """E[rounds | text] for every possible text, and what was drafted, tested and accepted: no average in it."""
    case = Case(random_tables(1, vocab, k, n_tokens, family), (0,), ngram=False, n_tokens=n_tokens)
    assert_forecast_is_exact(case)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("vocab", "k", "n_tokens"), [(2, 1, 4), (2, 3, 6), (3, 2, 4), (3, 3, 5)])
def test_an_ngrams_forecast_is_the_expectation_of_its_rounds(seed, vocab, k, n_tokens):
    """Its proposals depend on where the round began and may be shorter than k: one row of chances for each state."""
    prompt = (0, 1, 1, 0, vocab - 1)
    case = Case(random_tables(seed, vocab, k, n_tokens, "dense"), prompt, ngram=True, n_tokens=n_tokens)
    assert_forecast_is_exact(case)


def test_empty_proposals_are_plain_decoding():
    """One token a round: whether nothing is proposed or the draft length is 0."""
    plain = Forecast(cost=9, n_rounds=9, n_drafted=0, n_tested=0, n_accepted=0, n_rejected=0)
    assert forecast([[]] * 10, 4, full_round_extra=1) == plain
    assert forecast(model_accept_probs([0.5] * 10), 0) == plain
    for n_tokens in (0, 1):  # prefill already made the only token
        assert forecast(model_accept_probs([0.5] * n_tokens), 4) == Forecast(0, 0, 0, 0, 0, 0)


def test_impossible_probabilities_are_refused():
    """A ratio above 1 is a chance somebody forgot to cut off."""
    for wrong in (1.01, -0.01, float("nan")):
        with pytest.raises(ValueError, match="0 … 1"):
            forecast(model_accept_probs([0.5] * 4 + [wrong] + [0.5] * 5), 4)
