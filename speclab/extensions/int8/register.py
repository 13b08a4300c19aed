"""Adds the rounded target to the drafts: `--draft int8`."""

from draft_models import ModelDrafter
from speclab.core.drafter import Drafter
from speclab.drafts.registry import OTHER_FAMILY, Choice, add
from speclab.extensions.int8 import rounded
from speclab.models.cached import CachedModel
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.terminal import note


class Int8Drafter(ModelDrafter):
    """Drafts with the rounded target. Its text is its own; verification makes it the target's."""

    is_model = False  # it has a name of its own in tables
    branches_as_base = True

    def __init__(self, model: CachedModel, share: float = 1.0):
        super().__init__(model)
        self.share = share

    def describe(self, name: str, engine: str) -> str:
        rounded = f"{self.share:.0%} of the numbers in its matrices are rounded to 8 bits, row by row"
        return f"{super().describe(name, engine)}, and {rounded}"


def read_int8(argument: str, text: str) -> Choice:
    def build(setup: Setup, seed: int) -> Drafter:
        target = setup.target
        check_family(target.model, f"--draft {text}", OTHER_FAMILY)
        copied = setup.cached(rounded.rounded(target.model), target.vocab_size)  # on the target's engine
        if copied.engine != "c":
            note(f"--draft {text} costs as much as the target here: the engine c alone reads a byte for each number")
        return Int8Drafter(copied, rounded.share_rounded(target.model))

    return Choice(text, text, build, can_branch=True, in_hybrid=True, any_family=False)


add("int8", read_int8, "the target itself, its weights rounded to 8 bits; on a CPU")
