"""Before anything is timed: is the machine loaded by other work?"""

import os

from speclab.models.setup import Setup
from speclab.records.runs import CoreProbe
from speclab.system import cores
from speclab.system.terminal import note


def look(setup: Setup) -> CoreProbe | None:
    """Say in a line on stderr where other work uses the cores.  -> the same for the record; None for a GPU"""
    if setup.device.type != "cpu":
        return None
    complaint = cores.complaint(cores.AT_START, os.cpu_count() or 1)
    if complaint:
        note(f"busy    {complaint}")
    return CoreProbe(free=complaint is None, load=cores.AT_START)
