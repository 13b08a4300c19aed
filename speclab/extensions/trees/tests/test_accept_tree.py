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
    CENTRE,
    Box,
    Law,
    Prefix,
    Row,
    Tables,
    boxes,
    cdf_corners,
    completed,
    floats,
    inside,
    random_tables,
    target_law,
)
from tests.watch import Watch

Shape = tuple  # of the children's shapes: ((), ((),)) is two children, the second of which has one
ZERO, ONE = Fraction(0), Fraction(1)
TINY = 1e-12  # a law that accepts all that the target allows


# --- every tree that may be drafted -----------------------------------------------------------------------------------


class Node(NamedTuple):
    token: int
    law: Row  # what it was drawn from
    handed: list[float]  # what the drafter says it was drawn from
    children: tuple["Node", ...] = ()


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
    found = []
    for tokens, laws, handed, chance in different(trial, prefix, m):
        n = m - len(tokens)
        filled = (*tokens, *[0] * n), laws + [zeros] * n, handed + [floats(zeros)] * n
        found.append(Siblings(*filled, chance))
    return found


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


def cells(sides: list[list[Box]], at: Fraction = CENTRE) -> tuple[Tensor, list[int], int]:
    """All products of boxes: a point in each (cells, sides), and their volumes as integers over one denominator."""
    points = torch.cartesian_prod(
        *(torch.tensor([inside(box, at) for box in side], dtype=torch.float64) for side in sides)
    )
    volumes, denominator = [1], 1
    for side in sides:
        common = math.lcm(*((high - low).denominator for low, high in side))
        widths = [int((high - low) * common) for low, high in side]
        volumes, denominator = [volume * width for volume in volumes for width in widths], denominator * common
    return points.reshape(-1, len(sides)), volumes, denominator


def grown(trial: Trial, shape: Shape, prefix: Prefix = ()) -> Iterator[tuple[tuple[Node, ...], Fraction]]:
    """Every outcome of drafting what follows `prefix`, and its chance."""
    if not shape:
        yield (), ONE
        return
    for siblings in trial.way(trial, prefix, len(shape)):
        m = len(siblings.tokens)
        below = [list(grown(trial, shape[i], (*prefix, siblings.tokens[i]))) for i in range(m)]
        for subtrees in itertools.product(*below):
            nodes = [Node(*parts, subtree) for *parts, (subtree, _) in zip(*siblings[:3], subtrees, strict=True)]
            yield tuple(nodes), math.prod((chance for _, chance in subtrees), start=siblings.chance)


class Tree(NamedTuple):
    """A drafted tree with its nodes numbered, and the boxes in which the rule's decision is constant."""

    trial: int
    nodes: list[Node]
    parents: list[int]
    prefixes: list[Prefix]  # of the root and each node: the drafted tokens up to there
    chance: Fraction


def numbered(index: int, roots: tuple[Node, ...], chance: Fraction, depth_first: bool) -> Tree:
    tree = Tree(index, [], [], [()], chance)
    waiting = [(node, -1) for node in roots]
    while waiting:
        node, parent = waiting.pop(0)
        below = [(child, len(tree.nodes)) for child in node.children]
        waiting = below + waiting if depth_first else waiting + below
        tree.nodes.append(node)
        tree.parents.append(parent)
        tree.prefixes.append((*tree.prefixes[parent + 1], node.token))
    return tree


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


def sides_of(tree: Tree, target: dict[Prefix, Row], rule: Callable) -> list[list[Box]]:
    """One side for each uniform. Every row that might be drawn from cuts it, so that a wrong one shows, too."""
    n = len(tree.nodes)
    if rule is follow:
        corners: list[list[Fraction]] = [[] for _ in range(n + 1)]
        for prefix in tree.prefixes:
            corners[len(prefix)] += cdf_corners(target[prefix])
        return [boxes(cuts) for cuts in corners]
    tests, last = [[]] * n, []
    for place, prefix in enumerate(tree.prefixes):
        children = [i for i in range(n) if tree.parents[i] + 1 == place]
        laws = [tree.nodes[i].law for i in children]
        rows = residuals(target[prefix], laws)
        last += [corner for row in rows for corner in cdf_corners(row)]
        for i, law, row in zip(children, laws, rows, strict=False):
            token = tree.nodes[i].token
            tests[i] = [row[token] / law[token]] if law[token] else []
    return [*map(boxes, tests), boxes(last)]


class Outcome(NamedTuple):
    law: Law  # tokens committed by the round -> exact probability
    tally: Counter[str]
    n_accepted: Fraction


