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
from speclab.extensions.servers.wrong import wrong_views
from speclab.extensions.servers.wrong.wrong_record import WrongRun
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


def wrong_page(run: WrongRun, name: str) -> str:
    """The page of the servers that are wrong on purpose."""
    return wrong_views.page(run)


def no_pictures(run: WrongRun, folder: Path, name: str) -> list[functools.partial[Any]]:
    """A record of answers has no picture."""
    return []


BLOCKS: dict[str, Callable[[], str]] = {"serving": serving}
RECORDS: dict[str, tuple[Any, Any, Any]] = {
    "served": (ServingRun, page, pictures),
    "curves": (CurvesRun, curves_page, curves_pictures),
}
RECORDS |= {"wrong": (WrongRun, wrong_page, no_pictures)}
