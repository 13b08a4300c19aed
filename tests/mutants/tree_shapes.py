"""Bugs in drafts that choose their tree, or make one of several drafts, and in the picture of a tree."""

from collections.abc import Sequence

import torch
from torch import Tensor

from speclab.core.rounds import Draft, Drafter
from speclab.drafts.trees import auto, merged
from speclab.drafts.trees.auto import TreeAcceptance
from speclab.drafts.trees.fixed import Nodes, StaticTreeDrafter
from speclab.drafts.trees.merged import MergedDrafter
from speclab.lab import round_costs
from speclab.lab.tracing import branches
from speclab.lab.tracing.branches import Tried
from speclab.theory import trees
from speclab.theory.trees import Tree
from tests.mutants.bugs import mutant

AUTO, STATIC, MERGED = "drafts/test_auto_trees", "drafts/test_static_trees", "drafts/test_merged_trees"


@mutant(40, "probabilities_are_believed_as_far_as_they_came_true", file=AUTO)
def believes_the_draft() -> None:
    """takes the draft's own probabilities for those with which its tokens are accepted"""
    TreeAcceptance.believed = lambda acceptance, stated: stated


@mutant(40, "all_that_was_looked_at_after_a_committed_token_is_counted", file=AUTO)
def counts_the_places_of_right_tokens_alone() -> None:
    """does not count a place where none of the choices was right"""
    right = TreeAcceptance.add

    def add(acceptance: TreeAcceptance, looked: auto.Looked, committed: list[int]) -> None:
        places, n_right = acceptance.places, acceptance.right.sum()
        right(acceptance, looked, committed)
        acceptance.places = places + acceptance.right.sum() - n_right

    TreeAcceptance.add = add


@mutant(40, "prospects_are_the_definition", "the_tree_promises_most_of_all_that_was_looked_at", file=AUTO)
def a_token_more_costs_nothing() -> None:
    """takes the pass over a tree to cost as much as over one token"""
    right = auto.prospects

    def prospects(costs: auto.TreeCosts, *given) -> tuple:
        return right(auto.TreeCosts(costs.levels, costs.rest[:1] * len(costs.rest)), *given)

    auto.prospects = prospects


@mutant(40, "no_tree_of_up_to_six_tokens_is_better", "never_worse_than_a_chain", file="theory/test_trees")
def fills_a_tree_level_by_level() -> None:
    """fills the first level with all ranks before it goes deeper"""

    def best_tree(rank_acceptance: trees.Rates, n: int, deepest: int | None = None) -> Tree:
        n_ranks = len(trees.rates_at(rank_acceptance, 1))
        places = [(i // n_ranks - 1, i % n_ranks) for i in range(n)]
        return Tree(tuple(parent for parent, _ in places), tuple(rank for _, rank in places))

    trees.best_tree = best_tree


@mutant(40, "no_text_has_the_random_numbers_of_the_rounds_that_chose_the_shape", file=STATIC)
def chooses_the_shape_by_the_random_numbers_of_a_text() -> None:
    """chooses the shape in rounds that have the uniforms of the text that it drafts for"""
    round_costs.OTHER_SEED = 0


@mutant(40, "tokens_are_the_choices_of_their_ranks", file=STATIC)
def takes_ranks_without_gaps() -> None:
    """takes the first choices for a place, whatever the ranks of the shape are"""
    right = StaticTreeDrafter._nodes

    def squeezed(nodes: Nodes) -> Nodes:
        parents, _ = nodes
        return parents, tuple(parents[:i].count(parent) for i, parent in enumerate(parents))

    StaticTreeDrafter._nodes = lambda tree, n, deepest: squeezed(right(tree, n, deepest))


@mutant(36, "caches_equal_a_recomputation_after_every_round", "what_it_is_made_of", file=MERGED)
def draft_model_keeps_its_own_chain() -> None:
    """leaves a draft model's own tokens in its cache where another drafter's branch was kept"""

    def init(tree: MergedDrafter, drafters: Sequence[Drafter]) -> None:
        tree.drafters, tree._device = list(drafters), torch.device("cpu")

    MergedDrafter.__init__ = init


@mutant(39, "all_branches_are_there_once", file=MERGED)
def merges_equal_tokens_of_one_depth() -> None:
    """merges equal tokens that stand as deep as each other, after different ones"""
    right = merged.merged

    def by_depth(drafts: Sequence[Draft], device: torch.device) -> Draft:
        found = right(drafts, device)
        if found.parents is None:
            return found
        seen: dict[tuple[int, int], int] = {}
        kept, parents, depths = [], [], []
        numbers = [-1]
        for token, parent in zip(found.tokens[0].tolist(), found.parents[0].tolist(), strict=True):
            above = numbers[parent + 1]
            place = (depths[above] + 1 if above >= 0 else 1), token
            if place not in seen:
                seen[place] = len(kept)
                kept.append(token)
                parents.append(above)
                depths.append(place[0])
            numbers.append(seen[place])
        ids, size = torch.tensor([kept], device=device), torch.tensor([len(kept)], device=device)
        return Draft(ids, size, parents=torch.tensor([parents], device=device))

    merged.merged = by_depth


@mutant(15, "what_is_left_for_a_child", "every_outcome_can_be_recomputed", file="present/test_tree_trace")
def shows_the_targets_own_row() -> None:
    """shows every child beside the target's own probability, whatever was rejected before it"""
    right = branches.walked

    def walked(draft: Draft, target_probs: Tensor, kept: list[int]) -> list[Tried]:
        tried = right(draft, target_probs, kept)
        rows = [draft.parents[0, one.node] + 1 for one in tried]
        return [
            Tried(one.node, target_probs[row, draft.tokens[0, one.node]].item())
            for one, row in zip(tried, rows, strict=True)
        ]

    branches.walked = walked
