"""Tables, and the text that a comparison ends with: views of counts or of a run record, nothing is measured here.

The sentences between the tables are made in present/words.py, the numbers of the why-ladder in theory/ladder.py.
"""

import textwrap

import tabulate

from speclab.core.counts import Counts
from speclab.present.words import (
    correctness_lines,
    errors_line,
    generate_line,
    headline_line,
    losing_lines,
    noise_line,
    number,
    phases_line,
    prefill_line,
    provenance,
    reading_line,
    short_names,
    unchecked_line,
    verdict_sentence,
)
from speclab.theory.costs import Costs
from speclab.theory.ladder import EFFECTS, PREDICTORS, UNEXPLAINED, error, factors, prediction_rows

tabulate.MIN_PADDING = 0  # its extra blanks around headers would push the table past 80 columns

NARROW = tabulate.TableFormat(  # "simple" with one blank between the columns
    lineabove=None,
    linebelowheader=tabulate.Line("", "-", " ", ""),
    linebetweenrows=None,
    linebelow=None,
    headerrow=tabulate.DataRow("", " ", ""),
    datarow=tabulate.DataRow("", " ", ""),
    padding=0,
    with_header_hide=None,
)


def table(rows: list[list[str]], headers: list[str], markdown: bool = False, n_words: int = 1, narrow=False) -> str:
    """Right-aligned columns after the first `n_words`, which hold words."""
    align = ["left"] * n_words + ["right"] * (len(headers) - n_words)
    return tabulate.tabulate(
        rows,
        headers,
        tablefmt="github" if markdown else NARROW if narrow else "simple",
        colalign=align if rows else None,
        disable_numparse=True,
    )


def short(value: float | None) -> str:
    """A number in four characters, for crowded tables: 0.63, 12.3, 123."""
    if value is None:
        return "-"
    return next((f"{value:.{digits}f}" for digits in (2, 1) if len(f"{value:.{digits}f}") <= 4), f"{value:.0f}")


def percent(share: float | None) -> str:
    """A signed share in five characters or fewer; beyond a factor of ten it no longer matters how far."""
    if share is None:
        return "-"
    return f"{share:+.0%}" if share < 9.995 else ">999%"


