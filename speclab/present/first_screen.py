"""compare.py prints the answer of a comparison on one screen. The rest is in report.py.

Views of the record; every line is a fixed template filled with its numbers.
"""

import math
from collections.abc import Callable
from operator import attrgetter, itemgetter
from typing import NamedTuple

from speclab.drafts import registry
from speclab.present import report, tables
from speclab.present.run_lines import (
    floor_text,
    marked,
    padding_remark,
    provenance,
    remarks,
    rough_line,
    wrong_line,
)
from speclab.present.tables import (
    Block,
    Heading,
    Lines,
    Table,
    cells,
    interval,
    number,
    speedup,
    speedup_of,
    through,
    verdict_of,
    with_verdict,
)
from speclab.records.files import ComparisonRun, LabRun
from speclab.records.rows import AUTO, Facts, Row
from speclab.theory.ladder import factors, prediction_rows

LAB = "lab pair"
NO_LOSS = 0.995  # a factor that rounds to x1.00 loses nothing
CHAINS_ONLY = "the formula and the ladder know chains only: no values for drafts with branches"


class Line(NamedTuple):
    """A row of the table: one draft at one length, with its rows at all temperatures, the run's first one first."""

    rows: list[Row | None]
    best: bool

    @property
    def row(self) -> Row:
        """Return its row at the first temperature at which it ran."""
        return next(filter(None, self.rows))


def screen(run: ComparisonRun, brief: bool = False, where: list[str] | None = None, markdown: bool = False) -> str:
    """Show whether the text is the same; the result and the table; what lies between the formula and the measurement,
    and where there is no gain; and `where` the rest is.

    brief: only the tables, below the lines that say that texts are wrong, or speeds rough.
    """
    runs = [run, run.padded] if run.padded else [run]
    rough = Lines(f"{target_name(shown)}: {rough_line(shown)}" for shown in runs if rough_line(shown))
    speeds: list[Block] = []
    for shown in runs:
        speeds.append(Heading(target_name(shown), 3) if len(runs) > 1 else None)
        said = [padding_remark(shown.settings["target"]).strip(), None if brief else result_line(shown)]
        speeds += [Lines(said)] * any(said)
        speeds.append(marked(shown, speed_table(shown)))
    if brief:
        return tables.show([Lines(filter(None, map(wrong_line, runs))), rough, *speeds], markdown)
    checked = (line for shown in runs for line in (*same_text_lines(shown, shown.correctness), *remarks(shown)))
    agreement = Lines(
        dict.fromkeys(checked)
    )  # both sizes were run on the same cores: what is said of those stands once
    facts = Lines(
        [
            chains_only_line(runs),
            *(line for shown in runs for line in facts_lines(shown)),
            *(f"{target_name(shown)}: {report.loops_line(shown)}" for shown in runs if report.n_looping(shown)),
            noise_line(runs),
            no_gain_line(runs),
        ]
    )
    head = Lines([report.functions_line(run)])
    return tables.show([head, agreement, rough, *speeds, facts, Lines(where or [])], markdown)


def page(run: ComparisonRun, name: str) -> str:
    """Return results/NAME.md: the first screen with its pictures, then everything else. name: the name of the
    pictures"""
    parts = [f"{tables.escaped(provenance(run))}\n", f"## The answer\n\n{screen(run, markdown=True)}"]
    for shown, its_name in ((run, name), (run.padded, f"{name}-padded")):
        if shown:
            if shown is run.padded:
                parts.append(f"# {tables.escaped(target_name(shown))}\n\n{tables.escaped(provenance(shown))}\n")
            parts.append("\n\n".join(_pictures(shown, its_name)) + "\n")
            parts.append(report.comparison(shown, by_kind=True, markdown=True))
    return "\n".join(parts)


def _pictures(run: ComparisonRun, name: str) -> list[str]:
    """Return the pictures that the page shows."""
    shown = []
    if any(row.draft for row in run.rows):
        shown.append(f"![speedup by draft and k](../plots/{name}-speedup.png)")
    if any(row.ladder for row in run.rows):
        shown.append(f"![from the book's formula to the measured speedup](../plots/{name}-why.png)")
    return shown


def target_name(run: LabRun) -> str:
    """Return the target as the table calls it."""
    name = run.settings["target"]
    return LAB if name == "models/lab-pair/target" else name.rpartition("/")[2]


# --- same text? -------------------------------------------------------------------------------------------------------