def tensors(trees: list[Tree], trials: list[Trial], n: int) -> tuple[Draft, Tensor]:
    """The trees as one batch, and the target's rows. What fills them up to n nodes would be kept where it is tested."""
    vocab = trials[0].tables[0].vocab
    ids, parents, laws, rows = [], [], [], []
    for tree in trees:
        target, n_pads = trials[tree.trial].tables[0].target, n - len(tree.nodes)
        places = [i % len(tree.prefixes) for i in range(n_pads)]  # the pads follow the nodes in turn
        likely = [max(range(vocab), key=target[tree.prefixes[place]].__getitem__) for place in places]
        ids.append([node.token for node in tree.nodes] + likely)
        parents.append(tree.parents + [place - 1 for place in places])
        laws.append([node.handed for node in tree.nodes] + [[TINY] * vocab] * n_pads)
        rows.append([floats(target[prefix]) for prefix in tree.prefixes])
        rows[-1] += [[float(token == 0) for token in range(vocab)]] * n_pads
    draft = TreeDraft(
        torch.tensor(ids),
        torch.tensor([len(tree.nodes) for tree in trees]),
        torch.tensor(laws, dtype=torch.float64) if trials[0].stored else None,
        parents=torch.tensor(parents),
    )
    return draft, torch.tensor(rows, dtype=torch.float64)


def play(trials: list[Trial], rule: Callable, at: Fraction = CENTRE) -> list[Outcome]:
    """Run a production rule in every box of every tree of every trial, in one batched call."""
    trees = [
        numbered(i, roots, chance, trial.depth_first)
        for i, trial in enumerate(trials)
        for roots, chance in grown(trial, trial.shape)
    ]
    n = max(len(tree.nodes) for tree in trees) + 1
    draft, target_probs = tensors(trees, trials, n)
    parts, uniforms = [], []
    for tree in trees:
        points, volumes, denominator = cells(sides_of(tree, trials[tree.trial].tables[0].target, rule), at)
        parts.append((volumes, denominator))
        pads = points.new_zeros(len(points), n + 1 - points.shape[1])  # a pad's test would pass
        uniforms.append(torch.cat([points[:, :-1], pads, points[:, -1:]] if rule is in_turn else [points, pads], dim=1))
    of_cell = torch.arange(len(trees)).repeat_interleave(torch.tensor([len(volumes) for volumes, _ in parts]))
    batch = replace(draft, **{name: part[of_cell] for name, part in vars(draft).items() if part is not None})
    result = rule(batch, target_probs[of_cell], torch.cat(uniforms))
    assert_are_paths(batch, result)
    leaf = result.path.amax(-1) + 1  # (cells,) the row where the path ends, and with it the path
    decided = iter(zip(leaf.tolist(), result.next_token.tolist(), strict=True))

    outcomes = [Outcome({}, Counter(), ZERO) for _ in trials]
    for tree, (volumes, denominator) in zip(trees, parts, strict=True):
        law, tally, mean = outcomes[tree.trial]
        counts: Counter[tuple[int, int]] = Counter()
        for volume, end in zip(volumes, decided, strict=False):
            counts[end] += volume
        for (place, next_token), count in counts.items():
            chance = tree.chance * Fraction(count, denominator)
            block = (*tree.prefixes[place], next_token)
            assert next_token != NOT_FINITE
            law[block] = law.get(block, ZERO) + chance
            mean += chance * (len(block) - 1)
            inner = place - 1 in tree.parents
            tally[("partial" if inner else "bonus") if place else "none"] += 1
        outcomes[tree.trial] = Outcome(law, tally, mean)
    assert all(sum(outcome.law.values()) == 1 for outcome in outcomes)
    return outcomes


def assert_are_paths(draft: Draft, result: AcceptResult) -> None:
    """Live nodes, each the child of the one before it, the first of the root, and as many as `n_accepted` says."""
    parents = torch.cat([torch.full_like(draft.parents[:, :1], -1), draft.parents], dim=1)  # of rows, from 1 on
    path, before = result.path, torch.full_like(result.n_accepted, -1)
    assert path.shape == draft.tokens.shape
    for i in range(path.shape[1]):
        kept = i < result.n_accepted
        assert ((path[:, i] >= 0) == kept).all()
        assert (path[:, i] < draft.size).all(), "a dead node was kept"
        follows = parents.gather(1, (path[:, i] + 1)[:, None])[:, 0] == before
        assert (follows | ~kept).all()
        before = torch.where(kept, path[:, i], before)
    assert (result.n_accepted <= draft.size).all()


# --- what must hold ---------------------------------------------------------------------------------------------------


def depth_of(shape: Shape) -> int:
    return 1 + max(map(depth_of, shape)) if shape else 0


def assert_lossless(trial: Trial, outcome: Outcome) -> None:
    length = depth_of(trial.shape) + 1
    assert completed(outcome.law, trial.tables[0], (), length) == target_law(trial.tables[0], (), length)


