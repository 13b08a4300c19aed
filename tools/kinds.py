"""The kinds of records that there are: how each is read, its page, and its pictures.

An extension brings its own: speclab/extensions/NAME/pages.py has RECORDS, as below, and BLOCKS, the generated parts of
pages by name. Both may be left out.
"""

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from speclab.present import report
from speclab.present.pictures import plots
from speclab.records.runs import ComparisonRun, Head
from speclab.system.paths import ROOT

Draw = functools.partial[Any]  # its last arguments are a folder and the picture's name


class Kind(NamedTuple):
    """A kind of record."""

    record: type[Head]
    page: Callable[[Any, str], str]  # record, name of its files
    pictures: Callable[[Any, Path, str], list[Draw]]  # record, folder, name of its files


def _comparison(run: ComparisonRun, folder: Path, name: str) -> list[Draw]:
    padded = plots.comparison(run.padded, folder, f"{name}-padded") if run.padded else []
    return [*plots.comparison(run, folder, name), *padded]


# The kinds by a field that no other kind has.
KINDS: dict[str, Kind] = {
    "rows": Kind(ComparisonRun, report.page, _comparison),
}


def pages_of_extensions() -> list[ModuleType]:
    """The modules `pages` of the extensions that have one."""
    paths = sorted(ROOT.glob("speclab/extensions/*/pages.py"))
    return [importlib.import_module(f"speclab.extensions.{path.parent.name}.pages") for path in paths]


def kind_of(content: dict[str, Any]) -> Kind | None:
    """The kind of a record, by the names of its fields; None for the record of a benchmark."""
    own = {key: Kind(*kind) for pages in pages_of_extensions() for key, kind in getattr(pages, "RECORDS", {}).items()}
    return next((kind for key, kind in (own | KINDS).items() if key in content), None)
