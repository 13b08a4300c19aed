"""Bugs in the picture of a drafted tree, and in the data of dials."""

from torch import Tensor

from speclab.core.rounds import Draft
from speclab.extensions.trace import positions, proposals
from speclab.extensions.trace.positions import Tried
from tests.mutants.bugs import mutant

BUGS = {
    15: "children of a tree judged or drawn by a wrong law",
    49: "a page whose dials replay other rounds than the loop's",
}


@mutant(15, "what_is_left_for_a_child", "every_outcome_can_be_recomputed", file="test_tree_trace")
def shows_the_targets_own_row() -> None:
    """shows every child beside the target's own probability, whatever was rejected before it"""
    right = positions.walked

    def walked(draft: Draft, target_probs: Tensor, kept: list[int]) -> list[Tried]:
        tried = right(draft, target_probs, kept)
        rows = [draft.parents[0, one.node] + 1 for one in tried]
        return [
            Tried(one.node, target_probs[row, draft.tokens[0, one.node]].item())
            for one, row in zip(tried, rows, strict=True)
        ]

    positions.walked = walked


@mutant(49, "what_drafters_are_asked_is_what_they_propose_in_the_loop", file="test_dials_replay")
def asks_for_one_token_less() -> None:
    """asks each draft for one token less than the loop would, which shows where the text's end caps drafts"""
    right = proposals.AskedDrafters.propose
    proposals.AskedDrafters.propose = lambda self, k, uniforms: right(self, max(0, k - 1), uniforms)


@mutant(49, "two_ids_of_one_picture_stay_two", file="test_dials_replay")
def takes_a_token_for_its_picture() -> None:
    """numbers pictures in place of ids, so that tokens that look alike are taken for the same"""
    right = proposals.PieceTable.place

    def place(self, id_, made) -> int:
        found = right(self, id_, made)
        return self.pictures.index(self.pictures[found])

    proposals.PieceTable.place = place
