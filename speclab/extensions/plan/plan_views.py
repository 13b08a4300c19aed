"""The plan as verdicts, tables and a picture. Nothing is measured here."""

import functools
from pathlib import Path
from typing import Any

from speclab.extensions.plan.plan_record import DraftFacts, PlanEntry, PlanRun, Verified
from speclab.present.pictures import figures
from speclab.present.pictures.figures import STYLES, Panel, Series, column, draw, plain, speedups
from speclab.present.report import agreement_lines
from speclab.present.run_lines import COSTS, marked, noise_lines, provenance, remarks, rough_line
from speclab.present.tables import (
    Block,
    Cell,
    Lines,
    Markdown,
    Table,
    cells,
    interval,
    no_interval,
    percent,
    show,
    speedup,
    temperature_name,
)
from speclab.records.rows import Row

METHOD = (
    "The first 95 % is the interval of the expectation over prompts, each with its text and its calibration. time / "
    "best is the expected time over that of the best k, with its own 95 % interval. same means that this interval "
    "includes 1, so either of the two may be faster."
)
OLD_METHOD = (
    "This plan is of an older version. It smoothed its costs over k and took the shortest k that might "
    "be as fast as the best; its 95 % interval of the expectation comes from leaving out one prompt at a time."
)
GIVEN = (
    "α and tok/rnd are those of a speculation profile of {n_rounds} rounds of at most {k} tokens, the same at every "
    "place of a text. The intervals hold the spread of the costs here, and nothing of the profile's own."
)
BREAKS_EVEN = 0.005  # a gain that rounds to 0.00


def verdict(run: PlanRun, fact: DraftFacts) -> str:
    """One line says what to do with one draft."""
    even = "-" if fact.break_even is None else f"{fact.break_even:.2f}"
    if fact.break_even is not None and fact.break_even < BREAKS_EVEN:
        even = "0, a round costs no more than a decode step"
    return (
        f"{fact.method}, {temperature_name(fact.temperature)}: {advice(fact, _of_draft(run.plan, fact))}; break-even "
        f"α = {even}; a k chosen anew for every round, knowing what will be accepted: {speedup(fact.oracle)}; decode "
        f"step {fact.step_seconds * 1e3:.2f} ms"
    )


def advice(fact: DraftFacts, entries: list[PlanEntry]) -> str:
    """Return a line that names the length with the highest expected speedup, and those that may be as good.

    It advises plain decoding only where no length is expected to be faster: noise widens intervals, and a wide interval
    is no reason for another advice.

    entries: the expectations for this draft at every length.
    """
    if not _seems_faster(fact):
        return "leave speculation off, no k is expected to be faster"
    best = _entry(entries, fact.best_draft_length)
    band = interval(best.band_low, best.band_high)
    if best.band_low is None:
        band = no_interval(fact.n_prompts) if fact.n_prompts is not None else "no interval"
    taken = f"take k = {fact.best_draft_length}, expected {speedup(fact.speedup)} ({band})"
    if not _pays(fact, entries):
        taken += ", which may be no gain: its interval includes 1"
    same = [str(entry.draft_length) for entry in entries if _is_same(entry) and entry.draft_length]
    return taken + f"; these may be as fast: k = {', '.join(same)}" * bool(same)


def _entry(entries: list[PlanEntry], draft_length: int) -> PlanEntry:
    return next(entry for entry in entries if entry.draft_length == draft_length)


def _seems_faster(fact: DraftFacts) -> bool:
    return fact.best_draft_length > 0 and fact.speedup > 1


def _pays(fact: DraftFacts, entries: list[PlanEntry]) -> bool:
    """Tell whether the best length is faster than plain decoding, as far as that is known.

    With k = 0 in the plan it is the length that the best is held against, in the same way as all others.
    """
    if not _seems_faster(fact):
        return False
    plain = next((entry for entry in entries if entry.draft_length == 0), None)
    if plain is not None and plain.time_low is not None:
        return not _is_same(plain)
    best = _entry(entries, fact.best_draft_length)
    return best.band_low is None or best.band_low > 1


