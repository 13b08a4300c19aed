"""A comparison as tables and lines: views of its record, nothing is measured here.

Every line of text is a fixed template filled with numbers of the record.
"""

import textwrap
from collections.abc import Sequence

from speclab.core.counts import Counts
from speclab.present import explanations, tables
from speclab.present.run_lines import interrupted_line, noise_lines, provenance, unchecked_line
from speclab.present.tables import Cell, column, columns, interval, label, number, speedup
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun, Facts
from speclab.theory.ladder import prediction_rows

COLUMNS = (
    "95 %: where other prompts would put the speedup; rerun: where the same command, run again, would put it; "
    "end to end: with the prompt's own passes; α: accepted / tested; f: accepted / drafted; tok/rnd: tokens per "
    "target pass"
)
NOT_SLOWER = 0.995  # what rounds to 1.00x is not called slower


def comparison(run: ComparisonRun, by_kind: bool = False, markdown: bool = False) -> str:
    """Agreement; for each temperature how fast, what was predicted and why; what a round is made of.

    by_kind: also the tables of every kind of prompt.
    """
    blocks = [provenance(run)] if markdown else []
    blocks += _block([learner_line(run)], markdown)
    blocks.append(_heading("Do the outputs agree?", markdown))
    blocks += _block([*agreement_lines(run.correctness), unchecked_line(run)], markdown)
    # So many that the other texts deserve a table of their own.
    many_loops = (run.prompts["n_looping"] or 0) > run.prompts["n"] / 4
    for temperature in dict.fromkeys(row.temperature for row in run.rows):
        for kind in dict.fromkeys(row.prompt_kind for row in run.rows):
            rows = [r for r in run.rows if r.temperature == temperature and r.prompt_kind == kind]
            if rows and (by_kind or kind == "all"):
                blocks += _speed(run, rows, markdown)
                blocks += _predicted(run, rows, markdown)
                blocks += _titled(
                    "Why: from the formula to the measurement", explanations.ladder_table(rows, markdown), markdown
                )
            elif rows and kind == "not looping" and temperature == 0 and many_loops:
                blocks += _speed(run, rows, markdown)
    if any(row.ladder for row in run.rows):
        blocks.append(explanations.ladder_legend(markdown))
    costs = explanations.costs_table(run, markdown)
    if costs:
        blocks += [_heading("What a round is made of", markdown), costs]
        blocks += _block([explanations.costs_line(run), explanations.phases_line(run)], markdown)
    learner = explanations.learner_table(run, markdown)
    if learner:
        blocks += [_heading("What you predicted", markdown), learner]
    blocks += _block([loops_line(run), interrupted_line(run)], markdown)
    return "\n\n".join(blocks) + "\n"


def _heading(text: str, markdown: bool, level: int = 2) -> str:
    return f"{'#' * level} {text}" if markdown else text


def _titled(title: str, body: str | None, markdown: bool) -> list[str]:
    """-> nothing, or a title and a table under it"""
    return [_heading(title, markdown, level=3), body] if body else []


def _block(given: Sequence[str | None], markdown: bool) -> list[str]:
    """-> nothing, or one block of the lines that are there; Markdown: a list"""
    lines = [line for line in given if line]
    if markdown:
        lines = [f"- {line.strip()}" for line in lines]
    else:
        lines = [textwrap.fill(line, tables.WIDTH - 1, subsequent_indent="    ") for line in lines]
    return ["\n".join(lines)] if lines else []


# --- agreement --------------------------------------------------------------------------------------------------------


def learner_line(run: ComparisonRun) -> str | None:
    """Whose functions decided in the rows; None where they are the lab's own."""
    learner = run.settings.get("impl")
    if learner is None:
        return None
    numbers = ", ".join(map(str, learner["exercises"]))
    who = f"Functions of {learner['package']}/ took part in the speculative rows: exercises {numbers}."
    return f"{who} The baseline is the lab's own."


