"""`--draft exit`, `exit:N` and `exit:ADAPTER`: the lab's adapter, which reads layer N, or one in a folder."""

from speclab.core.drafter import Drafter
from speclab.drafts.registry import OTHER_FAMILY, Choice, is_mistyped
from speclab.extensions.exits.adapter_files import exit_layer_of, read_adapter
from speclab.extensions.exits.drafter import ExitDrafter
from speclab.extensions.exits.first_layers import check_split
from speclab.models import loading
from speclab.models.family import check_family
from speclab.models.padded import sizes
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem
from speclab.system.numbers import whole_number
from speclab.system.terminal import note

LAB_EXIT = str(loading.LAB_PAIR / "exit")
NO_SPLIT = "early exit runs the target in two parts, and CUDA graphs do not"


def read_exit(argument: str, text: str) -> Choice:
    """Read a number of layers, an adapter's folder, or nothing, which means the lab's adapter."""
    trained = exit_layer_of(LAB_EXIT)
    is_lab = not argument or argument.removeprefix("-").isdecimal()
    if is_lab:
        _check_layer(argument, text, trained)
    elif is_mistyped(argument) or ("/" not in argument and not loading.exists(argument)):
        raise UsageProblem(
            f"--draft {text}: give a number of layers or an adapter's folder, for example exit:{trained or 2} or "
            "exit:build/exit-2"
        )
    else:
        loading.check_place(argument)
    place = LAB_EXIT if is_lab else argument

    def build(setup: Setup, seed: int) -> Drafter:
        return _drafter(place, setup)

    return Choice(
        text,
        f"exit:{trained or 0}" if is_lab else f"exit:{loading.short_name(argument)}",
        build,
        in_hybrid=True,
        any_family=False,
        changes_engine=True,
    )


def _check_layer(argument: str, text: str, trained: int | None) -> None:
    """Raise UsageProblem for a layer that the lab's adapter does not read. trained: the one that it reads."""
    train = "python -m training.heads exit --exit-layer"
    if not argument:
        if trained is None:
            raise UsageProblem(f"--draft {text}: the lab has no such adapter yet; type: {train} 2")
        return
    n_layers, number = loading.load_config(loading.LAB_TARGET).num_hidden_layers, whole_number(argument)
    if number is None or not 1 <= number < n_layers:
        raise UsageProblem(
            f"--draft {text}: the lab's target has {n_layers} layers; give a number from 1 to {n_layers - 1}"
        )
    if number != trained:
        has = "none" if trained is None else f"one for layer {trained} (--draft exit:{trained})"
        raise UsageProblem(
            f"--draft {text}: there is no adapter for layer {argument}, the lab has {has}; type: {train} {argument}, "
            f"then --draft exit:build/exit-{argument}"
        )


def _drafter(place: str, setup: Setup) -> ExitDrafter:
    """Make the drafter of early exit with an adapter, on an engine that runs the target in two parts."""
    check_family(setup.target.model, "--draft exit", OTHER_FAMILY)
    adapter = read_adapter(place, setup.target.model, sizes.is_lab_size(setup.target_name))
    if setup.target.graphed:
        setup.use_eager(NO_SPLIT)
        note(f"{NO_SPLIT}: both arms run on the eager engine")
    check_split(setup.target, adapter.config.exit_layer)
    setup.target.hidden_layers = tuple(sorted({*setup.target.hidden_layers, *adapter.config.layers}))
    return ExitDrafter(adapter)