def prove(trials: list[Trial], rule: Callable) -> Counter[str]:
    """-> how the rounds went: kept none, some, or down to a leaf"""
    outcomes = play(trials, rule)
    for trial, outcome in zip(trials, outcomes, strict=True):
        assert_lossless(trial, outcome)
    return sum((outcome.tally for outcome in outcomes), Counter())


def assert_not_vacuous(tally: Counter[str], impossible: set[str] = frozenset()) -> None:
    for kind in ("none", "partial", "bonus"):
        assert (tally[kind] == 0) == (kind in impossible), (kind, tally)


def tables_of(seed: int, vocab: int, shape: Shape, family: str) -> tuple[Tables, ...]:
    """Three of them, since a node has three children at most; only the drafts of the others are read."""
    return tuple(random_tables(seed + 1000 * i, vocab, 0, depth_of(shape) + 1, family) for i in range(3))


LEAF: Shape = ()
FLAT = [(LEAF,) * m for m in (1, 2, 3)]  # one node with children
UP_TO_THREE = [(LEAF,) * m for m in range(4)]
THREE_BY_THREE = [children for m in range(1, 4) for children in itertools.product(UP_TO_THREE, repeat=m)]
LARGER = [  # four to six nodes, up to four deep
    (FLAT[0], FLAT[0]),
    (FLAT[1], FLAT[0]),
    (FLAT[0], FLAT[1]),
    (FLAT[1], FLAT[1]),
    (FLAT[2], FLAT[0]),
    (LEAF, FLAT[1], FLAT[0]),
    ((FLAT[1],), LEAF),
    ((FLAT[0], LEAF), FLAT[0]),
    ((((LEAF,),),), FLAT[0]),
    ((FLAT[1], LEAF), LEAF),
]
WAYS = [independent, of_several_drafts, different]
FAMILIES = ["dense", "zeros", "draft blind", "target forbids", "identical", "disjoint"]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_children_of_one_node_leave_the_targets_law(way, family):
    """One place, up to three children. Children that all differ are drawn until the draft has no token left."""
    tally = Counter()
    for vocab in (2, 3, 4):
        tally += prove(
            [Trial(tables_of(i, vocab, shape, family), shape, way) for shape in FLAT for i in range(6)], in_turn
        )
    impossible = {"partial"}  # below a child is nothing
    if family == "identical":
        impossible |= {"none"}
    if family == "disjoint" and way is not of_several_drafts:
        impossible |= {"bonus"}
    assert_not_vacuous(tally, impossible)


@pytest.mark.parametrize("way", WAYS)
def test_whole_trees_leave_the_targets_joint_law(way):
    """Whether the nodes are numbered level by level or branch by branch."""
    tally = Counter()
    for (vocab, shapes), family in itertools.product(((2, LARGER), (3, LARGER[:3])), ("dense", "zeros")):
        trials = [Trial(tables_of(i, vocab, shape, family), shape, way, bool(i % 2)) for i, shape in enumerate(shapes)]
        tally += prove(trials, in_turn)
    assert_not_vacuous(tally)


@pytest.mark.parametrize("family", ["zeros", "draft blind"])
def test_children_that_were_not_drawn_may_stay_in_the_midst_of_a_tree(family):
    """Where the draft has fewer tokens than a node has children. The joint law is the one without them, too."""
    tally, fewer = Counter(), 0
    for vocab, shapes in ((2, FLAT + LARGER), (3, FLAT + LARGER[:4]), (4, FLAT)):
        tables = [tables_of(i, vocab, shape, family) for i, shape in enumerate(shapes)]
        with_them, without_them = (
            [Trial(*both, way) for both in zip(tables, shapes, strict=True)] for way in (different_or_none, different)
        )
        tally += prove(with_them, in_turn)
        laws = [[outcome.law for outcome in play(trials, in_turn)] for trials in (with_them, without_them)]
        assert laws[0] == laws[1]
        fewer += sum(sum(weight > 0 for weight in t[0].draft[()]) < len(s) for t, s in zip(tables, shapes, strict=True))
    assert_not_vacuous(tally)
    assert fewer > 3


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("way", [most_probable_ones, scattered])
def test_tokens_that_no_chance_chose_are_one_hot(way, stored):
    """With no probabilities, and with one-hot ones; equal children among them."""
    tally = Counter()
    for vocab, family, i in itertools.product((2, 3), ("dense", "zeros"), range(2)):
        shapes = FLAT + LARGER
        trials = [Trial(tables_of(i, vocab, shape, family), shape, way, bool(i), stored) for shape in shapes]
        tally += prove(trials, in_turn)
    assert_not_vacuous(tally)


