"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.sweeps import sweep_views
from speclab.extensions.sweeps.sweep_record import SweepRun


def page(run: SweepRun, name: str) -> str:
    """Return a record's page. name: the name of its picture."""
    return sweep_views.page(run, f"../plots/{name}.png")


def pictures(run: SweepRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """Return the functions that draw a record's picture into `folder`."""
    return [functools.partial(sweep_views.picture, run, folder, name)]


RECORDS = {"sweep": (SweepRun, page, pictures)}
