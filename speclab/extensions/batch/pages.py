"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.batch import batch_plots, batch_views
from speclab.extensions.batch.batch_record import BatchRun


def page(run: BatchRun, name: str) -> str:
    """A record's page. name: the name of its picture."""
    return batch_views.page(run, f"../plots/{name}.png")


def pictures(run: BatchRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """Functions that draw a record's picture into `folder`."""
    return [functools.partial(batch_plots.picture, run, folder, name)]


RECORDS = {"batches": (BatchRun, page, pictures)}
