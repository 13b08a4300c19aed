"""Adds heads that draft blocks to the drafts: `--draft block[:HEAD]`."""

from transformers import PreTrainedModel

from speclab.core.drafter import Drafter
from speclab.drafts.registry import add, head_choice
from speclab.extensions.blocks.block_drafter import BlockDrafter
from speclab.extensions.blocks.files import read_block
from speclab.system.errors import UsageProblem


def _drafter(place: str, target: PreTrainedModel, own_width: int | None) -> Drafter:
    if own_width is not None:
        raise UsageProblem("block: a padded target is read only by a head like the lab's own; give feature")
    return BlockDrafter(*read_block(place, target))


add(
    "block[:HEAD]",
    lambda argument, text: head_choice("block", argument, text, _drafter),
    "a head that drafts all tokens in one pass (DFlash), trained",
)
