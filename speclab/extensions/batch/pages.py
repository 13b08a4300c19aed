"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.batch import shown
from speclab.extensions.batch.measure import BatchRun


def pictures(run: BatchRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """Return functions that draw a record's picture into `folder`."""
    return [functools.partial(shown.picture, run, folder, name)]


RECORDS = {"batches": (BatchRun, shown.page, pictures)}
