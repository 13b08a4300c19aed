"""The measured tables in the chapters: the output of `compare.py --quick --brief`, computed from the committed
comparison."""

from dataclasses import replace

from speclab.present import first_screen, tables
from speclab.records.files import read
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.system.paths import ROOT

RUN = ROOT / "results" / "cpu-2-cores-default.json"  # python compare.py
LENGTHS = (0, 2, 4)  # the lengths of --quick, and 0 for the baseline


def brief(temperature: float) -> str:
    """The output of --brief for one temperature, at the draft lengths of a quick run."""
    run = read(RUN, ComparisonRun)
    shown = [row for row in run.rows if row.temperature == temperature and row.draft_length in LENGTHS]
    quick = replace(run, rows=shown, padded=None)  # as a quick run has none
    return f"```text\n{first_screen.screen(quick, brief=True).strip()}\n```"


def counts(temperature: float) -> str:
    """The counts of the same rows: they do not depend on the machine."""
    run = read(RUN, ComparisonRun)

    def wanted(row: Row) -> bool:
        return (row.prompt_kind, row.temperature) == ("all", temperature) and row.draft_length in LENGTHS[1:]

    shown = [row for row in run.rows if wanted(row) and row.draft]
    return (
        f"```text\n{tables.show([tables.Table(shown, tables.cells('draft', 'k', 'α', 'f', 'tok/rnd'))]).strip()}\n```"
    )
