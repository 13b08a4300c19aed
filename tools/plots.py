"""Draw the committed pictures again, from the committed records and the formulas of the chapters: those of a page.

    python -m tools.plots [RECORD ...]

A record of compare.py is results/NAME.json; its pictures are plots/NAME.png or plots/NAME-*.png. With --out all of them
are drawn, also those that no page shows.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import re
import sys
from pathlib import Path
from typing import Any

from speclab.cli import parsing
from speclab.present.pictures import comparison
from speclab.records.files import ComparisonRun, read
from speclab.system.errors import reports_problems
from speclab.system.files import ROOT, write_all
from tools import chapter_pictures

RESULTS, PLOTS = ROOT / "results", ROOT / "plots"
PAGES = ("README.md", "docs/**/*.md", "results/*.md", "models/**/*.md")


def shown() -> set[str]:
    """The names of the pictures that a page shows, without .png."""
    texts = (page.read_text("utf-8") for pattern in PAGES for page in ROOT.glob(pattern))
    return {name for text in texts for name in re.findall(r"\bplots/([\w.-]+)\.png\b", text)}


def pictures(path: Path, folder: Path) -> list[functools.partial[Any]]:
    """Functions that draw the pictures of one record into `folder`; none for the record of a benchmark."""
    return comparison(read(path, ComparisonRun), folder, path.stem) if "rows" in read(path, dict) else []


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__)
    parser.add_argument(
        "records", nargs="*", type=parsing.some_path, metavar="RECORD", help="default: all of results/*.json"
    )
    parser.add_argument("--out", type=parsing.some_path, metavar="DIR", help="draw all of them there (default: plots/)")
    args = parser.parse_args(argv)
    records = args.records or sorted(RESULTS.glob("*.json"))
    steps = [step for path in records for step in pictures(path, args.out or PLOTS)]
    if not args.records:
        steps += [
            functools.partial(chapter_pictures.draw, args.out or PLOTS, name) for name in chapter_pictures.PICTURES
        ]
    write_all([step for step in steps if args.out or step.args[-1] in shown()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
