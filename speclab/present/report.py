"""All tables and lines of a comparison: views of its record, nothing is measured here.

Every line of text is a fixed template filled with numbers of the record.
"""

import itertools

from speclab.core.counts import Counts
from speclab.present import explanations, tables
from speclab.present.run_lines import REJECTED_PLACES, REPLAYS, marked, noise_lines, remarks, rough_line
from speclab.present.tables import (
    Block,
    Cell,
    Heading,
    Lines,
    Table,
    cells,
    number,
    speedup_of,
    verdict_of,
)
from speclab.records.rows import Facts, Row
from speclab.records.runs import ComparisonRun
from speclab.theory.ladder import prediction_rows

COLUMNS = (
    "95 % is the interval in which the speedup would lie with other prompts. end to end counts the passes over the "
    "prompt, too. α is accepted / tested tokens, f is accepted / drafted tokens, and tok/rnd is the tokens per target "
    "pass."
)
PREDICTED = "What was predicted, with the error predicted / measured - 1"
WHY = "Why: from the formula to the measurement"
LADDER = "From the book's formula to the measured speedup: each factor is what one thing costs or gains."
NOT_SLOWER = 0.995  # what rounds to 1.00x is not called slower


def comparison(run: ComparisonRun, by_kind: bool = False, markdown: bool = False) -> str:
    """Show agreement; for each temperature speed, predictions and reasons; and the parts of a round.

    by_kind: show the tables of every kind of prompt, too.
    """
    blocks: list[Block] = [Lines([functions_line(run)]), Heading("Do the outputs agree?")]
    blocks.append(Lines([*agreement_lines(run.correctness), *remarks(run), rough_line(run)]))
    temperatures, kinds = (dict.fromkeys(getattr(row, x) for row in run.rows) for x in ("temperature", "prompt_kind"))
    for temperature, kind in itertools.product(temperatures, kinds):
        rows = [row for row in run.rows if (row.temperature, row.prompt_kind) == (temperature, kind)]
        if rows and (by_kind or kind == "all"):
            pool = [row for row in run.rows if row.temperature == temperature] if kind == "all" else rows
            blocks += [*_speed(run, rows), Heading(PREDICTED, 3), explanations.prediction_table(rows)]
            blocks.append(explanations.errors_table(prediction_rows(pool)))
            blocks += [Heading(WHY, 3), explanations.ladder_table(rows, markdown)]
    if any(row.ladder for row in run.rows):
        blocks += [LADDER, explanations.ladder_legend(markdown), explanations.own_rates_legend(run.rows)]
    blocks += [Heading("What a round is made of"), explanations.costs_table(run), explanations.costs_lines(run)]
    blocks.append(Lines([loops_line(run)]))
    return tables.show(blocks, markdown)


UNTESTED = "the run's number format rounds too coarsely at this temperature; give --dtype float32"

# --- agreement --------------------------------------------------------------------------------------------------------


def functions_line(run: ComparisonRun) -> str | None:
    """The line names the functions that decided in the rows; None where all of them are the lab's own."""
    if not (about := run.settings.get("functions")):
        return None
    return f"These functions took part in the speculative rows: {about}. The baseline is the lab's own."


def agreement_lines(entries: list[Facts]) -> list[str]:
    """Return every greedy difference, then the verdict on greedy texts, then one for each arm that sampled."""
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
            if entry.get("lossy_rule") and entry["passed"]:
                verdict = f"LOSSY, mean total variation {number(entry.get('total_variation'), 3)}"
            names = {"z_residual": "z_S", "z_surprise": "z_L", "z_edge": "z_E"}  # older records have no z_E
            z = [f"{names[key]} = {_z_value(entry[key])}" for key in names if key in entry]
            n_uncertain = entry.get("n_uncertain", 0)
            edge = f", without {n_uncertain} at the filters' edge, where rounding decides" * bool(n_uncertain)
            if entry["passed"] and n_uncertain == entry["n_tokens"]:
                verdict = f"NOT TESTED, {UNTESTED}"
            lines.append(
                f"T = {entry['temperature']:g}, {entry['arm']}: {', '.join(z)} "
                f"over {entry['n_tokens']} tokens{edge} (bound {entry['bound']}): {verdict}"
            )
    return lines


def _z_value(z: float | None) -> str:
    return "inf" if z is None else f"{z:+.2f}"


def n_looping(run: ComparisonRun) -> int | None:
    """Return how many greedy texts end in repetition; None where nothing was decoded greedily."""
    return run.prompts.get("n_cut", run.prompts.get("n_looping"))


