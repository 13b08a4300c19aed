"""Fill the generated blocks of the README and the docs from the committed records: no number is typed by hand.

    python -m tools.readme

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. A test fails when one is stale. The name is one of
tools/blocks.py, or a page of results:

    results/x.md               all of it, without its title; headings become bold lines
    results/x.md # A # B       what stands under the heading A, and in that under B, up to the next heading
    results/x.md #             what stands before the first heading
    results/x.md : tables      its tables alone, for a page that says the rest by hand
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import re
import sys

from speclab.cli import parsing
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import ROOT, write_all, write_whole
from tools.blocks import BLOCKS

README = ROOT / "README.md"
PAGES = (README, ROOT / "models" / "lab-pair" / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LONG = 19  # lines: a table as long as this stands on its own page only


def results_block(name: str) -> str:
    """A page of results, or a part of it."""
    name, _, part = name.partition(" : ")
    page, *headings = name.split(" #")
    text = (ROOT / page).read_text("utf-8")
    for heading in filter(None, headings):
        text = text.split(f"#{heading}\n", 1)[1]
    if headings:
        text = re.split(r"^#", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r"^# .*\n", "", text)
    text = re.sub(r"^#+ (.*)$", r"**\1**", text, flags=re.MULTILINE)
    if part == "tables":
        return "\n".join(re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)).strip()
    return re.sub(rf"^(\|.*\n){{{LONG},}}\n", "", text, flags=re.MULTILINE).strip()


def filled(text: str) -> str:
    """Make every block of `text` anew. Raises EnvironmentProblem for a block that cannot be made, or that does not
    end."""
    for name in re.findall(r"<!-- begin ([^>]*?) -->", text):
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        try:
            block = BLOCKS[name]() if name in BLOCKS else results_block(name)
            before, after = text.split(begin, 1)[0], text.split(end, 1)[1]
        except (ArithmeticError, AttributeError, LookupError, OSError, StopIteration, TypeError, ValueError) as error:
            names = f"{', '.join(BLOCKS)} and the pages of results/"
            raise EnvironmentProblem(
                f"the block {name!r} cannot be made: {type(error).__name__}: {error}; there are {names}, made from "
                "committed records, and a block ends with its own name"
            ) from None
        text = f"{before}{begin}{block}\n{end}{after}"
    return text


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parsing.make_parser(__doc__).parse_args(argv)
    old = {page: page.read_text("utf-8") for page in PAGES}
    new = {page: filled(text) for page, text in old.items()}  # every record is read before anything is written
    write_all([functools.partial(write_whole, page, new[page]) for page in PAGES if new[page] != old[page]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
