"""Adds early exit to the lab: `--draft exit`, or with its number of layers, `exit:2`.

The lab's adapter is for its own target. config.json says after which layer it reads, and model.safetensors holds its
weights.
"""

from pathlib import Path

from transformers import PreTrainedModel

from speclab.core.drafter import Drafter
from speclab.drafts.heads.files import CONFIG, decoder_of, read_config, read_files, read_weights, weights_of
from speclab.drafts.registry import OTHER_FAMILY, Choice, add
from speclab.engines.eager import decoder_layers
from speclab.extensions.exits.early_exit import ExitAdapter, ExitConfig, ExitDrafter
from speclab.extensions.exits.first_layers import check_split
from speclab.models import loading
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem

PLACE = str(loading.LAB_PAIR / "exit")


def read_adapter(target: PreTrainedModel) -> ExitAdapter:
    """Return the lab's adapter, on the device of this target and in its number format. Raises UsageProblem for another
    target than the lab's."""
    found, weights = read_files(PLACE)
    output = weights_of(target)[1]
    config = ExitConfig(found["exit_layer"], found["target_layers"], decoder_of(found, "llama"))
    wanted = (config.target_layers, config.block.vocab_size, config.block.hidden_size)
    if (len(decoder_layers(target)), *output.shape) != wanted:
        raise UsageProblem("--draft exit: the lab's adapter reads the lab's own target; give another --draft")

    return read_weights(PLACE, weights, lambda: ExitAdapter(config, output), target).head


def read_exit(argument: str, text: str) -> Choice:
    """Read the number of layers of the lab's adapter, or nothing, which means the same."""
    name = f"exit:{read_config(Path(PLACE) / CONFIG)['exit_layer']}"
    if argument and f"exit:{argument}" != name:
        raise UsageProblem(f"--draft {text}: the lab's adapter is {name}; give that")
    no_auto = "it chooses by what rounds cost, which early exit divides between draft and verification"
    return Choice(text, name, _drafter, any_family=False, no_auto=no_auto)


def _drafter(setup: Setup, seed: int) -> Drafter:
    """Make the drafter. Raises UsageProblem where the engine does not run the target in two parts."""
    check_family(setup.target.model, "--draft exit", OTHER_FAMILY)
    head = read_adapter(setup.target.model)
    if setup.target.engine != "c":
        raise UsageProblem("--draft exit: the engine c alone runs a target in two parts; give another --draft")
    check_split(setup.target, head.config.exit_layer)
    setup.target.hidden_layers = tuple(sorted({*setup.target.hidden_layers, *head.config.layers}))
    return ExitDrafter(head)


add("exit[:2]", read_exit, "the target's first two layers, with the lab's adapter (Kangaroo), trained")
