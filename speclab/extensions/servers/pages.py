"""The pages of committed records: what tools/readme.py and tools/plots.py take from here."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from speclab.extensions.servers.curves import curve_views
from speclab.extensions.servers.curves.curve_record import CurvesRun
from speclab.extensions.servers.vllm import serving_load, serving_views
from speclab.extensions.servers.vllm.server_record import ServingRun
from speclab.system.paths import ROOT

RESULTS = ROOT / "results"


def serving() -> str:
    """The committed comparison with vLLM, without its title and the lines of single prompts."""
    page = RESULTS / "cpu-2-cores-vllm.md"
    if not page.exists():
        return "No record is committed."
    text = page.read_text("utf-8").partition("\n## Prompt by prompt")[0].partition("\n")[2]
    text = re.sub(r"^#+ (.*)$", r"**\1**", text, flags=re.MULTILINE)
    return text.strip()


def page(run: ServingRun, name: str) -> str:
    """A record's page. name: of its picture."""
    return serving_views.page(run, f"../plots/{name}.png")


def pictures(run: ServingRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """What draws a record's pictures into `folder`."""
    return [functools.partial(serving_load.picture, run, folder, name)] if run.load else []


def curves_page(run: CurvesRun, name: str) -> str:
    """The page of the curves. name: of its picture."""
    return curve_views.page(run, f"../plots/{name}.png")


def curves_pictures(run: CurvesRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """What draws the curves into `folder`."""
    return [functools.partial(curve_views.picture, run, folder, name)]


BLOCKS: dict[str, Callable[[], str]] = {"serving": serving}
RECORDS = {"served": (ServingRun, page, pictures), "curves": (CurvesRun, curves_page, curves_pictures)}
