"""Bugs in the picture of a drafted tree."""

from torch import Tensor

from speclab.core.rounds import Draft
from speclab.extensions.trace import branches
from speclab.extensions.trace.branches import Tried
from tests.mutants.bugs import mutant

BUGS = {15: "children of a tree judged or drawn by a wrong law"}


@mutant(15, "what_is_left_for_a_child", "every_outcome_can_be_recomputed", file="test_tree_trace")
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
