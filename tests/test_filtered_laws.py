"""Losslessness at a temperature other than 1 with both filters, through the production loop, without statistics.

A round is a piecewise constant function of its random numbers. Here the second round of a decoding is enumerated, after
a first one that is the same in all of them: the loop, the drafter and the target are the production ones, the caches
were rolled back once. The random numbers that draw the drafted tokens are put near both ends of every piece, then those
of the accept rule, and the pieces' sizes add up to the law of what the round commits.

What is right is computed here from the logits of passes without a cache, in plain Python: the rows of the target and of
the draft, the places where pieces end, and the law. Sums are of float64 numbers, so laws agree to 1e-9, not to the last
bit as in tests/test_exact.py, where rows are fractions.
"""

import functools
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch

import baseline_autoregressive
import optimized_speculative
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptRule, DecodeSettings, Draft, Round, fetch, tokens_of
from speclab.core.rules import rule_of
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import WEIGHT, AutoLength, RoundCosts
from speclab.models.cached import CachedModel
from tests.decoding import reference_probs
from tests.heads import feature_row, in_format, target_states, tiny_head
from tests.test_exact import Job, Pieces, Tables, cdf_corners, completed, target_law, token_pieces
from tests.tiny_models import DTYPE_ON, on_engine, perturbed, tiny

IDS = 5
SETTINGS = Sampling(temperature=0.7, top_k=3, top_p=0.85)
PROMPT = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0]])
NOISE = 0.3  # of the draft's weights
LONG = 30  # new tokens: never reached
KINDS = ("drafted", "accepted", "rejected", "partial", "bonus")
ENDS = (1e-3, 1 - 1e-3)  # of a piece
SAME = 1e-11  # corners that are nearer than this are one
OFF = {"eager": 1e-9, "c": 1e-4}  # by which laws on an engine may be off: on `c` the models are rounded to float32
ENGINE = "eager"  # that the tests decode on
Text = tuple[int, ...]
Law = dict[Text, float]
Rows = Callable[[Text], list[float]]


# --- the rows, from passes without a cache ----------------------------------------------------------------------------


def filtered(logits: list[float], how: Sampling = SETTINGS) -> list[float]:
    return reference_probs(logits, how.temperature, how.top_k, how.top_p)


@functools.cache
def models() -> tuple[torch.nn.Module, torch.nn.Module]:
    """A target and a draft for it, whose filtered rows have other tokens in them."""
    target = tiny("llama", seed=1, vocab_size=IDS, initializer_range=0.15)
    return target, perturbed(target, NOISE)


def cached(model: torch.nn.Module) -> CachedModel:
    """The model on the engine that is tried."""
    model = in_format(model, DTYPE_ON[ENGINE])
    return CachedModel(model, fast=on_engine(ENGINE, model))


@functools.cache
def logits_after(which: int, text: Text) -> list[float]:
    with torch.inference_mode():
        return models()[which](torch.tensor([text]), use_cache=False).logits[0, -1].tolist()


def target_row(text: Text) -> list[float]:
    return filtered(logits_after(0, text))


def draft_row(text: Text) -> list[float]:
    return filtered(logits_after(1, text))


def of_head(logits: Callable[[Text, Text], list[float]]) -> Callable[[Text], Rows]:
    """Rows of a head that starts from the target's states of a text: committed text -> whole text -> row"""
    return lambda committed: lambda text: filtered(logits(committed, text[len(committed) :]))


