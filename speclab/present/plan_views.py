"""The plan as verdicts, tables and a picture. Nothing is measured here."""

import functools
from pathlib import Path
from typing import Any

from speclab.present.pictures import figures
from speclab.present.pictures.figures import STYLES, Panel, Series, column, draw, plain, speedups
from speclab.present.report import agreement_lines
from speclab.present.run_lines import COSTS, doubt, noise_lines, provenance, remarks
from speclab.present.tables import (
    Block,
    Cell,
    Lines,
    Markdown,
    Table,
    cells,
    interval,
    percent,
    show,
    speedup,
    temperature_name,
)
from speclab.records.rows import Row
from speclab.records.runs import DraftFacts, PlanChoice, PlanEntry, PlanRun, Verified

METHOD = (
    "95 %: of the expectation, from leaving out one prompt at a time, its text and its calibration; costs are smoothed "
    "over k: v by isotonic regression, a draft's seconds by a parabola; the plan takes the shortest k that cannot be "
    "told apart from the best"
)
BREAKS_EVEN = 0.005  # what rounds to 0.00


def verdict(fact: DraftFacts) -> str:
    """What to do with one draft, in one line."""
    even = "-" if fact.break_even is None else f"{fact.break_even:.2f}"
    if fact.break_even is not None and fact.break_even < BREAKS_EVEN:
        even = "0, a round costs no more than a decode step"
    return (
        f"{fact.method}, {temperature_name(fact.temperature)}: {advice(fact)}; break-even α = {even}; a k chosen anew "
        f"for every round, knowing what will be accepted: {speedup(fact.oracle)}; decode step "
        f"{fact.step_seconds * 1e3:.2f} ms"
    )


def advice(fact: DraftFacts) -> str:
    """Which length to take and how sure that is, or that speculation had better stay off."""
    choice = fact.choice
    pays = choice.pays if choice else "yes" if fact.best_draft_length and fact.speedup > 1 else "no"
    if pays == "no":
        return "leave speculation off, no k is expected to be faster"
    band = f" ({interval(choice.band_low, choice.band_high)})" if choice and choice.band_low is not None else ""
    expected = f"k = {fact.best_draft_length}, expected {speedup(fact.speedup)}{band or ' (no band)'}"
    if pays == "unclear":
        return f"leave speculation off, no gain can be told apart from none: {expected}"
    if choice is None or choice.same_from == choice.same_to:
        return f"take {expected}"
    best = f"k = {choice.highest.draft_length} ({speedup(choice.highest.speedup)})"
    return f"take {expected}; k = {choice.same_from} to {choice.same_to} cannot be told apart from the best, {best}"


def learner_line(run: PlanRun, fact: DraftFacts) -> str | None:
    """What exercise 6 chose, and what the plan expects of that length; None where it is not in use."""
    if fact.yours is None:
        return None
    rows = _of_draft(run.plan, fact)
    expected = next((row.speedup for row in rows if row.draft_length == fact.yours), None)
    package = run.settings["impl"]["package"]
    return f"best_draft_length of {package}: k = {fact.yours}, expected {speedup(expected)}"


def _of_draft(rows: list[Any], fact: DraftFacts) -> list[Any]:
    """The rows of this draft, planned or measured."""
    return [row for row in rows if (row.method, row.temperature) == (fact.method, fact.temperature)]


def _measured(run: PlanRun, fact: DraftFacts) -> list[Row]:
    return _of_draft(run.verified.rows, fact) if run.verified else []


def plan_table(run: PlanRun, fact: DraftFacts) -> Table:
    """One line per draft length; where the plan was measured, measured values stand beside it."""
    measured = {row.draft_length: row.speedup for row in _measured(run, fact)}
    columns: dict[str, Cell] = {
        **cells("draft", "k", "tok/rnd", "α", "c", "v", "o"),
        "expected": lambda row: speedup(row.speedup),
    }
    if choice := fact.choice:
        columns["95 %"] = lambda row: interval(row.band_low, row.band_high)
        columns["plan"] = functools.partial(_mark, fact, choice)
    if measured:
        columns["measured"] = lambda row: speedup(measured.get(row.draft_length))
    return Table(_of_draft(run.plan, fact), columns)


def _mark(fact: DraftFacts, choice: PlanChoice, row: PlanEntry) -> str:
    """The length that is taken, and those that cannot be told apart from the best."""
    if row.draft_length == fact.best_draft_length:
        return "take" if choice.pays == "yes" else "-"
    return "same" if choice.same_from <= row.draft_length <= choice.same_to else "-"


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
    """Whether the texts of `--verify-plan` are right; for every draft the verdict and the table; then how the plan did
    on other prompts."""
    return show([_first(run)] if doubt(run) else [_first(run), *_blocks(run)])


def page(run: PlanRun) -> str:
    """The same in Markdown, with where it comes from."""
    return show([Markdown("# The plan"), provenance(run), _first(run), *_blocks(run)], markdown=True)


def _first(run: PlanRun) -> Lines:
    """What is to be known before any number."""
    agreement = agreement_lines(run.verified.correctness) if run.verified else []
    return Lines([*agreement, *remarks(run), doubt(run)])


def _blocks(run: PlanRun) -> list[Block]:
    blocks: list[Block] = []
    for fact in run.facts.drafts:
        blocks += [Lines([verdict(fact), learner_line(run, fact)]), plan_table(run, fact)]
    blocks.append(COSTS)
    if any(fact.choice for fact in run.facts.drafts):
        blocks.append(METHOD)
    if run.verified:
        blocks.append(f"The plan, measured on {run.verified.n_prompts} other prompts:")
        blocks.append(checked_table(run.verified))
    return [*blocks, Lines(noise_lines(run.noise or []))]


def picture(run: PlanRun, folder: Path, name: str) -> Path:
    """Speedup against k: expected with its band, the oracle draft length, and measured."""
    series, x = [], "draft_length"
    for i, fact in enumerate(run.facts.drafts):
        label = fact.method + f", T = {fact.temperature:g}" * (fact.temperature > 0)
        entries, measured = _of_draft(run.plan, fact), _measured(run, fact)
        ends = (entries[0].draft_length, entries[-1].draft_length)
        series.append(Series(f"{label}, expected", column(entries, "speedup", x), i, STYLES[i % 2]))
        series.append(Series(f"{label}, oracle: {fact.oracle:.2f}", plain((k, fact.oracle) for k in ends), i, ":"))
        if measured:
            series.append(Series(f"{label}, measured on other prompts", speedups(measured, x), i))
    figure = draw([Panel(series, "draft length k", extra=functools.partial(_draw_bands, run))], 6.8, 4.8)
    return figures.save(figure, run, folder, name)


def _draw_bands(run: PlanRun, axis: Any) -> None:
    """The band of every draft's expected speedups, where the record has one."""
    for i, fact in enumerate(run.facts.drafts):
        banded = [entry for entry in _of_draft(run.plan, fact) if entry.band_low is not None]
        lows, highs = ([getattr(entry, end) for entry in banded] for end in ("band_low", "band_high"))
        lengths = [entry.draft_length for entry in banded]
        axis.fill_between(lengths, lows, highs, color=figures.colour(i), alpha=0.15, linewidth=0)