def same_text_lines(run: LabRun, judged: list[Facts]) -> list[str]:
    """Return one line for all greedy texts that were judged, one for each temperature above 0; more if something is
    wrong."""
    prefix, lines = f"same text? {target_name(run)}, ", []
    greedy = [entry for entry in judged if entry["temperature"] == 0]
    if greedy:
        *differences, verdict = report.agreement_lines(greedy)
        lines += [*differences, prefix + verdict]
    for temperature in dict.fromkeys(e["temperature"] for e in judged if e["temperature"] > 0):
        entries = [entry for entry in judged if entry["temperature"] == temperature]
        wrong = [entry for entry in entries if not entry["passed"]]
        lossy = [entry for entry in entries if entry.get("lossy_rule")]
        if lossy:  # arms that draft nothing are in the details alone
            n_tokens = sum(entry["n_tokens"] for entry in lossy)
            lines.append(
                f"{prefix}T = {temperature:g}: NO, the rule is LOSSY; {n_tokens} tokens of {len(lossy)} arms, below"
            )
            lines += report.agreement_lines(list({id(entry): entry for entry in [*lossy, *wrong]}.values()))
            continue
        right = f"{len(entries) - len(wrong)} of {len(entries)} arms, |z| < {entries[0]['bound']:g}"
        n_tested = sum(entry["n_tokens"] - entry.get("n_uncertain", 0) for entry in entries)
        said = (
            f"{n_tested} sampled tokens, no difference found in {right}"
            if n_tested
            else f"NOT TESTED, {report.UNTESTED}"
        )
        lines.append(f"{prefix}T = {temperature:g}: {said}")
        lines += report.agreement_lines(wrong)
    return lines


def text_verdict(run: ComparisonRun) -> str:
    """Say in one sentence whether the texts are right: at the run's first temperature, and that none is wrong at the
    others."""
    if not all(entry["passed"] for entry in run.correctness):
        return "Some texts are WRONG."
    judged = [entry for entry in run.correctness if run.rows and entry["temperature"] == run.rows[0].temperature]
    if not judged or run.unchecked:
        return "Texts not checked."
    if judged[0]["temperature"] == 0:
        return "Same text, but for rounding." if any(entry["differences"] for entry in judged) else "Same text."
    if any(entry.get("lossy_rule") for entry in judged):
        return "LOSSY texts."
    tested = any(entry["n_tokens"] > entry.get("n_uncertain", 0) for entry in judged)
    return "No difference of the texts found." if tested else "Texts NOT TESTED."


def result_line(run: ComparisonRun) -> str | None:
    """Say in one sentence what the table shows; None for a run without drafts."""
    best, rows = best_row(run), [row for row in _first_rows(run) if row.draft]
    if not rows:
        return None
    row = best or max(rows, key=lambda row: row.speedup)
    ends = interval(row.speedup_low, row.speedup_high)
    length = "auto" if row.auto else row.draft_length
    said = f"{text_verdict(run)} Highest: {row.method.removesuffix(AUTO)}, k = {length}, {speedup_of(row)}"
    said += f" ({ends})" * (ends != "-") + ", not shown to be faster" * (best is None)
    if not factors(row):  # a hybrid's rounds are of two kinds, which no ladder describes
        row = best_model_row(run) or row
        said += f"; {row.method}, k = {row.draft_length}" * bool(factors(row))
    name, factor = min(factors(row).items(), key=itemgetter(1), default=("", 1.0))
    return f"{said}: most is lost to {name} (x{factor:.2f})." if factor < NO_LOSS else f"{said}."


# --- how fast? --------------------------------------------------------------------------------------------------------


def table_lines(run: ComparisonRun) -> list[Line]:
    """Return the lines of the table: the baseline, and every draft at every length, over all prompts."""
    temperatures = list(dict.fromkeys(row.temperature for row in run.rows))
    by_arm: dict[tuple[str, int], dict[float, Row]] = {}
    for row in run.rows:
        if row.prompt_kind == "all" and (row.draft or row.method == "baseline"):
            by_arm.setdefault((row.method, row.draft_length), {})[row.temperature] = row
    best = best_row(run)
    return [
        Line([rows.get(temperature) for temperature in temperatures], best in rows.values()) for rows in by_arm.values()
    ]


def best_row(run: ComparisonRun) -> Row | None:
    """Return the fastest draft at the first temperature, over all prompts; None where none is faster than the
    baseline."""
    first = run.rows[0].temperature if run.rows else None
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all" and row.temperature == first]
    fastest = max(rows, key=lambda row: row.speedup, default=None)
    return fastest if fastest and fastest.verdict in ("faster", None) and fastest.speedup > 1 else None


def speed_table(run: ComparisonRun) -> Table:
    """Return one line per draft and length; the columns of further temperatures come after those of the first one."""
    temperatures = list(dict.fromkeys(row.temperature for row in run.rows))
    columns = through(attrgetter("row"), cells("draft", "k", "α", "tok/rnd", "tok/s"))
    for i, temperature in enumerate(temperatures):
        columns[f"T = {temperature:g}" if i else "speedup"] = _speedup_at(i)
        if i == 0:
            columns |= through(attrgetter("row"), cells("95 %"))
            columns["forecast"] = lambda line: speedup(line.row.forecast)
            columns["book(α)"] = lambda line: speedup(line.row.book_formula)
    return Table(table_lines(run), columns)