def loops_line(run: ComparisonRun) -> str | None:
    """Say how many greedy texts end in repetition; None where nothing was decoded greedily."""
    if (n := n_looping(run)) is None:
        return None
    said = f"{n} of {run.prompts['n']} greedy texts end in repetition (the last 32 tokens "
    if "n_cut" not in run.prompts:  # a record from before texts were cut
        return f"{said}have a period of 8 or less), which is easy to draft and raises acceptance"
    return f"{said}equal those up to 48 places before) and count only up to where it begins"


# --- how fast ---------------------------------------------------------------------------------------------------------


def counts_summary(counts: Counts, has_branches: bool = False) -> str:
    """Sum up the rounds: their number, acceptance in all its meanings, and a histogram of accepted lengths."""
    n_untested = counts.n_drafted - counts.n_accepted - counts.n_rejected  # with branches, all others that failed, too
    lines = [
        f"rounds {counts.n_rounds}, drafted {counts.n_drafted}, accepted {counts.n_accepted}, "
        + (f"rejected places {counts.n_rejected}" if has_branches else f"rejected {counts.n_rejected}")
        + f", never tested {n_untested}" * (not has_branches),
        *([f"replays {counts.n_replays}: {REPLAYS}"] if counts.n_replays else []),
        f"α (accepted / tested)               {number(counts.acceptance_rate, 3)}",
        f"drafted fraction (accepted/drafted) {number(counts.drafted_fraction, 3)}",
        f"tokens per round (target pass)      {number(counts.tokens_per_round)}",
        "accepted in a round:",
    ]
    most = max(counts.accepted_lengths.values(), default=1)
    for length in range(max(counts.accepted_lengths, default=0) + 1):
        rounds = counts.accepted_lengths[length]
        lines.append(f"  {length:2d} | {'#' * round(40 * rounds / most):40s} {rounds}")
    return "\n".join([*lines, *([REJECTED_PLACES] if has_branches else [])])


def _speed(run: ComparisonRun, rows: list[Row]) -> list[Block]:
    """Return the speed table of some rows and, for all prompts, the lines under it."""
    temperature, kind = rows[0].temperature, rows[0].prompt_kind
    prompts = "all prompts" if kind == "all" else f"prompts: {kind}"
    title = f"{tables.temperature_name(temperature)}, {prompts} ({rows[0].n_prompts})"
    legend, lines = Lines(), Lines()
    if kind == "all":
        legend += [COLUMNS] * (temperature == run.rows[0].temperature)  # once is enough
        lines += noise_lines([floor for floor in run.noise if floor.temperature == temperature])
        lines += losing_lines([row for row in run.rows if row.temperature == temperature])
        lines += [generate_line(rows, run.settings["dtype"])] if temperature == 0 else []
    return [Heading(title), marked(run, speed_table(rows)), legend, lines]


def speed_table(rows: list[Row]) -> Table:
    """Return one line per arm; the baseline first."""
    columns: dict[str, Cell] = {
        **cells("draft", "k", "tok/s", "speedup"),
        "verdict": lambda row: verdict_of(row) or "-",
        **cells("95 %"),
        **cells("end to end", "α", "f", "tok/rnd"),
    }
    return Table([row for row in rows if row.draft or row.method == "baseline"], columns)


def losing_lines(rows: list[Row]) -> list[str]:
    """Name for each kind of prompt on which speculation was slower the rows, how much slower they were, and whether
    that may be noise."""
    lines = []
    for kind in dict.fromkeys(row.prompt_kind for row in rows):
        slower = [
            f"{row.method} k={row.draft_length} {speedup_of(row)}" + " (may be noise)" * (row.verdict == "unclear")
            for row in rows
            if row.prompt_kind == kind and row.draft and row.speedup < NOT_SLOWER
        ]
        if slower and kind not in ("all", "not looping"):
            lines.append(f"slower on {kind} prompts: {', '.join(slower)}")
    return lines


def generate_line(rows: list[Row], dtype: str) -> str | None:
    """Compare the baseline with the library's own loop. dtype: of the run."""
    row = next((r for r in rows if r.method == "generate" and r.prompt_kind == "all"), None)
    if row is None:
        return None
    agreement = "the same text" if row.same_as_baseline else "NOT the same text"
    if not row.same_as_baseline and dtype != "float32":
        agreement += f" (where two logits are nearly equal, rounding in {dtype} decides)"
    return (
        "the baseline against model.generate with the lab's settings (greedy, no penalties, no end token), prefill "
        f"included: {1 / row.speedup:.2f}x its speed, {agreement}"
    )
