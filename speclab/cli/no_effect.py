"""Names the typed flags that do nothing beside the others: a line for each reason, in the head of every script's
run."""

import argparse
from collections.abc import Sequence

import torch

from speclab.drafts import registry
from speclab.models import texts
from speclab.system.terminal import note

GREEDY = "at temperature 0 the most probable token is taken"


def note_flags(args: argparse.Namespace, temperatures: Sequence[float], device: torch.device) -> None:
    """Print the lines of `notes` on standard error."""
    for line in notes(args, temperatures, device):
        note(line)


def notes(args: argparse.Namespace, temperatures: Sequence[float], device: torch.device) -> list[str]:
    """Name the flags that do nothing, in a line for each reason.

    temperatures: all temperatures of the run, since a flag that has an effect at one of them has an effect.
    args.typed_limit: --limit as it was typed, None where it was not. device: where the target runs.
    """
    given = argparse.Namespace(**{"rule": "", "texts": None} | vars(args))
    greedy, on_cpu = not any(temperatures), device.type == "cpu" or given.device_map is not None
    found = {
        GREEDY: {
            "--top-k": greedy and given.top_k > 0,
            "--top-p": greedy and given.top_p < 1,
            "--seed": greedy and given.seed != 0 and not _has_other_randomness(given),
        },
        "at temperature 0 every rule keeps the target's own tokens": {
            f"--rule {given.rule}": greedy and given.rule not in ("", "token"),
        },
        "it limits the standard prompts, and others are given": {
            "--limit": given.typed_limit is not None
            and bool(given.prompt or given.prompts or given.texts not in (None, *texts.LAB_TEXTS)),
        },
        f"the models run on {device.type}": {"--threads": given.threads is not None and not on_cpu},
    }
    idle = {why: [flag for flag, is_idle in flags.items() if is_idle] for why, flags in found.items()}
    return [f"{_listed(flags)} no effect: {why}" for why, flags in idle.items() if flags]


def _listed(flags: list[str]) -> str:
    """Return the flags and the verb behind them."""
    *before, last = flags
    return f"{', '.join(before)} and {last} have" if before else f"{last} has"


def _has_other_randomness(args: argparse.Namespace) -> bool:
    """Tell whether a draft of a greedy run draws random numbers all the same."""
    drafts = filter(None, (getattr(args, "draft", None) or "").split(","))
    return any(registry.read(draft).only_greedy for draft in drafts)
