"""The measured tables in the chapters: what `compare.py --quick --brief` shows, from the committed comparison."""

from speclab.present import tables
from speclab.records.files import read
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.system.paths import ROOT

RUN = ROOT / "results" / "cpu-2-cores.json"  # python compare.py
LENGTHS = (0, 2, 4)  # those of --quick, and the baseline's


def brief(temperature: float) -> str:
    """The rows of one temperature over all prompts, at the draft lengths of a quick run."""
    run = read(RUN, ComparisonRun)
    rows = [row for row in run.rows if (row.prompt_kind, row.temperature) == ("all", temperature)]
    shown = [row for row in rows if row.draft_length in LENGTHS and (row.draft or row.method == "baseline")]
    columns: dict[str, tables.Cell] = {
        **tables.cells("draft", "k"),
        "tok/s": lambda row: tables.number(row.tokens_per_second, 1),
        **tables.cells("speedup", "95 %"),
        "forecast": lambda row: tables.speedup(row.forecast),
        "book(α)": lambda row: tables.speedup(row.book_formula),
    }
    return f"```text\n{tables.show([tables.Table(shown, columns)]).strip()}\n```"


def counts(temperature: float) -> str:
    """The counts of the same rows: they do not depend on the machine."""
    run = read(RUN, ComparisonRun)

    def wanted(row: Row) -> bool:
        return (row.prompt_kind, row.temperature) == ("all", temperature) and row.draft_length in LENGTHS[1:]

    shown = [row for row in run.rows if wanted(row) and row.draft]
    return (
        f"```text\n{tables.show([tables.Table(shown, tables.cells('draft', 'k', 'α', 'f', 'tok/rnd'))]).strip()}\n```"
    )