# --- drafts -----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A draft and how its tokens are drawn.

    k: of the loop. n_drawn: tokens that random numbers draw; 0 where none are. rows: of the draft, for a committed
    text. outcomes: every outcome of drafting. sides: the pieces of the rule's numbers (see `sides_of`); None for a
    chain.
    """

    make: Callable[[], Drafter]
    k: int
    n_drawn: int
    rows: Callable[[Text], Rows] = lambda committed: draft_row
    outcomes: "Callable[[int, Rows, Text], list[Drawn]]" = lambda n, rows, text: drawn(n, rows, text)
    sides: "Callable[[str, Text, Draft, list[list[float]]], list[list[Piece]]] | None" = None
    chooses: bool = False  # it chooses its length

    @property
    def first(self) -> tuple[float, ...]:
        """Every random number of the first round. Each makes another text; what nothing draws needs more of them."""
        return (0.7,) if self.n_drawn > 3 else (0.2, 0.5) if self.n_drawn else (0.1, 0.4, 0.6, 0.9)


@functools.cache
def noisy(noise: float) -> torch.nn.Module:
    return perturbed(models()[0], noise)


def model(noise: float = NOISE) -> ModelDrafter:
    return ModelDrafter(cached(noisy(noise)))


def feature() -> FeatureDrafter:
    drafter = FeatureDrafter(in_format(head(), DTYPE_ON[ENGINE]))
    if ENGINE == "c":
        drafter.use_c()
    return drafter


def on_auto(drafter: Drafter, cost: float = 0.2) -> AutoLength:
    """Costs with a step, so that the length depends on what was drawn. cost: of a drafted token."""
    auto = AutoLength(drafter)
    auto.costs[SETTINGS.temperature] = RoundCosts((0.0, cost, 2 * cost, 3 * cost), (1.0, 1.0, 1.001, 1.15))
    return auto


@functools.cache
def head() -> torch.nn.Module:
    return tiny_head(2, vocab=IDS, std=0.15)


@functools.cache
def feature_logits(committed: Text, drafted: Text) -> list[float]:
    states = target_states(models()[0], list(committed), (0, 1))
    with torch.inference_mode():
        return feature_row(head(), states, list(committed), list(drafted)).tolist()


CASES = {
    "model": Case(model, 2, 2),
    "model auto": Case(lambda: on_auto(model()), 3, 3, chooses=True),
    "hybrid auto": Case(lambda: HybridDrafter(NgramDrafter(2, 1), on_auto(model())), 3, 3, chooses=True),
    "ngram": Case(lambda: NgramDrafter(2, 1), 3, 0),
    "feature": Case(feature, 2, 2, of_head(feature_logits)),
    "feature auto": Case(lambda: on_auto(feature(), 0.14), 3, 3, of_head(feature_logits), chooses=True),
}


# --- pieces -----------------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    low: float
    size: float

    def at(self, place: float) -> float:
        return self.low + place * self.size


def pieces(corners: list[float]) -> list[Piece]:
    """[0, 1) cut at these corners."""
    edges = [0.0]
    for corner in sorted(map(float, corners)):
        if edges[-1] + SAME < corner < 1 - SAME:
            edges.append(corner)
    return [Piece(low, high - low) for low, high in itertools.pairwise([*edges, 1.0])]


class Drawn(NamedTuple):
    """One outcome of drafting: tokens, the law of each, and the pieces of the numbers that draw it."""

    tokens: Text
    laws: list[list[float]]
    numbers: list[Piece]
    chance: float


def drawn(n: int, rows: Rows, text: Text) -> list[Drawn]:
    """Every outcome of n tokens, each drawn after those before it."""
    found = [Drawn((), [], [], 1.0)]
    for _ in range(n):
        found = [further for one in found for further in one_more(one, rows(text + one.tokens))]
    return found


def one_more(one: Drawn, law: list[float]) -> Iterator[Drawn]:
    """Every outcome with a further token, drawn from `law`; id 0 where there is nothing left to draw."""
    tokens = [token for token, weight in enumerate(law) if weight] or [0]
    for token, piece in zip(tokens, pieces(cdf_corners(law)), strict=True):
        yield Drawn((*one.tokens, token), [*one.laws, law], [*one.numbers, piece], one.chance * piece.size)


def sides_of(text: Text, draft: Draft, laws: list[list[float]], pieces_of: Pieces) -> list[list[Piece]]:
    """The pieces of the rule's numbers. Every row that a next token might come from cuts the last one's."""
    tokens, n = tuple(draft.tokens[0].tolist()), draft.tokens.shape[1]
    prefixes = [tokens[:i] for i in range(n + 1)]
    rows = [target_row(text + prefix) for prefix in prefixes]
    target, drafts = dict(zip(prefixes, rows, strict=True)), dict(zip(prefixes, laws, strict=False))
    tests, left = pieces_of(Job(Tables(IDS, n, target, drafts, draft.probs is not None), (), n), tokens)
    return [*map(pieces, tests), pieces([c for row in [*left, *rows] for c in cdf_corners(row)])]


# --- one round --------------------------------------------------------------------------------------------------------


class Reached(Exception):
    """The loop has verified the second round's draft, and asks the rule."""


class Asked(NamedTuple):
    text: Text  # committed before the round
    draft: Draft
    logits: torch.Tensor
    sampling: Sampling


def second_round(monkeypatch, loop, first: float, numbers: Sequence[Sequence[float]], judge, decode) -> tuple:
    """Decode up to the second time that the accept rule is asked.  -> what came before, what it is asked

    loop: the module that draws random numbers, `first` each time before that round, and there, call by call, those of
    `numbers` with `first` behind them. decode: accept rule -> rounds.
    """
    handed, before, drawing = [], [], iter(())

    def accept(*given):
        nonlocal drawing
        handed.append(given)
        drawing = iter(numbers)
        if len(handed) == 1:
            return judge(*given)
        raise Reached

    def uniforms(shape, *_):
        found, own = torch.full(shape, first, dtype=torch.float64), next(drawing, ())
        found[..., : len(own)] = torch.tensor(own, dtype=torch.float64)
        return found

    monkeypatch.setattr(loop, "uniforms", uniforms)
    try:
        for made in decode(accept):
            before.append(made)
    except Reached:
        return before, handed[-1]
    raise AssertionError("the loop ended")


