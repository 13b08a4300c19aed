"""Losslessness of the rules for trees, proved as that of the others is in tests/test_exact.py, with its helpers.

A trial is a shape, tables of distributions, and a way to draw the children of a node. Every tree that may be drafted is
enumerated with its exact probability, and for each of them every box of the rule's uniforms. The production rule runs
once inside each box, and so does the production `without_replacement`.
"""

import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from speclab.core.accept import accept
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import GREEDY, NOT_FINITE, Sampling, draw
from speclab.extensions.trees import accept as tree_module
from speclab.extensions.trees import fixed as fixed_module
from speclab.extensions.trees.accept import accept_tree_from_logits
from speclab.extensions.trees.draft import TreeDraft
from tests.test_exact import (
    TINY,
    Outcome,
    Path,
    Prefix,
    Row,
    Rule,
    Tables,
    assert_are_paths,
    assert_not_vacuous,
    boxes,
    cdf_corners,
    cells,
    completed,
    decide,
    floats,
    random_tables,
    target_law,
)
from tests.watch import Watch

Shape = tuple  # of the children's shapes: ((), ((),)) is two children, the second of which has one
ZERO, ONE = Fraction(0), Fraction(1)


# --- every tree that may be drafted -----------------------------------------------------------------------------------


class Siblings(NamedTuple):
    """One outcome of drawing the children of a node."""

    tokens: Prefix
    laws: list[Row]
    handed: list[list[float]]
    chance: Fraction


class Trial(NamedTuple):
    tables: tuple[Tables, ...]  # the target's rows are the first one's; of the drafts as many as children differ
    shape: Shape
    way: Callable[["Trial", Prefix, int], list[Siblings]]
    depth_first: bool = False  # how the nodes are numbered
    stored: bool = True  # False: the rule gets no probabilities


def one_after_another(laws: list[Row]) -> list[Siblings]:
    """Children drawn independently, each from its law; equal tokens stay."""
    handed = [floats(law) for law in laws]
    supports = [[token for token, weight in enumerate(law) if weight] for law in laws]
    return [
        Siblings(tokens, laws, handed, math.prod((law[x] for law, x in zip(laws, tokens, strict=True)), start=ONE))
        for tokens in itertools.product(*supports)
    ]


def one_hot(token: int, vocab: int) -> Row:
    return [Fraction(other == token) for other in range(vocab)]


def independent(trial: Trial, prefix: Prefix, m: int) -> list[Siblings]:
    return one_after_another([trial.tables[0].draft[prefix]] * m)


def of_several_drafts(trial: Trial, prefix: Prefix, m: int) -> list[Siblings]:
    return one_after_another([tables.draft[prefix] for tables in trial.tables[:m]])


def most_probable_ones(trial: Trial, prefix: Prefix, m: int) -> list[Siblings]:
    """No chance: the draft's m first choices. The right law of each is one-hot."""
    row = trial.tables[0].draft[prefix]
    tokens = sorted(range(len(row)), key=lambda token: (-row[token], token))[:m]
    return one_after_another([one_hot(token, len(row)) for token in tokens])


def scattered(trial: Trial, prefix: Prefix, m: int) -> list[Siblings]:
    """Any fixed tokens, equal ones among them."""
    dice, vocab = random.Random(f"{prefix} {m}"), trial.tables[0].vocab
    return one_after_another([one_hot(dice.randrange(vocab), vocab) for _ in range(m)])


def without(row: Row, tokens: Prefix) -> Row:
    """The row without these tokens, renormalised; zeros where nothing is left."""
    rest = [ZERO if token in tokens else weight for token, weight in enumerate(row)]
    return [weight / (sum(rest) or ONE) for weight in rest]


def different(trial: Trial, prefix: Prefix, m: int) -> list[Siblings]:
    return drawn_without_replacement(tuple(trial.tables[0].draft[prefix]), m)


def different_or_none(trial: Trial, prefix: Prefix, m: int) -> list[Siblings]:
    """The same, and what is missing stays in its place: id 0 with a law of zeros, and what follows it."""
    zeros = [ZERO] * trial.tables[0].vocab
    return [
        Siblings((*tokens, *[0] * n), laws + [zeros] * n, handed + [floats(zeros)] * n, chance)
        for tokens, laws, handed, chance in different(trial, prefix, m)
        for n in [m - len(tokens)]
    ]