def _speedup_at(place: int) -> Callable[[Line], str]:
    """Return the speedup at one of the temperatures, and the verdict where it is not "faster"; "highest" at the first
    temperature of the best row."""

    def cell(line: Line) -> str:
        row = line.rows[place] if place < len(line.rows) else None
        if row is None:
            return "-"
        return with_verdict(speedup_of(row), verdict_of(row)) + " highest" * (line.best and place == 0)

    return cell


# --- what to know about it --------------------------------------------------------------------------------------------


def facts_lines(run: ComparisonRun) -> list[str | None]:
    """Say how a target's step is spent, and what lies between the formula and the speedup of its fastest model
    draft."""
    row = best_model_row(run)
    if row is None:
        return []
    prefix = f"{target_name(run)}, {row.method} k = {row.draft_length}:"
    lines: list[str | None] = [reading_line(run)]
    if row.book_formula is not None:
        forecast = f", forecast {speedup(row.forecast)}" if row.forecast is not None else ""
        lines.append(
            f"{prefix} 1/(1-α+α/k) with α = {number(row.acceptance_rate)} says {speedup(row.book_formula)}; "
            f"measured {speedup_of(row)}{forecast}{between(row)}"
        )
    return lines


def chains_only_line(runs: list[ComparisonRun]) -> str | None:
    """Say why some cells are empty where drafts had branches; None where none had."""
    rows = (row for run in runs for row in run.rows if row.draft_length and not row.auto)
    return CHAINS_ONLY if any(row.acceptance_rate is not None and row.book_formula is None for row in rows) else None


def best_model_row(run: ComparisonRun) -> Row | None:
    """Return the fastest row of a draft that is no lookup, or of any draft where all are lookups.

    Rows at the first temperature count.
    """
    rows = [row for row in _first_rows(run) if row.draft]
    lookups = registry.lookups()
    models = [row for row in rows if (row.draft or "").removesuffix(AUTO) not in lookups]
    with_ladder = [row for row in models if row.ladder]
    return max(with_ladder or models or rows, key=lambda row: row.speedup, default=None)


def rows_of(run: ComparisonRun, draft: str) -> list[Row]:
    """Return the rows of one draft over all prompts, at the first temperature."""
    return [row for row in _first_rows(run) if row.draft == draft and row.draft_length]


def _first_rows(run: ComparisonRun) -> list[Row]:
    """Return the rows over all prompts, at the first temperature."""
    return [row for row in run.rows if row.prompt_kind == "all" and row.temperature == run.rows[0].temperature]


def reading_line(run: ComparisonRun) -> str | None:
    """Say how much of a decode step is the reading of weights; None where that was not measured."""
    baseline = next((row for row in _first_rows(run) if row.method == "baseline"), None)
    if baseline is None or not run.bandwidth or run.weight_bytes is None:
        return None
    step = baseline.seconds / max(1, baseline.n_tokens)
    share = min(1.0, run.weight_bytes / run.bandwidth / step)
    return (
        f"{target_name(run)}: a step takes {1e3 * step:.1f} ms; {share:.0%} of that is reading "
        f"{run.weight_bytes / 1e6:.0f} MB of weights at {run.bandwidth / 1e9:.0f} GB/s"
    )


def between(row: Row) -> str:
    """Name the two largest factors between the formula and the row's speedup, as the end of a line about both.

    All else is computed from the numbers as they are printed: their product rounds to the speedup that is printed.
    """
    if not (all_factors := factors(row)) or not row.book_formula:
        return ""
    largest = sorted(all_factors.items(), key=lambda item: -abs(math.log(max(item[1], 1e-9))))[:2]
    said = math.prod([round(row.book_formula, 2), *(round(factor, 2) for _, factor in largest)])
    named = ", ".join(f"x{factor:.2f} {name}" for name, factor in largest)
    return f"; between them: {named}, x{round(row.speedup, 2) / said:.3f} all else" if said else ""


def noise_line(runs: list[ComparisonRun]) -> str | None:
    """Return the noise floors at the first temperature."""
    shown = ", ".join(f"{target_name(run)} {floor_text(run.noise[0])}" for run in runs if run.noise)
    return f"noise floor (baseline against itself): {shown}" if shown else None


def no_gain_line(runs: list[ComparisonRun]) -> str | None:
    """Say how many rows of the kinds of prompt are not shown to be faster, and the lowest speedup of all rows."""
    rows = [(run, row) for run in runs for row in prediction_rows(run.rows)]
    if not rows:
        return None
    run, low = min(rows, key=lambda pair: pair[1].speedup)
    where = f"{target_name(run)}, {low.method} k = {low.draft_length}, T = {low.temperature:g}, {low.prompt_kind}"
    n_not = sum(row.speedup <= 1 or row.verdict in ("slower", "unclear") for _, row in rows)
    counted = f"{n_not} of {len(rows)}, each draft and k once per temperature and kind of prompt (--verbose)"
    return f"not shown to be faster: {counted}; the lowest is {speedup_of(low)} ({where} prompts)"