def _is_same(entry: PlanEntry) -> bool:
    """Tell whether a length may be as fast as the best one: the interval of the ratio of their times includes 1."""
    return entry.time_low is not None and entry.time_high is not None and entry.time_low <= 1 <= entry.time_high


def _of_draft(rows: list[Any], fact: DraftFacts) -> list[Any]:
    """Return the rows of this draft, planned or measured."""
    return [row for row in rows if (row.method, row.temperature) == (fact.method, fact.temperature)]


def _measured(run: PlanRun, fact: DraftFacts) -> list[Row]:
    return _of_draft(run.verified.rows, fact) if run.verified else []


def plan_table(run: PlanRun, fact: DraftFacts) -> Table:
    """Return one line per draft length; where the plan was measured, measured values stand beside it."""
    measured = {row.draft_length: row.speedup for row in _measured(run, fact)}
    columns: dict[str, Cell] = {
        **cells("draft", "k", "tok/rnd", "α", "c", "v", "o"),
        "expected": lambda row: speedup(row.speedup),
    }
    entries = _of_draft(run.plan, fact)
    if any(entry.band_low is not None for entry in entries):
        columns["95 %"] = lambda row: interval(row.band_low, row.band_high)
    if any(entry.time_low is not None for entry in entries):
        columns["time / best"] = lambda row: interval(row.time_low, row.time_high)
    columns["plan"] = functools.partial(_mark, fact, entries)
    if measured:
        columns["measured"] = lambda row: speedup(measured.get(row.draft_length))
    return Table(entries, columns)


def _mark(fact: DraftFacts, entries: list[PlanEntry], row: PlanEntry) -> str:
    """Return the mark of a length: it is taken, it is the best one, or it may be as fast as the best one."""
    if row.draft_length == fact.best_draft_length:
        return "take" if _pays(fact, entries) else "best"
    return "same" if _is_same(row) else "-"


def checked_table(verified: Verified) -> Table:
    """Return a table that compares the plan with the measurement on prompts it had not seen."""
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
    """Return the verdict on the texts of a check; for every draft the verdict and the table; then the comparison on
    other prompts."""
    return show([_first(run), *_blocks(run)])


def page(run: PlanRun) -> str:
    """Return the same in Markdown, with the origin of the record."""
    return show([Markdown("# The plan"), provenance(run), _first(run), *_blocks(run)], markdown=True)


def _first(run: PlanRun) -> Lines:
    """Return the lines that stand before any number."""
    return Lines([*agreement_lines(run.correctness), *remarks(run), rough_line(run)])


def _blocks(run: PlanRun) -> list[Block]:
    blocks: list[Block] = []
    for fact in run.facts.drafts:
        blocks += [Lines([verdict(run, fact)]), marked(run, plan_table(run, fact))]
    blocks.append(COSTS)
    if given := run.facts.acceptance_profile:
        blocks.append(GIVEN.format(n_rounds=given["n_rounds"], k=len(given["accepted_at"])))
    if any(fact.choice for fact in run.facts.drafts):
        blocks.append(OLD_METHOD)
    elif any(entry.time_low is not None for entry in run.plan):
        blocks.append(METHOD)
    if run.verified:
        blocks.append(f"The plan, measured on {run.verified.n_prompts} other prompts:")
        blocks.append(checked_table(run.verified))
    return [*blocks, Lines(noise_lines(run.noise or []))]


def picture(run: PlanRun, folder: Path, name: str) -> Path:
    """Draw the speedup against k: expected with its band, the oracle draft length, and measured."""
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
    """Draw the band of every draft's expected speedups, where the record has one."""
    for i, fact in enumerate(run.facts.drafts):
        banded = [entry for entry in _of_draft(run.plan, fact) if entry.band_low is not None]
        lows, highs = ([getattr(entry, end) for entry in banded] for end in ("band_low", "band_high"))
        lengths = [entry.draft_length for entry in banded]
        axis.fill_between(lengths, lows, highs, color=figures.colour(i), alpha=0.15, linewidth=0)