def agreement_lines(entries: list[Facts]) -> list[str]:
    """Every greedy difference, then the verdict on greedy texts, then one for each arm that sampled."""
    lines = []
    greedy = [entry for entry in entries if entry["temperature"] == 0]
    for entry in greedy:
        for difference in entry["differences"]:
            gap = "-" if difference["gap"] is None else f"{difference['gap']:.3g}"
            before, after = difference["tokens"]
            lines.append(
                f"  {entry['arm']}, prompt {difference['prompt']}, token {difference['position']}: {before!r} became "
                f"{after!r}, gap {gap}: {difference['verdict']}"
            )
    if greedy:
        n_texts, n_different = sum(e["n_prompts"] for e in greedy), sum(len(e["differences"]) for e in greedy)
        verdict = f"{n_different} differ, first differences above" if n_different else "identical"
        lines.append(f"greedy: {n_texts} texts of {len(greedy)} arms against the baseline, token for token: {verdict}")
    for entry in entries:
        if entry["temperature"] > 0:
            verdict = "consistent" if entry["passed"] else "NOT the target's distribution"
            z_s, z_l = ("inf" if z is None else f"{z:+.2f}" for z in (entry["z_residual"], entry["z_surprise"]))
            lines.append(
                f"T = {entry['temperature']:g}, {entry['arm']}: z_S = {z_s}, z_L = {z_l} "
                f"over {entry['n_tokens']} tokens (bound {entry['bound']}): {verdict}"
            )
    return lines


def loops_line(run: ComparisonRun) -> str | None:
    """How many greedy texts end in repetition; None where nothing was decoded greedily."""
    n_looping, n_texts = run.prompts["n_looping"], run.prompts["n"]
    if n_looping is None:
        return None
    return (
        f"{n_looping} of {n_texts} greedy texts end in repetition (last 32 tokens of period 8 or less), which is easy "
        "to draft and raises acceptance"
    )


# --- how fast ---------------------------------------------------------------------------------------------------------


def counts_summary(counts: Counts) -> str:
    """Rounds, acceptance in all its meanings, and a histogram of accepted lengths."""
    lines = [
        f"rounds {counts.n_rounds}, drafted {counts.n_drafted}, accepted {counts.n_accepted}, "
        f"rejected {counts.n_rejected}, never tested {counts.n_drafted - counts.n_accepted - counts.n_rejected}",
        f"alpha (accepted / tested)           {number(counts.acceptance_rate, 3)}",
        f"drafted fraction (accepted/drafted) {number(counts.drafted_fraction, 3)}",
        f"tokens per round (target pass)      {number(counts.tokens_per_round)}",
        "accepted in a round:",
    ]
    most = max(counts.accepted_lengths.values(), default=1)
    for length in range(max(counts.accepted_lengths, default=0) + 1):
        rounds = counts.accepted_lengths[length]
        lines.append(f"  {length:2d} | {'#' * round(40 * rounds / most):40s} {rounds}")
    return "\n".join(lines)


def _speed(run: ComparisonRun, rows: list[Row], markdown: bool) -> list[str]:
    """The speed table of some rows and, for all prompts, the lines under it."""
    temperature, kind = rows[0].temperature, rows[0].prompt_kind
    prompts = "all prompts" if kind == "all" else f"prompts: {kind}"
    title = f"{tables.temperature_name(temperature)}, {prompts} ({rows[0].n_prompts})"
    arms = [row for row in rows if row.draft or row.method == "baseline"]
    blocks = [_heading(title, markdown), speed_table(arms, markdown)]
    if rows[0].temperature == run.rows[0].temperature and kind == "all":  # once is enough
        blocks += _block([COLUMNS], markdown)
    if kind == "all":
        lines = [f"{short} is {name}" for name, short in tables.draft_names(rows, markdown).items() if short != name]
        lines += noise_lines([floor for floor in run.noise if floor.temperature == temperature])
        lines += losing_lines([row for row in run.rows if row.temperature == temperature])
        greedy = [generate_line(rows), headline_line(run)] if temperature == 0 else []
        blocks += _block([*lines, *greedy], markdown)
    return blocks


