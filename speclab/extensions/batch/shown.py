"""What a comparison of batches says beside the rows: up to how many texts at a time each draft pays."""

from collections.abc import Mapping

from speclab.present import report, tables
from speclab.present.tables import Lines, number, speedup
from speclab.records.files import ComparisonRun

COLUMNS = (
    "B is the number of texts that are decoded side by side{}. A speedup is over the baseline of as many texts at a "
    "time. tok/s {}. The forecast follows from decoding one text at a time and from passes over one text, never from "
    "a batch; kinds of prompts have none of their own."
)
ALL = "", "counts all texts together, in the rounds in which every row has a text"
USERS = ", at most; texts come at random, {:g} of what plain decoding could serve", "is what a user gets, on average"


def lines(run: ComparisonRun) -> list[str]:
    """Return the lines below the table: what its columns mean, and up to which batch each draft pays."""
    load = run.settings.get("load")
    found = [COLUMNS.format(*(one.format(load) for one in (USERS if load else ALL)))]
    for draft in dict.fromkeys(row.draft for row in run.rows if row.draft and row.n_drafted):
        rows = [row for row in run.rows if row.draft == draft and row.prompt_kind == "all"]
        sizes = sorted({row.n_texts for row in rows})  # a stop may leave out some
        best = {n: max(row.speedup for row in rows if row.n_texts == n) for n in sizes}
        expected = {n: max(row.forecast or 0.0 for row in rows if row.n_texts == n) for n in sizes}
        pays = knee(expected) if any(expected.values()) else "unknown"
        faster = sorted({str(row.n_texts) for row in rows if row.verdict == "faster"}, key=int)
        shown = f"shown to be faster at B = {', '.join(faster)}" if faster else "not shown to be faster at any B"
        found.append(f"{draft}: {shown}; speculation pays up to a batch of: {knee(best)} (expected: {pays})")
    oracle = [f"{speedup(one)} at B = {n} ({name})" for name, n, one in run.settings.get("oracle", [])]
    found += [f"what a draft that knows the text would gain, simulated: {', '.join(oracle)}"] if oracle else []
    what = "drafts row by row, so drafting for B texts takes B times as long"
    by_row = [f"{name}: {what}" for name in run.settings["row_by_row"]]
    copies = [str(n) for n in sorted({row.n_texts for row in run.rows}) if n > run.prompts["n"]]
    held = f"B = {', '.join(copies)}: more rows than prompts ({run.prompts['n']}), so some decode copies"
    return [*found, *by_row, *([held] if copies else [])]


def page(run: ComparisonRun, name: str) -> str:
    """Return results/NAME.md. name: the name of the picture"""
    return report.page(run, name) + "\n" + tables.show([Lines(lines(run))], markdown=True)


def knee(speedups: Mapping[int, float]) -> str:
    """Return the number of texts at which the best speedup falls below 1 for the last time, in words. It is
    interpolated on a logarithmic axis; a speedup of 1 is no loss.

    >>> knee({1: 2.0, 2: 1.5, 4: 0.75}), knee({1: 0.9, 2: 0.8}), knee({1: 2.0, 2: 1.5})
    ('3.2', 'none: slower at every batch', 'more than 2')
    """
    tried = sorted(speedups)
    if all(speedups[n] < 1 for n in tried):
        return "none: slower at every batch"
    small = max(n for n in tried if speedups[n] >= 1)
    if small == tried[-1]:
        return f"more than {small}"
    large = tried[tried.index(small) + 1]
    high, low = speedups[small], speedups[large]
    return number(float(small * (large / small) ** ((high - 1) / (high - low))), 1)
