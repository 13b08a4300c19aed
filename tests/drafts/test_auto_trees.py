"""Trees that choose their size: the rule, what it learns from, and the text."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.hybrid import forget
from speclab.drafts.lengths import LONGEST, PAUSE
from speclab.drafts.select import auto_length, can_choose
from speclab.drafts.tree import BestTreeDrafter, Looked
from speclab.drafts.trees import auto
from speclab.drafts.trees.auto import (
    EDGES,
    LARGEST,
    AutoTreeDrafter,
    TreeAcceptance,
    TreeCosts,
    further_levels,
    prospects,
)
from speclab.drafts.trees.fixed import TreeDrafter
from speclab.lab.bench import SPECULATIVE
from speclab.lab.replay import replayed
from speclab.lab.round_costs import measure_costs, tree_costs_of
from speclab.records.samples import Made
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text, speculative_rounds
from tests.drafts.test_tree import with_head, with_model
from tests.tiny_models import VOCAB

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
N_NEW = 40
FREE = TreeCosts((0.0,) * 9, (1.0,) * (LARGEST + 1))
DEAR = TreeCosts(tuple(10.0 * d for d in range(9)), (1.0,) * (LARGEST + 1))
USUAL = TreeCosts(tuple(0.05 * d for d in range(9)), tuple(1 + 0.02 * n for n in range(LARGEST + 1)))
STEEP = TreeCosts(tuple(0.1 * d for d in range(9)), tuple(1 + 0.15 * n for n in range(LARGEST + 1)))
COSTS = {"free": FREE, "dear": DEAR, "usual": USUAL, "steep": STEEP, "unknown": None}


def drafter_of(kind: str, fast: bool = False, costs: TreeCosts | None = USUAL) -> tuple:
    """A target, and a drafter on auto whose costs are known at the temperatures of the tests."""
    target, inner = with_model("fast llama" if fast else "llama") if kind == "model" else with_head(kind, fast)
    tree = AutoTreeDrafter(inner)
    tree.costs |= {temperature: costs for temperature in (0.0, 0.8) if costs}
    return target, tree


def decoded(target, tree, *how) -> list[Round]:
    return list(speculative_rounds(target, tree, PROMPT, LARGEST, N_NEW, *how))


# --- the rule ---------------------------------------------------------------------------------------------------------

RATES = st.lists(st.floats(0, 1), min_size=1, max_size=4)


@given(RATES, st.integers(0, 4))
def test_further_levels_are_the_best_products(rates, n_levels):
    falling, start = np.array(sorted(rates, reverse=True)), np.array([0.9, 0.3])
    found = further_levels(start, falling, n_levels)
    assert found.shape == (n_levels, len(rates))
    for depth, row in enumerate(found, 1):
        ways = [one * np.prod(way) for one in start for way in itertools.product(falling, repeat=depth)]
        best = sorted(ways, reverse=True)[: len(rates)]
        assert row == pytest.approx(np.array(best))


@given(RATES, st.lists(RATES.filter(lambda row: len(row) == 2), max_size=3), st.integers(0, 2))
def test_prospects_are_the_definition(known, ahead, drafted):
    costs = TreeCosts(tuple(0.1 * d * d for d in range(6)), (1.0, 1.0, 1.5, 1.5, 4.0))
    rows = np.array(ahead).reshape(len(ahead), 2)
    expected, seconds, branches = prospects(costs, np.array(known), rows, drafted)
    assert expected.shape == seconds.shape == (len(ahead) + 1, 5)
    for j in range(len(ahead) + 1):
        there = sorted([*known, *itertools.chain(*ahead[:j])], reverse=True)
        for n in range(5):
            assert expected[j, n] == pytest.approx(1 + sum(there[:n]))
            assert seconds[j, n] == pytest.approx(costs.levels[drafted + j] + costs.rest[n])
            assert n == 0 or branches[j, n - 1] == (there[n - 1] if n <= len(there) else 0)


@pytest.mark.parametrize("name", ["usual", "steep"])
def test_the_tree_promises_most_of_all_that_was_looked_at(name, monkeypatch):
    """In every round: the n best of the tokens that were looked at, for the n with the highest E - S * seconds."""
    target, tree = drafter_of("model", costs=COSTS[name])
    chosen, right = [], auto.best_of

    def best_of(looked: Looked, n: int):
        chances = sorted(looked.scores.exp().tolist(), reverse=True)
        gains = [
            1 + sum(chances[:m]) - tree._rate * COSTS[name].rest[m]
            for m in range(min(len(chances), len(COSTS[name].rest) - 1) + 1)
        ]
        assert gains[n] == pytest.approx(max(gains))
        draft = right(looked, n)
        assert draft.tokens.shape[1] == n
        chosen.append((n, tree.n_levels, len(chances)))
        return draft

    monkeypatch.setattr(auto, "best_of", best_of)
    rounds = decoded(target, tree)
    assert tokens_of(rounds) == plain_text(target, PROMPT, N_NEW)
    assert len({n for n, *_ in chosen}) > (3 if name == "usual" else 1)
    assert len({n_levels for _, n_levels, _ in chosen}) > (2 if name == "usual" else 1)
    assert any(n < n_looked for n, _, n_looked in chosen)


def test_dear_tokens_make_smaller_trees():
    drafted = {}
    for name, costs in COSTS.items():
        target, tree = drafter_of("model", costs=costs)
        drafted[name] = [r.n_drafted for r in decoded(target, tree) if not r.prefill][:6]
    assert set(drafted["free"]) == set(drafted["unknown"]) == {LARGEST}
    assert 0 < sum(drafted["steep"]) < sum(drafted["usual"]) < sum(drafted["free"])
    assert sum(drafted["dear"]) == 0


def test_where_drafts_do_not_pay_one_level_is_tried_now_and_then():
    target, tree = drafter_of("model", costs=DEAR)
    levels, right = [], tree.observe

    def observe(*args):
        levels.append(tree.n_levels)
        right(*args)

    tree.observe = observe
    rounds = decoded(target, tree)
    assert set(levels) == {0, 1}
    tried = [i for i, n in enumerate(levels) if n]
    assert {i for i, r in enumerate(rounds) if r.n_drafted} <= set(tried)
    assert len(tried) > 2
    assert all(after - before == PAUSE for before, after in itertools.pairwise(tried))


# --- what it learns ---------------------------------------------------------------------------------------------------


def test_all_that_was_looked_at_after_a_committed_token_is_counted():
    """Text 5 7 1: 5 was the first of three choices, 7 the second after it, and 1 was not looked at."""
    looked = Looked(
        torch.tensor([5, 6, 8, 9, 7, 3, 4]),
        torch.tensor([-1, -1, -1, 0, 0, 1, 1]),
        torch.tensor([0.5, 0.3, 0.01, 0.85, 0.1, 0.6, 0.3]).log(),
        torch.zeros(7),
    )
    now, before = TreeAcceptance(), TreeAcceptance()
    now.add(looked, [5, 7, 1])
    assert now.places - before.places == 2
    assert (now.right - before.right)[:3].tolist() == [1, 1, 0]
    ranges = {0.5: 5, 0.3: 4, 0.01: 0, 0.85: 7, 0.1: 2}  # as EDGES cut them
    stated = np.zeros(len(EDGES) + 1)
    for probability, place in ranges.items():
        assert sum(probability > edge for edge in EDGES) == place
        stated[place] += probability
    assert now.stated - before.stated == pytest.approx(stated)
    assert np.flatnonzero(now.came - before.came).tolist() == [2, 5]
    now.add(looked, [11, 5])
    assert now.places - before.places == 3
    assert (now.right - before.right).sum() == 2


def test_probabilities_are_believed_as_far_as_they_came_true():
    """A draft that says 0.5 and is right nine times of ten, and says 0.3 and is never right."""
    acceptance = TreeAcceptance()
    looked = Looked(torch.tensor([1, 2]), torch.tensor([-1, -1]), torch.tensor([0.5, 0.3]).log(), torch.zeros(2))
    assert acceptance.believed(looked.stated).exp().tolist() == pytest.approx([0.5, 0.3])
    for i in range(1000):
        acceptance.add(looked, [1 if i % 10 else 9])
    first, second = acceptance.believed(looked.stated).exp().tolist()
    assert first == pytest.approx(0.9, abs=0.01)
    assert second < 0.01
    assert acceptance.by_rank(2) == pytest.approx([0.9, 0], abs=0.01)
    assert acceptance.by_rank(12)[8:].tolist() == [0] * 4


def test_what_was_right_is_kept_by_copies_and_forgotten_when_asked():
    target, tree = drafter_of("model")
    decoded(target, copy.deepcopy(tree))
    places = tree.seen[0.0].places
    assert places > TreeAcceptance().places
    decoded(target, tree)
    assert tree.seen[0.0].places > places
    forget(tree)
    assert not tree.seen
    assert tree.costs


# --- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["model", "feature", "block"])
def test_greedy_text_is_the_baselines(kind, fast):
    target, tree = drafter_of(kind, fast)
    rounds = decoded(target, tree)
    assert tokens_of(rounds) == plain_text(target, PROMPT, N_NEW)
    assert len({r.n_drafted for r in rounds}) > 2


@pytest.mark.parametrize("budget", range(1, 8))
def test_the_budget_is_met_exactly(budget):
    target, tree = drafter_of("model", costs=FREE)
    rounds = list(speculative_rounds(target, tree, PROMPT, LARGEST, budget))
    assert tokens_of(rounds) == plain_text(target, PROMPT, budget)


def test_rounds_along_a_known_text_are_those_of_the_decoding():
    """Learning included: the forecast of greedy rows rests on that."""
    target, tree = drafter_of("model")
    made = [Made(r.n_drafted, r.n_accepted) for r in decoded(target, tree) if not r.prefill]
    forget(tree)
    text = tuple(plain_text(target, PROMPT, N_NEW))
    assert replayed(SPECULATIVE, target, tree, PROMPT, text, LARGEST) == made
    assert len(set(made)) > 3


# --- costs ------------------------------------------------------------------------------------------------------------


def test_drafting_is_told_by_levels_and_the_rest_by_tokens():
    def timed(n_levels, n, draft, verify):
        target, inner = with_model("llama")
        (round_,) = speculative_rounds(target, inner, PROMPT, 2, 1)
        return round_._replace(n_drafted=n, seconds={"draft": draft, "verify": verify, "host": 0.5}), n_levels

    rounds = [
        timed(0, 0, 0.0, 1.0),
        *(timed(2, n, draft, 2.0) for n, draft in ((3, 0.2), (4, 0.4), (3, 0.9))),
        timed(4, 8, 0.8, 4.0),
    ]
    costs = tree_costs_of(rounds)
    assert costs.levels[:5] == pytest.approx((0.0, 0.2, 0.4, 0.6, 0.8))
    assert (costs.rest[0], costs.rest[3], costs.rest[4], costs.rest[6], costs.rest[8]) == (1.5, 2.5, 2.5, 3.5, 4.5)
    assert (costs.deepest, costs.largest) == (LONGEST, LARGEST)
    assert tree_costs_of(rounds, 4).levels == costs.levels[:5]
    assert "milliseconds" in costs.describe()
    assert "a level: the tokens of one depth" in costs.describe()
    assert tree_costs_of([timed(0, 0, 0.0, 1.0)]) is None


def test_costs_are_measured_for_all_sizes():
    target, tree = drafter_of("model", costs=None)
    measure_costs(SPECULATIVE, target, tree, [PROMPT], DecodeSettings(N_NEW, Sampling(0.8)))
    costs = tree.costs[0.8]
    assert (costs.deepest, costs.largest) == (LONGEST, LARGEST)
    assert list(costs.levels) == sorted(costs.levels)
    assert list(costs.rest) == sorted(costs.rest)
    assert costs.rest[0] > 0
    assert costs.levels[0] < costs.levels[-1]
    assert 0.8 not in tree.seen, "what the timed rounds accepted must not decide later"


def test_a_tree_of_one_shape_has_nothing_to_choose():
    _, inner = with_model("llama")
    assert isinstance(auto_length("tree:best:model", BestTreeDrafter(inner)), AutoTreeDrafter)
    assert can_choose(BestTreeDrafter(inner))
    assert not can_choose(TreeDrafter(inner, (2,)))
    with pytest.raises(UsageProblem, match="--tree best"):
        auto_length("tree:2:model", TreeDrafter(inner, (2,)))