@functools.cache
def drawn_without_replacement(row: tuple[Fraction, ...], m: int) -> list[Siblings]:
    """Every outcome of the production `without_replacement`: its laws, and fewer than m children where it says so."""
    tokens = range(len(row))
    sides = [
        boxes([corner for gone in itertools.combinations(tokens, i) for corner in cdf_corners(without(row, gone))])
        for i in range(m)
    ]
    points, volumes, denominator = cells(sides)
    probs = torch.tensor(floats(list(row)), dtype=torch.float64)
    ids, laws, n_drawn = fixed_module.without_replacement(probs, points)
    chances, handed = Counter(), {}
    for drawn, size, law, volume in zip(ids.tolist(), n_drawn.tolist(), laws.tolist(), volumes, strict=True):
        chances[tuple(drawn[:size])] += volume
        handed[tuple(drawn[:size])] = law[:size]
    return [
        Siblings(drawn, [without(row, drawn[:i]) for i in range(len(drawn))], handed[drawn], Fraction(n, denominator))
        for drawn, n in chances.items()
    ]


class Grown(NamedTuple):
    """One outcome of drafting a tree, up to here."""

    tokens: Prefix
    laws: list[Row]
    handed: list[list[float]]
    chance: Fraction
    parents: list[int]
    prefixes: list[Prefix]  # of the root and each token: the drafted tokens up to there
    waiting: list[tuple[int, Shape]]  # rows whose children have not been drawn


def grown(trial: Trial) -> Iterator[Grown]:
    """Every outcome."""
    unfinished = [Grown((), [], [], ONE, [], [()], [(0, trial.shape)])]
    while unfinished:
        (*parts, chance, parents, prefixes, waiting) = unfinished.pop()
        if not waiting:
            yield Grown(*parts, chance, parents, prefixes, [])
            continue
        (row, shape), *waiting = waiting
        for *more, chance_here in trial.way(trial, prefixes[row], len(shape)):
            new = more[0]
            unfinished.append(
                Grown(
                    *(part + further for part, further in zip(parts, more, strict=True)),
                    chance * chance_here,
                    parents + [row - 1] * len(new),
                    prefixes + [(*prefixes[row], token) for token in new],
                    waiting + [one for one in enumerate(shape[: len(new)], len(prefixes)) if one[1]],
                )
            )


# --- the production rules at the centres of boxes ---------------------------------------------------------------------


