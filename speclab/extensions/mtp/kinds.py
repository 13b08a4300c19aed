"""`--draft mtp` and `mtp:FOLDER`: the head in the target's own checkpoint, or in a folder."""

from speclab.core.drafter import Drafter
from speclab.drafts.registry import OTHER_FAMILY, Choice, is_mistyped
from speclab.extensions.mtp.drafter import MtpDrafter
from speclab.extensions.mtp.head_weights import read_mtp_head
from speclab.models import loading
from speclab.models.family import check_family
from speclab.models.padded import sizes
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem


def read_mtp(argument: str, text: str) -> Choice:
    """Read a folder or hub name, or nothing, which means the target's checkpoint."""
    if argument and is_mistyped(argument):
        raise UsageProblem(f"--draft {text}: give the folder or hub name of a checkpoint with such a head")
    if argument:
        loading.check_place(argument)

    def build(setup: Setup, seed: int) -> Drafter:
        target = setup.target
        check_family(target.model, f"--draft {text}", OTHER_FAMILY, crops=False)
        if sizes.is_lab_size(setup.target_name):
            raise UsageProblem(f"--draft {text}: no padded target has such a head; give --draft feature")
        head = read_mtp_head(argument or target.model.name_or_path, target.model, text)
        target.hidden_layers = tuple(sorted({*target.hidden_layers, *head.config.layers}))
        return MtpDrafter(head)

    label = f"mtp:{loading.short_name(argument)}" if argument else "mtp"
    return Choice(text, label, build, can_branch=False, in_hybrid=True)
