"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.margins import margin_views
from speclab.extensions.margins.margin_record import MarginRun


def page(run: MarginRun, name: str) -> str:
    """Return a record's page. name: the name of its picture."""
    return margin_views.page(run, f"../plots/{name}.png")


def pictures(run: MarginRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """Return the functions that draw a record's picture into `folder`."""
    return [functools.partial(margin_views.picture, run, folder, name)]


RECORDS = {"margins": (MarginRun, page, pictures)}