def follow(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    """A rule that draws the target's own token once for a node, and keeps the child that carries it."""
    at_depth = uniforms.gather(-1, draft.depths())
    return draft.matching(draw(target_probs.flatten(0, 1), at_depth.flatten()).view_as(at_depth))


def in_turn(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
    return tree_module.accept_tree(draft, target_probs, uniforms)


RULES = [follow, in_turn]


def residuals(target: Row, laws: list[Row]) -> list[Row]:
    """r before each child of a node and after the last one."""
    found = [target]
    for law in laws:
        rest = [max(ZERO, a - b) for a, b in zip(found[-1], law, strict=True)]
        found.append([weight / sum(rest) for weight in rest] if any(rest) else found[-1])
    return found


def corners_of(
    tokens: Prefix, parents: list[int], depths: list[int], laws: list[Row], rows: list[Row], following: bool
) -> list[list[Fraction]]:
    """Where a rule's decision about a tree changes, for each of its numbers. Every row that might be drawn from cuts,
    so that a wrong one shows, too.

    depths: of the root and each token. rows: of the target, there.
    """
    n = len(tokens)
    if following:
        by_depth: list[list[Fraction]] = [[] for _ in range(n + 1)]
        for depth, row in zip(depths, rows, strict=True):
            by_depth[depth] += cdf_corners(row)
        return by_depth
    tests, last = [[]] * n, []
    for place, row in enumerate(rows):
        children = [i for i in range(n) if parents[i] + 1 == place]
        left = residuals(row, [laws[i] for i in children])
        last += [corner for one in left for corner in cdf_corners(one)]
        for i, before in zip(children, left, strict=False):
            tests[i] = [before[tokens[i]] / laws[i][tokens[i]]] if laws[i][tokens[i]] else []
    return [*tests, last]


def path_of(index: int, trial: Trial, one: Grown, rule: Rule) -> Path:
    """A drafted tree, numbered level by level, or branch by branch."""
    branches: list[tuple[int, ...]] = [()]  # the numbers of the root's and each token's branch
    for i, parent in enumerate(one.parents):
        branches.append((*branches[parent + 1], i))
    order = sorted(range(len(one.tokens)), key=lambda i: branches[i + 1] if trial.depth_first else i)
    number = {-1: -1} | {old: new for new, old in enumerate(order)}
    tokens = tuple(one.tokens[i] for i in order)
    laws, handed = ([x[i] for i in order] for x in (one.laws, one.handed))
    parents, prefixes = [number[one.parents[i]] for i in order], [(), *(one.prefixes[i + 1] for i in order)]
    rows = [trial.tables[0].target[prefix] for prefix in prefixes]
    corners = corners_of(tokens, parents, [*map(len, prefixes)], laws, rows, rule is follow)
    return Path(index, tokens, one.chance, [*map(boxes, corners)], rows, handed, parents, prefixes)


def play(trials: list[Trial], rule: Rule, at: float = 0.5) -> list[Outcome]:
    """Run a production rule in every box of every tree of every trial, in one batched call."""
    paths = [path_of(i, trial, one, rule) for i, trial in enumerate(trials) for one in grown(trial)]
    how = {"stored": trials[0].stored, "last_apart": rule is in_turn, "make": TreeDraft}
    return decide(paths, rule, max(len(path.tokens) for path in paths) + 1, at=at, **how)


# --- what must hold ---------------------------------------------------------------------------------------------------


def depth_of(shape: Shape) -> int:
    return 1 + max(map(depth_of, shape)) if shape else 0


def assert_lossless(trial: Trial, outcome: Outcome) -> None:
    length = depth_of(trial.shape) + 1
    assert completed(outcome.law, trial.tables[0], (), length) == target_law(trial.tables[0], (), length)


def prove(trials: list[Trial], rule: Rule) -> list[Outcome]:
    outcomes = play(trials, rule)
    for trial, outcome in zip(trials, outcomes, strict=True):
        assert_lossless(trial, outcome)
    return outcomes


def tables_of(seed: int, vocab: int, shape: Shape, family: str) -> tuple[Tables, ...]:
    """Three of them, since a node has three children at most; only the drafts of the others are read."""
    return tuple(random_tables(seed + 1000 * i, vocab, 0, depth_of(shape) + 1, family) for i in range(3))


LEAF: Shape = ()
FLAT = [(LEAF,) * m for m in (1, 2, 3)]  # one node with children
UP_TO_THREE = [(LEAF,) * m for m in range(4)]
THREE_BY_THREE = [children for m in range(1, 4) for children in itertools.product(UP_TO_THREE, repeat=m)]
_1, _2, _3 = FLAT
LARGER = [(_1, _1), (_2, _1), (_1, _2), (_2, _2), (_3, _1)]  # four to six nodes, up to four deep
LARGER += [(LEAF, _2, _1), ((_2,), LEAF), ((_1, LEAF), _1), ((((LEAF,),),), _1), ((_2, LEAF), LEAF)]
WAYS = [independent, of_several_drafts, different]
FAMILIES = ["dense", "zeros", "draft blind", "target forbids", "identical", "disjoint"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_children_of_one_node_leave_the_targets_law(way, family):
    """One place, up to three children. Children that all differ are drawn until the draft has no token left."""
    outcomes = []
    for vocab in (2, 3, 4):
        trials = [Trial(tables_of(i, vocab, shape, family), shape, way) for shape in FLAT for i in range(6)]
        outcomes += prove(trials, in_turn)
    impossible = {"some"}  # below a child is nothing
    if family == "identical":
        impossible |= {"none"}
    if family == "disjoint" and way is not of_several_drafts:
        impossible |= {"all"}
    assert_not_vacuous(outcomes, impossible)


@pytest.mark.parametrize("way", WAYS)
def test_whole_trees_leave_the_targets_joint_law(way):
    """Whether the nodes are numbered level by level or branch by branch."""
    outcomes = []
    for (vocab, shapes), family in itertools.product(((2, LARGER), (3, LARGER[:3])), ("dense", "zeros")):
        trials = [Trial(tables_of(i, vocab, shape, family), shape, way, bool(i % 2)) for i, shape in enumerate(shapes)]
        outcomes += prove(trials, in_turn)
    assert_not_vacuous(outcomes)


@pytest.mark.parametrize("family", ["zeros", "draft blind"])
def test_children_that_were_not_drawn_may_stay_in_the_midst_of_a_tree(family):
    """Where the draft has fewer tokens than a node has children. The joint law is the one without them, too."""
    outcomes, fewer = [], 0
    for vocab, shapes in ((2, FLAT + LARGER), (3, FLAT + LARGER[:4]), (4, FLAT)):
        both = [(tables_of(i, vocab, shape, family), shape) for i, shape in enumerate(shapes)]
        with_them = prove([Trial(*one, different_or_none) for one in both], in_turn)
        without_them = play([Trial(*one, different) for one in both], in_turn)
        assert [outcome.law for outcome in with_them] == [outcome.law for outcome in without_them]
        outcomes += with_them
        fewer += sum(sum(weight > 0 for weight in tables[0].draft[()]) < len(shape) for tables, shape in both)
    assert_not_vacuous(outcomes)
    assert fewer > 3


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("way", [most_probable_ones, scattered])
def test_tokens_that_no_chance_chose_are_one_hot(way, stored):
    """With no probabilities, and with one-hot ones; equal children among them."""
    outcomes = []
    for vocab, family, i in itertools.product((2, 3), ("dense", "zeros"), range(2)):
        trials = [Trial(tables_of(i, vocab, s, family), s, way, bool(i), stored) for s in FLAT + LARGER]
        outcomes += prove(trials, in_turn)
    assert_not_vacuous(outcomes)


@pytest.mark.parametrize("way", [most_probable_ones, scattered])
def test_following_gives_the_targets_joint_law_for_every_shape(way):
    """All trees of two levels with up to three children each. For each tree on its own: how it was made is no matter.

    The most probable tokens all differ, so a vocabulary of 2 has two of them at most; scattered ones repeat.
    """
    outcomes = []
    for vocab, family in itertools.product((2, 3), ("dense", "zeros")):
        trials = [Trial(tables_of(vocab, vocab, shape, family), shape, way, stored=False) for shape in THREE_BY_THREE]
        outcomes += prove(trials, follow)
    assert_not_vacuous(outcomes)


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_children_are_kept_as_the_rule_may_keep(family):
    """1 - the product of what max(0, r - q) leaves. A rule that rejects everything would pass as lossless."""
    for vocab, way in itertools.product((2, 3, 4), (independent, of_several_drafts)):
        trials = [Trial(tables_of(seed, vocab, shape, family), shape, way) for shape in FLAT for seed in range(3)]
        for trial, outcome in zip(trials, play(trials, in_turn), strict=True):
            (siblings, *_) = way(trial, (), len(trial.shape))
            rows = residuals(trial.tables[0].target[()], siblings.laws)
            kept = [sum(map(min, row, law)) for row, law in zip(rows, siblings.laws, strict=False)]
            assert outcome.n_accepted == 1 - math.prod(1 - share for share in kept)


@pytest.mark.parametrize("rule", RULES)
def test_the_decision_is_constant_in_every_box(rule):
    """The enumeration rests on it: near the corners of the boxes the same comes out as in their centres."""
    for way, (vocab, shapes) in itertools.product(WAYS, ((2, LARGER), (4, FLAT))):
        trials = [Trial(tables_of(i, vocab, shape, "zeros"), shape, way) for i, shape in enumerate(shapes)]
        first, *others = ([outcome.verdicts for outcome in play(trials, rule, at)] for at in (0.001, 0.5, 0.999))
        assert others == [first, first]


@pytest.mark.parametrize("family", ["dense", "zeros", "one-hot stored"])
def test_draws_without_replacement_have_the_laws_that_are_handed_over(family):
    for vocab, m in itertools.product((2, 3, 4), (1, 2, 3, 4)):
        for seed in range(5):
            row = random_tables(seed, vocab, 0, 1, family).draft[()]
            size = min(m, sum(weight > 0 for weight in row))
            found = drawn_without_replacement(tuple(row), m)
            assert sum(siblings.chance for siblings in found) == 1
            for tokens, laws, handed, chance in found:
                assert len(set(tokens)) == len(tokens) == size
                assert chance == math.prod((law[x] for law, x in zip(laws, tokens, strict=True)), start=ONE)
                for law, given_law in zip(laws, handed, strict=True):
                    assert given_law == pytest.approx(floats(law), abs=1e-15)
                    assert [weight == 0 for weight in given_law] == [weight == 0 for weight in law]


# --- decisions one by one ---------------------------------------------------------------------------------------------

SAMPLED = Sampling(temperature=1.0)


class Batch(NamedTuple):
    draft: Draft
    target_probs: Tensor
    uniforms: Tensor


def random_batch(seed: int, batch: int, n: int, vocab: int = 4) -> Batch:
    """Trees of any shape and size, rows with zeros, tokens that their laws may give."""
    generator = torch.Generator().manual_seed(seed)

    def rows(m: int) -> Tensor:
        weights = torch.rand(batch, m, vocab, generator=generator, dtype=torch.float64) ** 2 + 1e-3
        weights = torch.where(torch.rand(batch, m, vocab, generator=generator) < 0.3, 0.0, weights)
        weights[..., 0] += 1e-3
        return weights / weights.sum(-1, keepdim=True)

    laws = rows(n)
    uniforms = torch.rand(batch, n + 1, generator=generator, dtype=torch.float64)
    at = torch.rand(batch * n, generator=generator, dtype=torch.float64)
    places = torch.rand(batch, n, generator=generator) * torch.arange(1, n + 1)
    size = torch.randint(0, n + 1, (batch,), generator=generator)
    draft = TreeDraft(draw(laws.flatten(0, 1), at).view(batch, n), size, laws, parents=places.long() - 1)
    return Batch(draft, rows(n + 1), uniforms)


@pytest.mark.parametrize("stored", [False, True])
def test_a_chain_is_judged_as_by_the_token_rule(stored):
    """The same decisions on the same uniforms, with and without parents."""
    kept = Counter()
    for n in (0, 1, 2, 5):
        draft, target_probs, uniforms = random_batch(n, 2000, n)
        draft = Draft(draft.tokens, draft.size, draft.probs if stored else None)
        by_token = accept(draft, target_probs, uniforms)
        chain = torch.arange(-1, n - 1).expand(2000, n)
        for one in (draft, TreeDraft(draft.tokens, draft.size, draft.probs, parents=chain)):
            result = in_turn(one, target_probs, uniforms)
            assert all(map(torch.equal, result[:2], by_token[:2]))
            number = torch.arange(n).expand(2000, n)
            assert result.path.equal(number.where(number < by_token.n_accepted[:, None], -1))
            followed, as_chain = (follow(each, target_probs, uniforms)[:2] for each in (one, draft))
            assert all(map(torch.equal, followed, as_chain))
        kept.update(by_token.n_accepted.tolist())
    assert len(kept) > 3


@pytest.mark.parametrize("rule", RULES)
def test_a_dead_node_is_never_kept_and_rows_are_independent(rule):
    """A row decides as it does alone and without what lies beyond its size, even where that would be kept."""
    batch, n = 400, 7
    draft, target_probs, uniforms = random_batch(5, batch, n)
    dead = torch.arange(n) >= draft.size[:, None]
    likely = torch.where(dead, target_probs.argmax(-1).gather(1, draft.parents + 1), draft.tokens)
    tempting, poisoned = (
        replace(draft, tokens=likely, probs=draft.probs.masked_fill(dead[..., None], x)) for x in (TINY, torch.nan)
    )
    poisoned_rows = target_probs.masked_fill(torch.nn.functional.pad(dead, (1, 0))[..., None], torch.nan)
    expected = rule(tempting, target_probs, uniforms)
    assert_are_paths(tempting, expected)
    for i, size in enumerate(draft.size.tolist()):
        tokens, laws, parents = (x[i : i + 1, :size] for x in (tempting.tokens, draft.probs, draft.parents))
        cut = TreeDraft(tokens, draft.size[i : i + 1], laws, parents=parents)
        own = torch.cat([uniforms[i : i + 1, :size], uniforms[i : i + 1, n if rule is in_turn else size, None]], dim=1)
        alone = rule(cut, target_probs[i : i + 1, : size + 1], own)
        assert (alone.n_accepted, alone.next_token) == (expected.n_accepted[i], expected.next_token[i])
        assert alone.path[0].tolist() == expected.path[i, :size].tolist()
    for part, other in zip(expected, rule(poisoned, poisoned_rows, uniforms), strict=True):
        assert part.equal(other)
    tempted = rule(replace(tempting, size=torch.full_like(draft.size, n)), target_probs, uniforms)
    assert (tempted.n_accepted != expected.n_accepted).sum() > 40


@pytest.mark.parametrize("rule", RULES)
def test_a_token_that_the_target_forbids_is_never_kept(rule):
    """Uniforms may be 0, and close to 1."""
    draft, target_probs, uniforms = random_batch(6, 3000, 6)
    for at in (0.0, math.nextafter(1.0, 0.0)):
        result = rule(draft, target_probs, torch.full_like(uniforms, at))
        before = torch.zeros_like(result.n_accepted)
        for i in range(6):
            node = result.path[:, i].clamp(min=0)
            token = draft.tokens.gather(1, node[:, None])
            probability = target_probs[torch.arange(3000), before].gather(-1, token)[:, 0]
            assert (probability[i < result.n_accepted] > 0).all()
            before = torch.where(i < result.n_accepted, node + 1, before)
        assert (target_probs[torch.arange(3000), before].gather(-1, result.next_token[:, None]) > 0).all()


def test_a_residual_without_mass_leaves_what_was_before_it():
    """Laws of twice the mass stand for rounding. After child 0 only token 1 is left, and child 1's law covers it."""
    laws, parents = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.5, 0.5]]]).double(), torch.tensor([[-1, -1]])
    draft = TreeDraft(torch.tensor([[0, 2]]), torch.tensor([2]), laws, parents=parents)
    target_probs = torch.tensor([[[0.5, 0.5, 0.0]] * 3]).double()
    result = in_turn(draft, target_probs, torch.tensor([[0.9, 0.9, 0.1]]).double())
    assert (result.n_accepted.item(), result.next_token.item()) == (0, 1)


