"""The forecast against the production decoder, enumerated exactly.

`speculative_decode` is a piecewise-constant function of its uniforms. The corners of the pieces are computed here in
Fractions, the real generator runs with the centre of every box, and the exact volumes of the boxes add up to the law
of each round. Chained over all texts this is E[rounds | text] as a fraction, and the forecast must equal it.
"""

import functools
import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch

import optimized_speculative
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import Sampling
from speclab.theory.forecast import Forecast, forecast
from tests.decoding import ScriptedTarget, model_accept_probs, speculative_rounds
from tests.test_exact import (
    CENTRE,
    Box,
    Prefix,
    Row,
    Tables,
    boxes,
    cdf_corners,
    inside,
    random_tables,
    target_law,
)

EXACT = 1e-11  # what float64 sums may lose against fractions


# --- production, round by round ---------------------------------------------------------------------------------------


class Played(NamedTuple):
    """One outcome of a round with its exact chance."""

    block: Prefix
    n_drafted: int
    n_accepted: int
    chance: Fraction


class Case(NamedTuple):
    tables: Tables
    prompt: Prefix
    ngram: bool
    n_tokens: int

    def drafter(self) -> ModelDrafter | NgramDrafter:
        if self.ngram:
            return NgramDrafter(longest=2, shortest=1)
        return ModelDrafter(ScriptedTarget(self.tables.draft.__getitem__, len(self.prompt)))

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


UNUSED = Fraction(0), Fraction(1)  # of a uniform that the round does not read


class Dice:
    """Replaces `uniforms` in the decoder: the first call makes prefill draw a given token, the second is a box."""

    def __init__(self):
        self.script: list[list[float]] = []

    def __call__(self, shape, generator, device) -> torch.Tensor:
        return torch.tensor(self.script.pop(0), dtype=torch.float64).reshape(shape)


@pytest.fixture
def dice(monkeypatch) -> Dice:
    dice = Dice()
    monkeypatch.setattr(optimized_speculative, "uniforms", dice)
    return dice


def box_of(row: Row, token: int) -> Box:
    """Where the inverse CDF gives this token."""
    low = sum(row[:token], Fraction(0))
    return low, low + row[token]


def draft_paths(case: Case, prefix: Prefix, k: int) -> list[tuple[Prefix, list[Box]]]:
    """Every proposal of at most k tokens after `prefix`, with the box of its k drafting uniforms."""
    if case.ngram:
        return [(tuple(case.proposal(prefix)[:k]), [(Fraction(0), Fraction(1))] * k)]
    paths = [((), [])]
    for _ in range(k):
        paths = [
            ((*tokens, token), [*sides, box_of(row, token)])
            for tokens, sides in paths
            for row in [case.tables.draft[prefix + tokens]]
            for token in range(case.tables.vocab)
            if row[token]
        ]
    return paths


def judging_sides(case: Case, prefix: Prefix, tokens: Prefix) -> list[list[Box]]:
    """Boxes of the acceptance tests of `tokens` and of the draw of the next token."""
    sides, corners = [], []
    for i in range(len(tokens) + 1):
        p = case.tables.target[prefix + tokens[:i]]
        corners += cdf_corners(p)
        if i < len(tokens):
            one_hot = [Fraction(token == tokens[i]) for token in range(case.tables.vocab)]
            q = one_hot if case.ngram else case.tables.draft[prefix + tokens[:i]]
            corners += cdf_corners([max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)])
            sides.append(boxes([p[tokens[i]] / q[tokens[i]]]))
    return [*sides, boxes(corners)]


def play_round(case: Case, prefix: Prefix, dice: Dice) -> list[Played]:
    """Exact law of the production round that starts when the tokens of `prefix` are committed.

    Prefill commits the last token of `prefix`, everything before it is the prompt; the round after prefill is ours.
    """
    left = case.n_tokens - len(prefix)
    k = min(case.tables.k, left - 1)
    low, high = box_of(case.tables.target[prefix[:-1]], prefix[-1])
    prefill = inside((low, high), CENTRE)
    prompt = torch.tensor([[*case.prompt, *prefix[:-1]]])
    played = []
    for tokens, drafting in draft_paths(case, prefix, k):
        for judging in itertools.product(*judging_sides(case, prefix, tokens)):
            k_most = case.tables.k
            drawn = [*drafting, *[UNUSED] * (k_most - len(drafting)), *judging, *[UNUSED] * (k_most + 1 - len(judging))]
            dice.script = [[prefill], [inside(box, CENTRE) for box in drawn]]
            target = ScriptedTarget(case.tables.target.__getitem__, len(case.prompt))
            rounds = speculative_rounds(target, case.drafter(), prompt, case.tables.k, left + 1, Sampling(1))
            assert next(rounds).tokens == [prefix[-1]]
            round_ = next(rounds)
            assert round_.n_drafted == len(tokens)
            volume = Fraction(1)
            for low, high in [*drafting, *judging]:
                volume *= high - low
            played.append(Played(tuple(round_.tokens), round_.n_drafted, round_.n_accepted, volume))
    assert sum(p.chance for p in played) == 1
    return played


