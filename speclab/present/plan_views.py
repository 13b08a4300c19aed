"""The plan as verdicts, tables and a picture. Nothing is measured here."""

from pathlib import Path
from typing import TypeVar

from speclab.present import figures
from speclab.present.figures import STYLES, Panel, Series, column, draw, plain, speedups
from speclab.present.run_lines import COSTS, provenance, remarks
from speclab.present.tables import Block, Cell, Lines, Table, cells, number, percent, show, speedup, temperature_name
from speclab.records.rows import Row
from speclab.records.runs import DraftFacts, PlanEntry, PlanRun, Verified

PlanRow = TypeVar("PlanRow", PlanEntry, Row)  # planned or measured


def verdict(fact: DraftFacts) -> str:
    """What to do with one draft, in one line."""
    pays = fact.best_draft_length and fact.speedup > 1
    advice = f"best k = {fact.best_draft_length}, expected {speedup(fact.speedup)}"
    return (
        f"{fact.method}, {temperature_name(fact.temperature)}: "
        f"{advice if pays else 'leave speculation off, no k is expected to be faster'}; "
        f"break-even α = {number(fact.break_even)}; a k chosen anew for every round, knowing what will be accepted: "
        f"{speedup(fact.oracle)}; decode step {fact.step_seconds * 1e3:.2f} ms"
    )


def learner_line(run: PlanRun, fact: DraftFacts) -> str | None:
    """What exercise 6 chose, and what the plan expects of that length; None where it is not in use."""
    if fact.yours is None:
        return None
    rows = _of_draft(run.plan, fact)
    expected = next((row.speedup for row in rows if row.draft_length == fact.yours), None)
    package = run.settings["impl"]["package"]
    return f"best_draft_length of {package}: k = {fact.yours}, expected {speedup(expected)}"


def _of_draft(rows: list[PlanRow], fact: DraftFacts) -> list[PlanRow]:
    return [row for row in rows if (row.method, row.temperature) == (fact.method, fact.temperature)]


def _measured(run: PlanRun, fact: DraftFacts) -> list[Row]:
    return _of_draft(run.verified.rows, fact) if run.verified else []


def plan_table(run: PlanRun, fact: DraftFacts) -> Table:
    """One line per draft length; where the plan was measured, measured values stand beside it."""
    measured = {row.draft_length: row.speedup for row in _measured(run, fact)}
    columns: dict[str, Cell] = {
        "draft": lambda row: row.method,
        "k": lambda row: str(row.draft_length),
        **cells("tok/rnd", "α", "c", "v", "o"),
        "expected": lambda row: speedup(row.speedup),
    }
    if measured:
        columns["measured"] = lambda row: speedup(measured.get(row.draft_length))
    return Table(_of_draft(run.plan, fact), columns)


def checked_table(verified: Verified) -> Table:
    """How the plan did on prompts it had not seen."""
    columns: dict[str, Cell] = {
        **cells("draft", "T"),
        "planned k": lambda check: str(check.planned.draft_length),
        "expected": lambda check: speedup(check.planned.speedup),
        "measured": lambda check: speedup(check.measured),
        "error": lambda check: percent(check.planned.speedup / check.measured - 1),
        "best k": lambda check: str(check.best_measured.draft_length),
        "its speedup": lambda check: speedup(check.best_measured.speedup),
        "share of best": lambda check: f"{check.share_of_best:.1%}",
    }
    return Table(verified.drafts, columns)


def text(run: PlanRun) -> str:
    """For every draft the verdict and the table; then how the plan did on other prompts."""
    return show(_blocks(run))


def page(run: PlanRun) -> str:
    """The same in Markdown, with where it comes from."""
    return show(["# The plan", provenance(run), *_blocks(run)], markdown=True)


def _blocks(run: PlanRun) -> list[Block]:
    blocks: list[Block] = []
    for fact in run.facts.drafts:
        blocks += [Lines([verdict(fact), learner_line(run, fact)]), plan_table(run, fact)]
    blocks.append(COSTS)
    if run.verified:
        blocks.append(f"The plan, measured on {run.verified.n_prompts} other prompts:")
        blocks.append(checked_table(run.verified))
    return [*blocks, Lines(remarks(run))]


def picture(run: PlanRun, folder: Path, name: str) -> Path:
    """Speedup against k: expected, with the oracle draft length, and measured."""
    series, x = [], "draft_length"
    for i, fact in enumerate(run.facts.drafts):
        label = fact.method + f", T = {fact.temperature:g}" * (fact.temperature > 0)
        entries, measured = _of_draft(run.plan, fact), _measured(run, fact)
        ends = (entries[0].draft_length, entries[-1].draft_length)
        series.append(Series(f"{label}, expected", column(entries, "speedup", x), i, STYLES[i % 2]))
        series.append(Series(f"{label}, oracle: {fact.oracle:.2f}", plain((k, fact.oracle) for k in ends), i, ":"))
        if measured:
            series.append(Series(f"{label}, measured on other prompts", speedups(measured, x), i))
    return figures.save(draw([Panel(series, "draft length k")], 6.8, 4.8), run, folder, name)