@pytest.mark.parametrize("rule", RULES)
def test_numbers_that_are_not_finite_are_reported(rule):
    draft, target_probs, uniforms = random_batch(7, 50, 4)
    nan = torch.full_like(target_probs, float("nan"))
    result = rule(draft, nan, uniforms)
    assert ({*result.next_token.tolist()}, {*result.n_accepted.tolist()}) == ({NOT_FINITE}, {0})
    result = in_turn(replace(draft, probs=nan[:, :4], size=torch.full_like(draft.size, 4)), target_probs, uniforms)
    assert (result.next_token == NOT_FINITE).all()


def test_draws_without_replacement_end_where_no_weight_is_left():
    uniforms = torch.tensor([[0.3, 0.5, 0.5], [0.8, 0.5, 0.5]]).double()
    tokens, laws, n_drawn = fixed_module.without_replacement(torch.tensor([0.0, 0.5, 0.0, 0.5]).double(), uniforms)
    assert tokens.tolist() == [[1, 3, 0], [3, 1, 0]]
    assert n_drawn.tolist() == [2, 2]
    assert laws[0].tolist() == [[0, 0.5, 0, 0.5], [0, 0, 0, 1], [0, 0, 0, 0]]
    nothing = fixed_module.without_replacement(torch.tensor([0.5, 0.5]), uniforms[:, :0])
    assert [part.shape for part in nothing] == [(2, 0), (2, 0, 2), (2,)]
    tokens, laws, n_drawn = fixed_module.without_replacement(torch.full((2, 4), float("nan")), uniforms)
    assert tokens.tolist() == [[0] * 3] * 2  # fed as any other, and the accept rule meets laws that are no numbers
    assert laws[:, 0].isnan().all()
    assert n_drawn.tolist() == [3, 3]


def test_nothing_here_waits_for_the_device():
    draft, target_probs, uniforms = random_batch(8, 3, 5)
    with Watch() as watch:
        for rule in RULES:
            rule(draft, target_probs, uniforms)
        for sampling in (GREEDY, SAMPLED):
            accept_tree_from_logits(draft, target_probs, sampling, uniforms)
        fixed_module.without_replacement(target_probs[:, 0], uniforms)
    assert not watch.calls
