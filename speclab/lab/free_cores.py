"""Before anything is timed: are the cores free, and how many threads does this run take?"""

from collections.abc import Collection

import torch

from speclab.core.drafter import Drafter
from speclab.models import engine_choice
from speclab.models.setup import Setup
from speclab.records.runs import CoreProbe
from speclab.system import cores
from speclab.system.errors import setting
from speclab.system.terminal import note


def look(setup: Setup, drafters: Collection[Drafter]) -> tuple[CoreProbe | None, str | None]:
    """Probe for half a second whether the cores are free. A GPU's host is not looked at.

    Where they are not, the run takes one thread, unless a number was asked for, because several threads wait for
    each other.

    -> the probe, and a line about what is wrong with the cores and what to do, None where nothing is
    """
    if setup.device.type != "cpu":
        return None, None
    shares = cores.probe(torch.get_num_threads())
    probe = CoreProbe(free=cores.are_free(shares), **shares._asdict())
    complaint = cores.complaint(shares)
    if complaint is None:
        return probe, None
    if shares.threads > 1 and setup.reasons.get("threads") != "asked for":
        torch.set_num_threads(1)
        setup.reasons["threads"] = "the cores are not free"
        if engine_choice.is_compiled(setup.target.fast):
            one = setting("threads", 1)
            setup.reasons["engine"] = f"not compiled: its functions are for more threads; {one} compiles for one"
        for model in (setup.target, *(model for drafter in drafters for model in drafter.models)):
            if model.fast:
                engine_choice.choose_kernels(model.fast)  # they were chosen, and compiled, with more threads
        for part in (part for drafter in drafters for part in drafter.parts):
            part.choose_packing()
        return probe, f"{complaint}; this run takes one thread, because several would wait for each other"
    return probe, f"{complaint}; {cores.advice(shares)}"


def say(complaint: str | None) -> None:
    """Print the line about the cores, where there is one. It comes before the head, which names the threads."""
    if complaint:
        note(f"busy    {complaint}")
