"""Adds the dial to the drafts: `--draft dial:A`."""

from speclab.drafts.registry import Choice, add, read
from speclab.extensions.sweeps.dial import GREEDY_ONLY, Dial
from speclab.models import loading
from speclab.system.errors import UsageProblem


def read_dial(argument: str, text: str) -> Choice:
    """Read A:MODEL or A:free, or A alone, which means the lab's draft model."""
    number, _, cost = argument.partition(":")
    try:
        accuracy = Dial(float(number)).accuracy
    except ValueError:
        raise UsageProblem(f"{text}: give the dial a number from 0 to 1, for example dial:0.8") from None
    model = None if cost == "free" else read(cost or "model")
    if model and not model.is_model:
        raise UsageProblem(f"{text}: give the model whose cost the dial takes, for example dial:0.8:model")
    return Choice(
        text,
        f"dial:{number}" + (f":{loading.short_name(cost)}" if cost else ""),
        lambda setup, seed: Dial(accuracy, model and model.make(setup, seed), seed),
        no_auto=f"it chooses by what was accepted, and {text} replays the text",
        only_greedy=GREEDY_ONLY,
    )


add("dial:A[:MODEL|:free]", read_dial, "an instrument: the target's text, each token right with probability A")
