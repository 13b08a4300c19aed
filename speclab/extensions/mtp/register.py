"""Adds MTP heads to the drafts: `--draft mtp` reads the target's own checkpoint, and `mtp:FOLDER` another one."""

from speclab.core.drafter import Drafter
from speclab.drafts.registry import OTHER_FAMILY, Choice, add
from speclab.models import loading, padding
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem


def read_mtp(argument: str, text: str) -> Choice:
    if argument:
        loading.check_place(argument)

    def build(setup: Setup, seed: int) -> Drafter:
        from speclab.extensions.mtp.head import MtpDrafter  # here: older versions of the library lack it
        from speclab.extensions.mtp.head_weights import read_mtp_head

        target = setup.target
        check_family(target.model, f"--draft {text}", OTHER_FAMILY, crops=False)
        if setup.target_name.startswith(padding.PREFIX):
            raise UsageProblem(f"--draft {text}: no padded target has such a head; give --draft feature")
        head = read_mtp_head(argument or target.model.name_or_path, target.model, text)
        target.hidden_layers = tuple(sorted({*target.hidden_layers, *head.config.layers}))
        return MtpDrafter(head)

    label = f"mtp:{loading.short_name(argument)}" if argument else "mtp"
    return Choice(text, label, build, can_branch=False, in_hybrid=True)


add("mtp[:FOLDER]", read_mtp, "the target's own head for further tokens, from its checkpoint or a folder (MTP)")
