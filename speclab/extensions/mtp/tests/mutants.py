"""Bugs of MTP heads. The text stays right: only what is proposed tells."""

from typing import Any

from torch import Tensor

from speclab.extensions.mtp import head_weights
from speclab.extensions.mtp.drafter import MtpDrafter
from speclab.extensions.mtp.head import MtpHead
from tests.mutants.bugs import mutant

FILE = "test_mtp"
BUGS = {56: "an MTP head that reads other states, tokens or rows than it was trained with"}
DEFINITION = "proposals_are_an_independent_computation"


@mutant(56, DEFINITION, file=FILE)
def reads_the_states_before_the_last_norm() -> None:
    """leaves out the target's last norm"""
    MtpHead.read = lambda head, hidden: hidden


@mutant(56, DEFINITION, "a_draft_keeps_the_contract", file=FILE)
def keeps_what_it_read_of_its_own_chain() -> None:
    """drops one row less of the cache than it should, so that states of a drafted token stay"""
    right = MtpDrafter._forward

    def forward(drafter: MtpDrafter, states: Tensor, tokens: Tensor, length: int) -> tuple:
        if drafter._tokens.shape[1] and 0 < length < drafter._cache.get_seq_length():  # the first pass of a round
            length += 1
            drafter._length += 1
        return right(drafter, states, tokens, length)

    MtpDrafter._forward = forward


@mutant(56, DEFINITION, file=FILE)
def takes_the_embedding_first_everywhere() -> None:
    """does not know that MiMo's projection takes the state first"""
    head_weights.STATE_FIRST = "nothing is named so"


@mutant(56, DEFINITION, file=FILE)
def takes_the_output_layer_alone() -> None:
    """does not scale or cap its logits as the target does"""
    MtpHead.logits = lambda head, states: head.model.shared_head(states)


POSITIONS = "every_position_is_what_the_librarys_model_gives"


@mutant(56, POSITIONS, file=FILE)
def counts_deeper_positions_from_one_place_on() -> None:
    """gives all passes but the first the position of the first"""
    right = MtpHead.run

    def run(head: MtpHead, states: Tensor, tokens: Tensor, positions: Tensor, cache: Any, seen: Tensor) -> Tensor:
        n = seen.shape[-1] if cache.get_seq_length() else 0
        return right(head, states, tokens, positions.clamp(max=positions.min()) - 1 if n else positions, cache, seen)

    MtpHead.run = run
