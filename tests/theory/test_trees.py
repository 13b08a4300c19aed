"""The best trees against all trees, against Sequoia's dynamic programme, and against chains."""

import functools
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclab.theory.trees import Tree, best_tree, expected_tokens, fastest_tree, survivals

RATE = st.floats(0, 1)


@functools.cache
def all_trees(n: int, n_ranks: int) -> list[Tree]:
    """Every tree of n tokens, each written down once: parents never fall, and ranks rise among siblings."""
    if n == 0:
        return [Tree((), ())]
    found = []
    for parents, ranks in all_trees(n - 1, n_ranks):
        for parent in range(max(parents, default=-1), n - 1):
            taken = [rank for other, rank in zip(parents, ranks, strict=True) if other == parent]
            for rank in range(max(taken, default=-1) + 1, n_ranks):
                found.append(Tree((*parents, parent), (*ranks, rank)))
    return found


def by_definition(tree: Tree, rates: list[list[float]]) -> float:
    """1 + the chance of every token, each along its branch up to the root."""
    total = 1.0
    for node in range(len(tree.parents)):
        branch: list[int] = []
        at = node
        while at >= 0:
            branch = [tree.ranks[at], *branch]
            at = tree.parents[at]
        chance = 1.0
        for depth, rank in enumerate(branch):
            chance *= rates[min(depth, len(rates) - 1)][rank]
        total += chance
    return total


def sequoia(rates: list[float], n: int) -> float:
    """Expected tokens of the best tree of n, by dynamic programming.

    below[m]: what m tokens are worth behind an accepted token. children[m, r]: the same where ranks from r on are left.
    """

    @functools.cache
    def children(m: int, rank: int) -> float:
        if m == 0 or rank == len(rates):
            return 0.0
        taken = [rates[rank] * (1 + children(i - 1, 0)) + children(m - i, rank + 1) for i in range(1, m + 1)]
        return max(children(m, rank + 1), *taken)

    return 1 + children(n, 0)


def is_a_tree(tree: Tree) -> bool:
    places = list(zip(*tree, strict=True))
    return all(parent < i for i, parent in enumerate(tree.parents)) and len(set(places)) == len(places)


def test_there_are_as_many_trees_as_there_should_be():
    """With one rank a chain; with two and three the numbers of binary and ternary trees; none is written down twice."""
    assert [len(all_trees(n, 1)) for n in range(5)] == [1, 1, 1, 1, 1]
    assert [len(all_trees(n, 2)) for n in range(6)] == [1, 2, 5, 14, 42, 132]
    assert len(set(all_trees(4, 3))) == len(all_trees(4, 3)) == 273


@given(st.lists(st.lists(RATE, min_size=3, max_size=3), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None)
def test_no_tree_of_up_to_six_tokens_is_better(rates):
    """Ranks need not fall, and may differ by depth."""
    given_rates = rates if len(rates) > 1 else rates[0]
    for n in range(7):
        tree = best_tree(given_rates, n)
        assert is_a_tree(tree)
        assert len(tree.parents) == n
        best = max(by_definition(one, rates) for one in all_trees(n, 3))
        assert by_definition(tree, rates) == pytest.approx(best)
        assert expected_tokens(*tree, given_rates) == pytest.approx(best)


@given(st.lists(RATE, min_size=1, max_size=4), st.integers(0, 14))
def test_the_dynamic_programme_finds_no_better_tree(rates, n):
    tree = best_tree(rates, n)
    assert is_a_tree(tree)
    assert expected_tokens(*tree, rates) == pytest.approx(sequoia(rates, n))


@given(st.lists(RATE, min_size=1, max_size=4), st.integers(0, 30))
def test_never_worse_than_a_chain(rates, n):
    chain = Tree(tuple(range(-1, n - 1)), (0,) * n)
    assert expected_tokens(*best_tree(rates, n), rates) >= expected_tokens(*chain, rates) - 1e-12


@given(st.lists(RATE, min_size=1, max_size=4), st.integers(0, 20), st.integers(1, 4))
def test_the_first_tokens_are_the_best_smaller_tree_and_depth_has_a_limit(rates, n, deepest):
    tree = best_tree(rates, n, deepest)
    assert max(tree.depths, default=0) <= deepest
    for m in range(n):
        assert tree.first(m) == best_tree(rates, m, deepest)
    chances = survivals(*tree, rates)
    assert chances == sorted(chances, reverse=True)


def trees_with_costs(n_most: int, n_levels: int) -> Iterator[Tree]:
    for n in range(n_most + 1):
        yield from (tree for tree in all_trees(n, 2) if max(tree.depths, default=0) <= n_levels)


@given(st.lists(RATE, min_size=2, max_size=2), st.lists(st.floats(0, 1), min_size=9, max_size=9))
@settings(max_examples=60, deadline=None)
def test_no_tree_commits_more_tokens_per_second(rates, steps):
    """Of all trees with up to five tokens and three levels; and none has a higher E - S * seconds at its rate S."""
    levels = list(itertools.accumulate(steps[:3], initial=0.1))
    rest = list(itertools.accumulate(steps[3:8], initial=1.0))
    tree = fastest_tree(rates, levels, rest)

    def worth(one: Tree) -> tuple[float, float]:
        return expected_tokens(*one, rates), levels[max(one.depths, default=0)] + rest[len(one.parents)]

    tokens, seconds = worth(tree)
    rate = tokens / seconds
    for other in trees_with_costs(5, 3):
        expected, taken = worth(other)
        assert expected / taken <= rate + 1e-9
        assert expected - rate * taken <= tokens - rate * seconds + 1e-9


def test_dear_tokens_leave_no_tree():
    assert fastest_tree([0.9, 0.1], [0.0, 5.0], [1.0, 1.0]) == Tree((), ())
    assert fastest_tree([0.9, 0.1], [0.0, 0.1], [1.0, 1.0, 1.0]) == Tree((-1, -1), (0, 1))
