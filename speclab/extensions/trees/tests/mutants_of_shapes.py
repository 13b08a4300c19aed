"""Bugs in drafts that choose their tree, or make one of several drafts."""

from collections.abc import Sequence

import torch

from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft
from speclab.extensions.trees import best as tree
from speclab.extensions.trees import merged
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.draft import TreeDraft
from speclab.extensions.trees.merged import MergedDrafter
from tests.mutants.bugs import mutant

TREE, MERGED = "drafts/test_tree", "drafts/test_merged_trees"


@mutant(40, "the_most_probable_branches_are_drafted", file=TREE)
def does_not_multiply_along_a_branch() -> None:
    """takes the most probable tokens, however improbable those before them on their branch are"""
    right = BestTreeDrafter._looked

    def looked(drafter: BestTreeDrafter, n: int, deepest: int) -> tree.Looked:
        found = right(drafter, n, deepest)
        before = torch.cat([found.scores.new_zeros(1), found.scores])[found.parents + 1]
        return found._replace(scores=found.scores - before)

    BestTreeDrafter._looked = looked


@mutant(40, "the_most_probable_branches_are_drafted", file=TREE)
def goes_on_from_the_best_token_alone() -> None:
    """drafts another level behind the most probable token only"""
    right = tree._n_to_grow
    tree._n_to_grow = lambda *given: min(1, right(*given))


@mutant(36, "caches_equal_a_recomputation_after_every_round", file=MERGED)
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
        if not isinstance(found, TreeDraft):
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
        return TreeDraft(ids, size, parents=torch.tensor([parents], device=device))

    merged.merged = by_depth
