"""Adds early exit to the lab: `--draft exit`, or with its number of layers, `exit:2`."""

from pathlib import Path

from speclab.core.drafter import Drafter
from speclab.drafts.heads.files import CONFIG, read_config
from speclab.drafts.registry import OTHER_FAMILY, Choice, add
from speclab.extensions.exits import adapter
from speclab.extensions.exits.drafter import ExitDrafter
from speclab.extensions.exits.first_layers import check_split
from speclab.models.family import check_family
from speclab.models.padded import sizes
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem
from speclab.system.terminal import note

NO_SPLIT = "early exit runs the target in two parts, and CUDA graphs do not"


def read_exit(argument: str, text: str) -> Choice:
    """Read the number of layers of the lab's adapter, or nothing, which means the same."""
    name = f"exit:{read_config(Path(adapter.PLACE) / CONFIG)['exit_layer']}"
    if argument and f"exit:{argument}" != name:
        raise UsageProblem(f"--draft {text}: the lab's adapter is {name}; give that")
    return Choice(text, name, _drafter, in_hybrid=True, any_family=False, changes_engine=True)


def _drafter(setup: Setup, seed: int) -> Drafter:
    """Make the drafter, on an engine that runs the target in two parts."""
    check_family(setup.target.model, "--draft exit", OTHER_FAMILY)
    head = adapter.read_adapter(setup.target.model, sizes.is_lab_size(setup.target_name))
    if setup.target.engine == "graphs":
        setup.target.fast, setup.why_engine = None, NO_SPLIT
        note(f"{NO_SPLIT}: both arms run on the eager engine")
    check_split(setup.target, head.config.exit_layer)
    setup.target.hidden_layers = tuple(sorted({*setup.target.hidden_layers, *head.config.layers}))
    return ExitDrafter(head)


add("exit[:2]", read_exit, "the target's first two layers, with the lab's adapter (Kangaroo)", True)
