"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.servers.curves import curve_views
from speclab.extensions.servers.curves.curve_record import CurvesRun
from speclab.extensions.servers.wrong import wrong_views
from speclab.extensions.servers.wrong.wrong_record import WrongRun


def curves_page(run: CurvesRun, name: str) -> str:
    """The page of the curves. name: of its picture."""
    return curve_views.page(run, f"../plots/{name}.png")


def curves_pictures(run: CurvesRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """What draws the curves into `folder`."""
    return [functools.partial(curve_views.picture, run, folder, name)]


def wrong_page(run: WrongRun, name: str) -> str:
    """The page of the servers that are wrong on purpose."""
    return wrong_views.page(run)


def no_pictures(run: WrongRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """A record of answers has no picture."""
    return []


RECORDS: dict[str, tuple[Any, Any, Any]] = {
    "curves": (CurvesRun, curves_page, curves_pictures),
    "wrong": (WrongRun, wrong_page, no_pictures),
}