def counts_summary(counts: Counts) -> str:
    """Rounds, acceptance in all its meanings, and a histogram of accepted lengths."""
    lines = [
        f"rounds {counts.n_rounds}, drafted {counts.n_drafted}, accepted {counts.n_accepted}, "
        f"refused {counts.n_rejected}, never tested {counts.n_drafted - counts.n_accepted - counts.n_rejected}",
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


# --- how fast ---------------------------------------------------------------------------------------------------------

SPEED_COLUMNS = ["draft", "k", "tok/s", "speedup", "verdict", "±95 %", "±rerun", "α", "f", "tok/rnd"]


def speed_table(rows: list[dict], markdown: bool = False) -> str:
    """One line per arm; the baseline first."""
    names = _names(rows, markdown)
    lines = []
    for row in rows:
        half_width = None if row["speedup_low"] is None else (row["speedup_high"] - row["speedup_low"]) / 2
        speculative, rate = row["draft"] is not None, row["tokens_per_second"]
        lines.append(
            [
                names[row["method"]],
                str(row["draft_length"]) if speculative else "-",
                number(rate, 1 if rate < 999.95 else 0),
                f"{row['speedup']:.2f}x" if speculative else "1.00x",
                row["verdict"] or "-",
                short(half_width) if speculative else "-",
                short(row["repeat_noise"]),
                number(row["acceptance_rate"]),
                number(row["drafted_fraction"]),
                number(row["tokens_per_round"]),
            ]
        )
    return table(lines, SPEED_COLUMNS, markdown)


def _names(rows: list[dict], markdown: bool) -> dict[str, str]:
    """Method -> what a table calls it; the drafts are cut to the same names in every table."""
    methods = {r["method"]: r["method"] for r in rows}
    return methods if markdown else methods | short_names([r["method"] for r in rows if r["draft"]])


# --- what was predicted -----------------------------------------------------------------------------------------------

PREDICTION_ORDER = ["forecast", "accounting", "book_formula", "book_formula_drafted_fraction", "leviathan"]


def prediction_table(rows: list[dict], markdown: bool = False) -> str | None:
    """Each predictor beside the measurement, with its error; None where nothing was predicted.

    In the terminal the error follows its prediction in one column; Markdown has a column for it. book(f) goes without.
    """
    rows = [r for r in rows if r["draft"]]
    if not any(r[predictor] is not None for r in rows for predictor in PREDICTORS):
        return None
    names = _names(rows, markdown)
    headers, lines = ["draft", "k", "measured"], []
    for predictor in PREDICTION_ORDER:
        headers += [PREDICTORS[predictor]]
        headers += ["err"] if markdown and predictor != "book_formula_drafted_fraction" else []
    for row in rows:
        line = [names[row["method"]], str(row["draft_length"]), f"{row['speedup']:.2f}x"]
        for predictor in PREDICTION_ORDER:
            value, miss = short(row[predictor]), percent(error(row, predictor))
            if predictor == "book_formula_drafted_fraction" or (value == "-" and not markdown):
                line.append(value)
            else:
                line += [value, miss] if markdown else [f"{value} {miss:>5}"]
        lines.append(line)
    return table(lines, headers, markdown)


# --- why --------------------------------------------------------------------------------------------------------------

# effect -> the head of its column in the terminal, and what it is
LEGEND = {
    "bonus and partial drafts": ("bonus", "partly right drafts count too, and each round adds a token of its own"),
    "draft cost": ("drafts", "the draft takes time for every token it proposes"),
    "verification": ("verify", "the target checks k + 1 tokens in one pass, mostly slower than one"),
    "overhead": ("other", "accepting, rolling back, and the loop around them take time"),
    "real acceptance": ("real", "drafts are right in streaks, and may be shorter than k"),
    "last round": ("last", "the last round is cut where the text ends"),
    "longer context": ("context", "passes get slower while the text grows"),
    "chance": ("luck", "the draws of this run against what could be expected"),
    UNEXPLAINED: ("rest", "what none of these explains"),
}


def ladder_table(rows: list[dict], markdown: bool = False) -> str | None:
    """From the book's formula to the measurement, factor by factor; None where no row has a ladder."""
    rows = [r for r in rows if r["draft"]]
    if not any(r["ladder"] for r in rows):
        return None
    names, lines = _names(rows, markdown), []
    for row in rows:
        found = factors(row) or {}
        start = row["ladder"][0]["speedup"] if found else row["book_formula"]
        lines.append(
            [
                names[row["method"]],
                str(row["draft_length"]),
                "-" if start is None else f"{short(start)}x",
                *(short(found.get(effect)) for effect in EFFECTS),
                f"{row['speedup']:.2f}x",
            ]
        )
    middle = list(EFFECTS) if markdown else [LEGEND[effect][0] for effect in EFFECTS]
    return table(lines, ["draft", "k", "book", *middle, "measured"], markdown, narrow=True)


def ladder_legend(markdown: bool = False) -> str:
    """What the columns of the why-ladder are."""
    intro = "Start at the book's formula and multiply: each factor is a thing it leaves out."
    if markdown:
        return f"{intro}\n\n" + "\n".join(f"- {effect}: {words}" for effect, (_, words) in LEGEND.items())
    return "\n".join([intro, *(f"  {head:8s}{words}" for head, words in LEGEND.values())])


def yours_table(run: dict, markdown: bool = False) -> str | None:
    """What exercise 5's functions predicted, beside the measurement and the lab's own; None where there is nothing."""
    rows = {(r["method"], r["draft_length"], r["temperature"]): r for r in run["rows"] if r["prompt_kind"] == "all"}
    names, lines = _names(list(rows.values()), markdown), []
    for mine in run.get("yours", []):
        row, speedup = rows[mine["method"], mine["draft_length"], mine["temperature"]], mine["speedup"]
        miss = None if speedup is None else speedup / row["speedup"] - 1
        cells = [f"{mine['temperature']:g}", str(mine["draft_length"]), number(mine["acceptance_rate"])]
        cells += [f"{row['speedup']:.2f}x", short(speedup), percent(miss)]
        lines.append([names[mine["method"]], *cells, short(row["book_formula"]), short(row["accounting"])])
    headers = ["draft", "T", "k", "your α", "measured", "yours", "err", "book(α)", "accounting"]
    return table(lines, headers, markdown) if lines else None


# --- what a round is made of ------------------------------------------------------------------------------------------

MOST_WIDTHS, MOST_LENGTHS = 8, 4  # columns that fit


def costs_tables(run: dict, markdown: bool = False) -> list[str]:
    """The calibrated costs: the target's passes for each temperature, then the rest of a round for each draft."""
    entries = [(e["drafter"], e["temperature"], Costs.from_json(e["costs"])) for e in run["costs"]]
    if not entries:
        return []
    context = _usual_context(run)
    widths = _some(sorted({w for *_, costs in entries for w in costs.widths}), MOST_WIDTHS)
    lengths = _some([k for k in run["settings"]["draft_lengths"] if k], MOST_LENGTHS)
    longest = lengths[-1] if lengths else max(widths) - 1
    by_temperature = {temperature: costs for _, temperature, costs in reversed(entries)}
    passes = [
        [f"{t:g}", f"{costs.step_seconds(context) * 1e3:.2f}", *(short(costs.verify_cost(w, context)) for w in widths)]
        for t, costs in reversed(by_temperature.items())
    ]
    names = {d: d for d, *_ in entries} if markdown else short_names([d for d, *_ in entries])
    rest = [
        [
            names[drafter],
            f"{temperature:g}",
            *(number(costs.draft_cost(k, context), 3) for k in lengths),
            *(f"{s * 1e6:.0f}" for s in (costs.accept_seconds(longest), costs.rollback, costs.host)),
        ]
        for drafter, temperature, costs in entries
    ]
    note = (
        f"At {context:.0f} tokens of context; v(m) is a target pass over m tokens, c(k) one of k drafted tokens, both "
        f"in decode steps of the target; v(1), a round without drafts, need not be 1: other instruments time it. "
        f"Accepting {longest} drafted tokens, rolling back and the host's own work are microseconds of a round."
    )
    return [
        note if markdown else textwrap.fill(note, 79),
        table(passes, ["T", "step ms", *(f"v({w})" for w in widths)], markdown),
        table(rest, ["draft", "T", *(f"c({k})" for k in lengths), "accept µs", "rollback µs", "host µs"], markdown),
    ]


def _usual_context(run: dict) -> float:
    """Prompt tokens on average and half of the new ones."""
    prompts = {s["prompt_index"]: s["n_prompt"] for s in run["raw"]}
    return sum(prompts.values()) / len(prompts) + run["settings"]["max_new_tokens"] / 2


def _some(values: list[int], most: int) -> list[int]:
    """All of a sorted list, or `most` of it evenly spread, both ends kept."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


# --- everything -------------------------------------------------------------------------------------------------------


def comparison(run: dict, by_kind: bool = False, markdown: bool = False) -> str:
    """Agreement; for each temperature how fast, what was predicted and why; what a round is made of."""
    blocks = [provenance(run)] if markdown else []
    blocks += _lines([impl_line(run)], markdown)
    agreement = [*correctness_lines(run["correctness"]), unchecked_line(run)]
    blocks += [_heading("Do the outputs agree?", markdown), *_lines(agreement, markdown)]
    legend = ladder_legend(markdown)
    for temperature in dict.fromkeys(r["temperature"] for r in run["rows"]):
        for kind in dict.fromkeys(r["prompt_kind"] for r in run["rows"]):
            rows = [r for r in run["rows"] if r["temperature"] == temperature and r["prompt_kind"] == kind]
            if not rows or not _shown(run, kind, temperature, by_kind):
                continue
            name = "greedy" if temperature == 0 else "sampling"
            what = "all prompts" if kind == "all" else f"prompts: {kind}"
            title = f"Temperature {temperature:g} ({name}), {what} ({rows[0]['n_prompts']})"
            blocks += [_heading(title, markdown), speed_table(_arms(rows), markdown)]
            if kind == "all":
                cut = [f"{short} is {name}" for name, short in _names(rows, markdown).items() if short != name]
                blocks += _lines([*cut, *_notes(run, rows, temperature)], markdown)
            if kind == "all" or by_kind:
                blocks += _predicted(run, rows, markdown)
                blocks += _why(rows, legend, markdown)
                legend = None if ladder_table(rows) else legend  # once is enough
    blocks += _round_costs(run, markdown)
    n_looping = run["prompts"]["n_looping"]
    if n_looping is not None:
        blocks.append(
            f"{n_looping} of {run['prompts']['n']} greedy texts end in a loop (last 32 tokens of period 8 or less);\n"
            "loops are easy to draft and flatter acceptance."
        )
    if run["interrupted"]:
        blocks.append(
            "Stopped before the end: rows cover the prompts that every arm had finished, checks may be\nmissing."
        )
    found = yours_table(run, markdown)
    blocks += [_heading("What you predicted", markdown), found] if found else []
    return "\n\n".join(blocks) + "\n"


def impl_line(run: dict) -> str | None:
    """Whose functions decided in the rows; None where they are the lab's own."""
    impl = run["settings"].get("impl")
    if impl is None:
        return None
    numbers = ", ".join(map(str, impl["exercises"]))
    who = f"Functions of {impl['package']}/ took part in the speculative rows: exercises {numbers}."
    return f"{who} The baseline is the lab's own."


def _heading(text: str, markdown: bool, level: int = 2) -> str:
    return f"{'#' * level} {text}" if markdown else text


def _lines(items: list[str | None], markdown: bool) -> list[str]:
    """-> no block, or one with a line (Markdown: a list item) for each item that is there"""
    items = [item for item in items if item]
    if not items:
        return []
    if markdown:
        return ["\n".join(f"- {item.strip()}" for item in items)]
    # "model k=4" stays on one line.
    wrapped = [textwrap.fill(item.replace(" k=", "\xa0k="), 79, subsequent_indent="    ") for item in items]
    return ["\n".join(wrapped).replace("\xa0k=", " k=")]


def _shown(run: dict, kind: str, temperature: float, by_kind: bool) -> bool:
    n_looping = run["prompts"]["n_looping"]
    many_loops = n_looping is not None and n_looping > run["prompts"]["n"] / 4
    return kind == "all" or by_kind or (kind == "not looping" and many_loops and temperature == 0)


def _arms(rows: list[dict]) -> list[dict]:
    """The baseline and the speculative rows; what serves as a reference has a line of its own."""
    return [r for r in rows if r["draft"] or r["method"] == "baseline"]


def _notes(run: dict, rows: list[dict], temperature: float) -> list[str | None]:
    everywhere = [r for r in run["rows"] if r["temperature"] == temperature]
    notes = [noise_line(run, temperature), prefill_line(rows), *losing_lines(everywhere)]
    return notes + ([generate_line(rows), headline_line(run)] if temperature == 0 else [])


def _predicted(run: dict, rows: list[dict], markdown: bool) -> list[str]:
    """The prediction table with the errors over this temperature's rows of all kinds, or over the one kind shown."""
    found = prediction_table(rows, markdown)
    if found is None:
        return []
    whole = rows[0]["prompt_kind"] == "all"
    pool = [r for r in run["rows"] if r["temperature"] == rows[0]["temperature"]] if whole else rows
    meaning = None if markdown else "after each prediction: predicted / measured - 1"
    return [
        _heading("What was predicted, as speedup" if markdown else "What was predicted", markdown, level=3),
        found,
        *_lines([meaning, errors_line(prediction_rows(pool))], markdown),
    ]


def _why(rows: list[dict], legend: str | None, markdown: bool) -> list[str]:
    """The ladder and, for all prompts, a sentence for each row; sentences alone where there is no ladder."""
    speculative = [r for r in rows if r["draft"]]
    sentences = [verdict_sentence(r) for r in speculative] if rows[0]["prompt_kind"] == "all" else []
    found = ladder_table(rows, markdown)
    ladder = [_heading("Why: from the formula to the measurement", markdown, level=3), found] if found else []
    if found and legend:
        ladder.append(legend)
    return ladder + _lines(sentences, markdown)


def _round_costs(run: dict, markdown: bool) -> list[str]:
    blocks = costs_tables(run, markdown)
    if not blocks:
        return []
    lines = _lines([reading_line(run), phases_line(run)], markdown)
    return [_heading("What a round is made of", markdown), *blocks, *lines]