def speed_table(rows: list[Row], markdown: bool = False) -> str:
    """One line per arm; the baseline first."""
    names = tables.draft_names(rows, markdown)
    cells = {
        "draft": lambda row: names[row.method],
        "k": _of_a_draft(lambda row: str(row.draft_length)),
        "tok/s": lambda row: number(row.tokens_per_second, 1 if row.tokens_per_second < 999.95 else 0),
        "speedup": lambda row: speedup(row.speedup),
        "verdict": lambda row: row.verdict or "-",
        "95 %": _of_a_draft(lambda row: interval(row.speedup_low, row.speedup_high)),
        "rerun": _of_a_draft(_rerun),
        "end to end": _of_a_draft(lambda row: speedup(row.speedup_with_prefill)),
        "α": column("acceptance_rate"),
        "f": column("drafted_fraction"),
        "tok/rnd": column("tokens_per_round"),
    }
    return columns(rows, cells, markdown)


def _of_a_draft(cell: Cell) -> Cell:
    """A cell that is empty for the baseline."""
    return lambda row: cell(row) if row.draft else "-"


def _rerun(row: Row) -> str:
    """The interval in which the same command, run again, would land."""
    noise = row.repeat_noise
    return "-" if noise is None else interval(row.speedup - noise, row.speedup + noise)


def losing_lines(rows: list[Row]) -> list[str]:
    """For each kind of prompt on which speculation was slower: the rows, how much, and whether it may be noise."""
    lines = []
    for kind in dict.fromkeys(row.prompt_kind for row in rows):
        slower = [
            f"{label(row)} {speedup(row.speedup)}" + " (may be noise)" * (row.verdict == "unclear")
            for row in rows
            if row.prompt_kind == kind and row.draft and row.speedup < NOT_SLOWER
        ]
        if slower and kind not in ("all", "not looping"):
            lines.append(f"slower on {kind} prompts: {', '.join(slower)}")
    return lines


def generate_line(rows: list[Row]) -> str | None:
    """How our baseline compares with the library's own loop."""
    row = next((r for r in rows if r.method == "generate" and r.prompt_kind == "all"), None)
    if row is None:
        return None
    agreement = "the same text" if row.same_as_baseline else "NOT the same text"
    return (
        "the baseline against model.generate with the lab's settings (greedy, no penalties, no end token), prefill "
        f"included: {1 / row.speedup:.2f}x its speed, {agreement}"
    )


def headline_line(run: ComparisonRun) -> str | None:
    """The best k, chosen on one half of the prompts and reported on the other."""
    row = run.headline
    if not row:
        return None
    slower = " slower" if row.speedup < NOT_SLOWER else ""
    return (
        f"{row.method} draft, greedy, best k = {row.draft_length} chosen on half of the prompts; on the other "
        f"half {speedup(row.speedup)}{slower} (95 %: {interval(row.speedup_low, row.speedup_high)}), "
        f"alpha {number(row.acceptance_rate)}"
    )


# --- what was predicted -----------------------------------------------------------------------------------------------


def _predicted(run: ComparisonRun, rows: list[Row], markdown: bool) -> list[str]:
    """The prediction table, and the errors over this temperature's rows of all kinds or over the one kind shown."""
    whole = rows[0].prompt_kind == "all"
    pool = [row for row in run.rows if row.temperature == rows[0].temperature] if whole else rows
    table = explanations.prediction_table(rows, markdown)
    blocks = _titled("What was predicted, with the error predicted / measured - 1", table, markdown)
    return [*blocks, explanations.errors_table(prediction_rows(pool), markdown)] if blocks else []