def chained(case: Case, dice: Dice) -> dict[Prefix, np.ndarray]:
    """All texts of `n_tokens` with positive probability, from rounds of the production decoder. (5,) each: its chance,
    and its rounds, drafted, tested and accepted tokens, weighted with the chances of all ways to it."""

    @functools.cache
    def after(prefix: Prefix) -> dict[Prefix, np.ndarray]:
        if len(prefix) == case.n_tokens:
            return {(): np.array([Fraction(n) for n in (1, 0, 0, 0, 0)])}
        found: dict = {}
        for block, n_drafted, n_accepted, chance in play_round(case, prefix, dice):
            counts = np.array([0, 1, n_drafted, n_accepted + (n_accepted < n_drafted), n_accepted], dtype=object)
            for rest, sums in after(prefix + block).items():
                found[block + rest] = found.get(block + rest, 0) + (sums + counts * sums[0]) * chance
        return found

    first = [(token, weight) for token, weight in enumerate(case.tables.target[()]) if weight]
    return {(token, *rest): sums * weight for token, weight in first for rest, sums in after((token,)).items()}


def assert_forecast_is_exact(case: Case, dice: Dice) -> None:
    """Text by text, and for the expectation over texts."""
    texts, law, total = chained(case, dice), target_law(case.tables, (), case.n_tokens), 0.0
    assert {text: sums[0] for text, sums in texts.items()} == law
    for text, sums in texts.items():
        predicted = forecast(case.accept_probs(text), case.tables.k)
        assert predicted.n_rejected == pytest.approx(predicted.n_tested - predicted.n_accepted, rel=EXACT, abs=EXACT)
        counts = [predicted.n_rounds, predicted.n_drafted, predicted.n_tested, predicted.n_accepted]
        assert counts == pytest.approx([float(count / sums[0]) for count in sums[1:]], rel=EXACT, abs=EXACT)
        assert predicted.cost == pytest.approx(predicted.n_rounds, rel=EXACT)
        total += float(sums[0]) * predicted.n_rounds
    chance, n_rounds, *_, n_accepted = sum(texts.values())
    assert (chance, total) == (1, pytest.approx(float(n_rounds), rel=EXACT))
    assert n_accepted > 0


def shapes(few: list, more: list) -> list:
    """Of (vocabulary, k, N)."""
    return [*few, *(pytest.param(*shape, marks=pytest.mark.full) for shape in more)]


FEW, MORE = [(2, 1, 4), (2, 2, 5), (2, 3, 5), (3, 2, 3)], [(2, 3, 6), (3, 1, 4), (3, 2, 4), (3, 3, 4)]


@pytest.mark.parametrize("family", ["dense", "zeros", "draft blind", "target forbids"])
@pytest.mark.parametrize(("vocab", "k", "n_tokens"), shapes(FEW, MORE))
def test_a_model_drafts_forecast_is_the_production_decoders_expectation(family, vocab, k, n_tokens, dice):
    """E[rounds | text] for every possible text, and what was drafted, tested and accepted: no average in it."""
    case = Case(random_tables(1, vocab, k, n_tokens, family), (0,), ngram=False, n_tokens=n_tokens)
    assert_forecast_is_exact(case, dice)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("vocab", "k", "n_tokens"), shapes([(2, 1, 4), (2, 3, 5), (3, 2, 4)], [(2, 3, 6), (3, 3, 5)]))
def test_an_ngrams_forecast_is_the_production_decoders_expectation(seed, vocab, k, n_tokens, dice):
    """Its proposals depend on where the round began and may be shorter than k: one row of chances for each state."""
    prompt = (0, 1, 1, 0, vocab - 1)
    case = Case(random_tables(seed, vocab, k, n_tokens, "dense"), prompt, ngram=True, n_tokens=n_tokens)
    assert_forecast_is_exact(case, dice)


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