def asked(monkeypatch, case: Case, rule: str, first: float, numbers: list[float]) -> Asked:
    """What the loop asks the rule in its second round, drafted with these numbers. Before it all are `first`."""
    target, settings = cached(models()[0]), DecodeSettings(LONG, SETTINGS)
    target.hidden_layers = (0, 1)
    decode = functools.partial(optimized_speculative.speculative_decode, target, case.make(), PROMPT, case.k, settings)
    before, given = second_round(monkeypatch, optimized_speculative, first, [numbers], rule_of(rule).accept, decode)
    return Asked((*PROMPT[0].tolist(), *tokens_of(before)), *given[:3])


class Found(NamedTuple):
    law: Law
    text: Text
    tally: Counter[str]
    drafts: list[tuple[Text, bool]]  # of each outcome of drafting: its tokens, and whether they were certain


def enumerated(monkeypatch, case: Case, rule: str, first: float, end: float, pieces_of: Pieces = token_pieces) -> Found:
    """The law of what the second round commits, after a first one with this number. end: where in each piece its number
    is put. pieces_of: of the rule, for a chain."""
    text = asked(monkeypatch, case, rule, first, []).text
    law: Law = {}
    tally, drafts = Counter[str](), []
    for one in case.outcomes(case.n_drawn, case.rows(text), text):
        numbers = [piece.at(end) for piece in one.numbers]
        _, draft, logits, sampling = asked(monkeypatch, case, rule, first, numbers)
        tokens, n = tuple(draft.tokens[0].tolist()), draft.tokens.shape[1]
        if draft.probs is None:
            laws = [[float(other == token) for other in range(IDS)] for token in tokens]
        else:
            laws = one.laws[:n]
            assert tokens == one.tokens[:n], "a token was drawn from another distribution than the draft's"
            handed = draft.probs[0].flatten().tolist()
            off = 1e-12 if ENGINE == "eager" else OFF[ENGINE]
            assert handed == pytest.approx([*itertools.chain(*laws)], abs=off), "other laws are handed over"
        drafts.append((tokens, draft.probs is None))
        sides = case.sides(rule, text, draft, laws) if case.sides else sides_of(text, draft, laws, pieces_of)
        for block, chance, happened in judged(rule_of(rule).accept, draft, logits, sampling, sides, end):
            law[block] = law.get(block, 0.0) + one.chance * chance
            tally.update(happened)
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    return Found(law, text, tally, drafts)


def judged(
    accept: AcceptRule, draft: Draft, logits: torch.Tensor, sampling: Sampling, sides: list[list[Piece]], end: float
) -> Iterator[tuple[Text, float, dict[str, int]]]:
    """Yield every outcome of the rule on one row: (tokens, its probability, what happened)."""
    cells = list(itertools.product(*sides))
    points = torch.tensor([[piece.at(end) for piece in cell] for cell in cells], dtype=torch.float64)
    parts = {name: part for name, part in vars(draft).items() if isinstance(part, torch.Tensor)}
    many = replace(draft, **{name: part.expand(len(cells), *part.shape[1:]) for name, part in parts.items()})
    result = accept(many, logits.expand(len(cells), -1, -1), sampling, points)
    for cell, decided in zip(cells, fetch(many, result), strict=True):
        a, r = decided.n_accepted, decided.n_rejected
        happened = (draft.tokens.shape[1], a, r, a > 0 < r, a > 0 == r)
        yield tuple(decided.tokens), math.prod(piece.size for piece in cell), dict(zip(KINDS, happened, strict=True))


class TargetRows(dict):
    """The target's row after each text."""

    def __missing__(self, text: Text) -> list[float]:
        return target_row(text)


TARGET = Tables(IDS, 0, TargetRows(), {})


def assert_targets_law(law: Law, text: Text) -> None:
    """Of a round after this text, with the target's own tokens after those that it commits."""
    length = max(map(len, law))
    found, right = completed(law, TARGET, text, length), target_law(TARGET, text, length)
    assert set(found) <= set(right), "a token of probability 0 was committed"
    for tokens, chance in right.items():
        assert found.get(tokens, 0.0) == pytest.approx(chance, abs=OFF[ENGINE]), tokens


# --- what must hold ---------------------------------------------------------------------------------------------------


