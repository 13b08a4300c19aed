"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.servers.curves import curve_views
from speclab.extensions.servers.curves.curve_record import CurvesRun


def curves_page(run: CurvesRun, name: str) -> str:
    """The page of the curves. name: of its picture."""
    return curve_views.page(run, f"../plots/{name}.png")


def curves_pictures(run: CurvesRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """What draws the curves into `folder`."""
    return [functools.partial(curve_views.picture, run, folder, name)]


RECORDS: dict[str, tuple[Any, Any, Any]] = {"curves": (CurvesRun, curves_page, curves_pictures)}
