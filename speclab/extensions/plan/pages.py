"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.plan import plan_views
from speclab.extensions.plan.plan_record import PlanRun


def page(run: PlanRun, name: str) -> str:
    """Return a record's page. name: the name of its picture, which the page does not show."""
    return plan_views.page(run)


def pictures(run: PlanRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """Return the functions that draw a record's picture into `folder`."""
    return [functools.partial(plan_views.picture, run, folder, name)]


RECORDS = {"plan": (PlanRun, page, pictures)}