@pytest.mark.parametrize("way", [most_probable_ones, scattered])
def test_following_gives_the_targets_joint_law_for_every_shape(way):
    """All trees of two levels with up to three children each. For each tree on its own: how it was made is no matter.

    The most probable tokens all differ, so a vocabulary of 2 has two of them at most; scattered ones repeat.
    """
    tally = Counter()
    for vocab, family in itertools.product((2, 3), ("dense", "zeros")):
        trials = [Trial(tables_of(vocab, vocab, shape, family), shape, way, stored=False) for shape in THREE_BY_THREE]
        tally += prove(trials, follow)
    assert_not_vacuous(tally)


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_children_are_kept_as_the_rule_may_keep(family):
    """1 - the product of what max(0, r - q) leaves. A rule that rejects everything would pass as lossless."""
    for vocab in (2, 3, 4):
        for way in (independent, of_several_drafts):
            trials = [Trial(tables_of(seed, vocab, shape, family), shape, way) for shape in FLAT for seed in range(3)]
            for trial, outcome in zip(trials, play(trials, in_turn), strict=True):
                (siblings, *_) = way(trial, (), len(trial.shape))
                rows = residuals(trial.tables[0].target[()], siblings.laws)
                none = ONE
                for row, law in zip(rows, siblings.laws, strict=False):
                    none *= 1 - sum(map(min, row, law))
                assert outcome.n_accepted == 1 - none


@pytest.mark.parametrize("rule", RULES)
def test_the_decision_is_constant_in_every_box(rule):
    """The enumeration rests on it: near the corners of the boxes the same comes out as in their centres."""
    for way, (vocab, shapes) in itertools.product(WAYS, ((2, LARGER), (4, FLAT))):
        trials = [Trial(tables_of(i, vocab, shape, "zeros"), shape, way) for i, shape in enumerate(shapes)]
        laws = [[out.law for out in play(trials, rule, Fraction(at, 1000))] for at in (1, 500, 999)]
        assert laws[0] == laws[1] == laws[2]


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
            assert result.n_accepted.equal(by_token.n_accepted)
            assert result.next_token.equal(by_token.next_token)
            number = torch.arange(n).expand(2000, n)
            assert result.path.equal(number.where(number < by_token.n_accepted[:, None], -1))
            followed, as_chain = follow(one, target_probs, uniforms), follow(draft, target_probs, uniforms)
            assert followed.n_accepted.equal(as_chain.n_accepted)
            assert followed.next_token.equal(as_chain.next_token)
        kept.update(by_token.n_accepted.tolist())
    assert len(kept) > 3


@pytest.mark.parametrize("rule", RULES)
def test_a_dead_node_is_never_kept_and_rows_are_independent(rule):
    """A row decides as it does alone and without what lies beyond its size, even where that would be kept."""
    batch, n = 400, 7
    draft, target_probs, uniforms = random_batch(5, batch, n)
    dead = torch.arange(n) >= draft.size[:, None]
    likely = target_probs.argmax(-1).gather(1, draft.parents + 1)
    tempting = replace(
        draft, tokens=torch.where(dead, likely, draft.tokens), probs=draft.probs.masked_fill(dead[..., None], TINY)
    )
    nan = float("nan")
    poisoned = replace(tempting, probs=draft.probs.masked_fill(dead[..., None], nan))
    rows_of_dead = torch.cat([torch.zeros(batch, 1, dtype=torch.bool), dead], dim=1)
    poisoned_rows = target_probs.masked_fill(rows_of_dead[..., None], nan)
    expected = rule(tempting, target_probs, uniforms)
    assert_are_paths(tempting, expected)
    for i, size in enumerate(draft.size.tolist()):
        cut = TreeDraft(
            tempting.tokens[i : i + 1, :size],
            draft.size[i : i + 1],
            draft.probs[i : i + 1, :size],
            parents=draft.parents[i : i + 1, :size],
        )
        own = torch.cat([uniforms[i : i + 1, :size], uniforms[i : i + 1, n if rule is in_turn else size, None]], dim=1)
        alone = rule(cut, target_probs[i : i + 1, : size + 1], own)
        assert alone.n_accepted == expected.n_accepted[i]
        assert alone.next_token == expected.next_token[i]
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
    draft = TreeDraft(
        torch.tensor([[0, 2]]),
        torch.tensor([2]),
        torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.5, 0.5]]]).double(),
        parents=torch.tensor([[-1, -1]]),
    )
    target_probs = torch.tensor([[[0.5, 0.5, 0.0]] * 3]).double()
    result = in_turn(draft, target_probs, torch.tensor([[0.9, 0.9, 0.1]]).double())
    assert (result.n_accepted.item(), result.next_token.item()) == (0, 1)


@pytest.mark.parametrize("rule", RULES)
def test_numbers_that_are_not_finite_are_reported(rule):
    draft, target_probs, uniforms = random_batch(7, 50, 4)
    nan = torch.full_like(target_probs, float("nan"))
    result = rule(draft, nan, uniforms)
    assert (result.next_token == NOT_FINITE).all()
    assert (result.n_accepted == 0).all()
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