def test_the_filters_cut_the_rows_of_both_models_and_their_order_shows():
    """Else the laws below would be those without filters, or of filters in another order."""
    t, p = SETTINGS.temperature, SETTINGS.top_p
    text, alone = tuple(PROMPT[0].tolist()), [Sampling(t), Sampling(t, 3), Sampling(t, top_p=p), Sampling(1.0, 3, p)]
    for which in (0, 1):
        texts = [(*text, *more) for n in range(3) for more in itertools.product(range(IDS), repeat=n)]
        rows = [logits_after(which, one) for one in texts]
        for other in alone:
            assert sum(filtered(row, other) != filtered(row) for row in rows) >= 5, other
        assert sum(_top_p_first(row) != filtered(row) for row in rows) > 1
    both = [(target_row(one), draft_row(one)) for one in texts]
    for one, other in (0, 1), (1, 0):
        assert any(a > 0 == b for pair in both for a, b in zip(pair[one], pair[other], strict=True))


def _top_p_first(logits: list[float]) -> list[float]:
    row = reference_probs(logits, SETTINGS.temperature, 0, SETTINGS.top_p)
    return reference_probs([math.log(weight) if weight else -math.inf for weight in row], 1.0, SETTINGS.top_k, 1.0)


def test_every_token_of_the_baseline_has_the_targets_law(monkeypatch):
    """Two tokens, drawn from both ends of every piece."""
    text = tuple(PROMPT[0].tolist())
    for one, end in itertools.product(drawn(2, target_row, text), ENDS):
        numbers = iter([piece.at(end) for piece in one.numbers])
        monkeypatch.setattr(
            baseline_autoregressive, "uniforms", lambda *_, left=numbers: torch.tensor([next(left)]).double()
        )
        target, how = CachedModel(models()[0]), DecodeSettings(2, SETTINGS)
        rounds = baseline_autoregressive.autoregressive_decode(target, PROMPT, how)
        assert tuple(tokens_of(rounds)) == one.tokens


ON_C = ("model", "hybrid auto", "feature")  # against the uncached target


@pytest.mark.parametrize("name", [*CASES, *(f"{name} on c" for name in ON_C)])
def test_a_round_leaves_the_targets_law(name, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ENGINE", "c" if name.endswith(" on c") else "eager")
    assert_lossless(CASES[name.removesuffix(" on c")], "token", monkeypatch)


def assert_lossless(case: Case, rule: str, monkeypatch, pieces_of: Pieces = token_pieces) -> None:
    """The joint law of as many tokens as the round may commit, with the target's own after those that it does."""
    tally, lengths, texts = Counter[str](), set(), set()
    for first, end in itertools.product(case.first, ENDS):
        found = enumerated(monkeypatch, case, rule, first, end, pieces_of)
        assert_targets_law(found.law, found.text)
        tally += found.tally
        lengths |= {len(tokens) for tokens, _ in found.drafts}
        texts.add(found.text)
    assert min(tally[kind] for kind in KINDS) > 0, tally
    assert len(texts) >= min(2, len(case.first))
    assert len(lengths) > 1 or not case.chooses, "the length depended on nothing"


# --- what is chosen at these settings ---------------------------------------------------------------------------------

OTHER = Sampling(temperature=1.3, top_k=4, top_p=0.95)


def decoded(drafter: Drafter, k: int, how: Sampling, n: int = 25) -> list[Round]:
    target = CachedModel(models()[0])
    target.hidden_layers = (0, 1)
    return list(optimized_speculative.speculative_decode(target, drafter, PROMPT, k, DecodeSettings(n, how)))


@pytest.mark.parametrize("name", ["model auto", "feature auto"])
def test_what_lengths_are_chosen_by(name):
    """The filtered probability of every drawn token, and what was tested at this temperature alone."""
    auto = CASES[name].make()
    auto.costs[OTHER.temperature] = auto.costs[SETTINGS.temperature]
    inner, keep, heard, given = auto.drafter.propose, auto._pays, [], []

    def propose(k, uniforms):
        draft = inner(k, uniforms)
        given.extend(draft.probs[0].gather(-1, draft.tokens[0, :, None])[:, 0].tolist() if draft.tokens.numel() else [])
        return draft

    auto.drafter.propose, auto._pays = propose, lambda probability: heard.append(probability) or keep(probability)
    for how in (SETTINGS, OTHER):
        tested = sum(r.n_accepted + r.n_rejected for r in decoded(auto, 3, how))
        assert tested > 0
        assert sum(tally.tested - WEIGHT for tally in auto.seen[how.temperature].depths) == tested
    assert heard == given
    assert len(set(heard)) > 5
