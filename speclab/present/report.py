"""The page of a comparison, its first screen with pictures and then its rows; and what a loop says of its rounds."""

from operator import attrgetter

from speclab.core.counts import Counts
from speclab.present import tables
from speclab.present.screen import drafted, noise_lines, provenance, screen, target_name
from speclab.present.tables import Block, Cell, Heading, Lines, Markdown, Table, cells, number, prediction, speedup
from speclab.records.files import ComparisonRun
from speclab.records.rows import AUTO, Row, lookup_shares
from speclab.theory.attribution import EFFECTS, PREDICTORS, factors, prediction_errors

COSTS = (
    "c, v and o are costs in decode steps of the target: of a drafted token, a pass over k + 1 tokens, the rest of a "
    "round"
)
REPLAYS = "passes in which recurrent layers, which cannot be cropped, read accepted tokens once more"
ROWS = (
    "95 % is the interval in which the speedup would lie with other prompts. end to end counts the passes over the "
    "prompt, too. α is accepted / tested tokens, f is accepted / drafted tokens, and tok/rnd is the tokens per target "
    "pass; its forecast is that along the baseline's text. A prediction of the speedup stands with its error, "
    "predicted / measured - 1. The formula and the ladder know chains only: drafts with branches have no values. Kinds "
    "of prompts stand apart at the first temperature of the first run; the record has them all."
)
LIMITS = "passes of three targets against their limits; with a hybrid, rounds in which its lookup drafts"
SHARES = "The share of the rounds in which the lookup of a hybrid drafts, and not its model, for each kind of prompt."
LADDER = "From the book's formula to the measured speedup: each factor is what one thing costs or gains."


def page(run: ComparisonRun, name: str) -> str:
    """Return results/NAME.md. name: the name of the pictures"""
    drawn = {  # by present/pictures.py; the parts of a run have none of their own
        "limits": LIMITS if len(run.parts) == 3 else "",
        "speedup": "speedup by draft and k" if any(row.draft for row in run.rows) else "",
        "why": "from the book's formula to the measured speedup" if any(row.ladder for row in drafted(run)) else "",
    }
    pictures = [Markdown(f"![{about}](../plots/{name}-{what}.png)") for what, about in drawn.items() if about]
    answer = Markdown(screen(run, markdown=True).strip())
    blocks = [provenance(run), Heading("The answer"), answer, *pictures, *_details(run)]
    for other in filter(None, (run.eager, run.padded)):
        blocks += [Heading(target_name(other), 1), provenance(other), *_details(other, is_first=False)]
    return tables.show(blocks, markdown=True)


def _details(run: ComparisonRun, is_first: bool = True) -> list[Block]:
    """Return what a run has in numbers. Kinds of prompts stand apart at the first temperature of the first run."""
    kinds_at = run.rows[0].temperature if is_first and run.rows else None
    shown = [row for row in run.rows if row.prompt_kind == "all" or row.temperature == kinds_at]
    blocks: list[Block] = [Heading("Rows"), rows_table(shown), Lines([ROWS, COSTS] * is_first)]
    blocks.append(errors_table(run.rows))
    if shares := lookup_shares(run.raw):
        blocks += [Heading("Rounds in which a lookup drafts"), shares_table(shares), Lines([SHARES] * is_first)]
    ladder, effects = ladder_table(run.rows), [LADDER, *(f"{name}: {meaning}" for name, meaning in EFFECTS.items())]
    blocks += [Heading("From the formula to the measurement"), ladder]
    blocks.append(Lines(effects * (is_first and bool(ladder.rows))))
    return [*blocks, Heading("Noise"), Lines([*noise_lines(run.noise), generate_line(run)])]


def rows_table(rows: list[Row]) -> Table:
    """Return one line per row: an arm on all prompts or a kind of them, with what was predicted."""
    heads: dict[str, Cell] = cells("draft", *tables.batches(rows), "k", "T")
    heads["prompts"] = lambda row: f"{row.prompt_kind} ({row.n_prompts})"
    heads |= cells("tok/s", "speedup") | {"verdict": lambda row: row.verdict or "-"}
    heads |= cells("95 %", "end to end", "α", "f", "tok/rnd")
    heads["forecast tok/rnd"] = lambda row: number(row.forecast_tokens_per_round)
    heads |= cells("c", "v", "o")
    heads |= {name: prediction(attrgetter(key)) for key, name in PREDICTORS.items()}
    return Table([row for row in rows if row.draft or row.method == "baseline"], heads)


def errors_table(rows: list[Row]) -> Table:
    """Show how far each predictor was off over these rows, of each kind of prompts where it knows those."""
    heads: dict[str, Cell] = {
        "prediction": lambda error: PREDICTORS[error[0]],
        "rows": lambda error: str(error[1]["n"]),
        "median error": lambda error: f"{error[1]['median']:.1%}",
        "largest error": lambda error: f"{error[1]['max']:.1%}",
    }
    return Table(list(prediction_errors(rows).items()), heads)


def ladder_table(rows: list[Row]) -> Table:
    """Lead from the book's formula to the measurement on all prompts, factor by factor."""
    heads = cells("draft", "k", "T") | {"book": lambda row: speedup(row.book_formula)}
    heads |= {name: lambda row, name=name: number(factors(row).get(name)) for name in EFFECTS} | cells("measured")
    return Table([row for row in rows if row.ladder and row.prompt_kind == "all"], heads)


def shares_table(shares: dict[tuple[str, int, float], dict[str, float]]) -> Table:
    """Return a line for every hybrid: the share of each kind of prompt stands in a column of its own."""
    heads: dict[str, Cell] = {"draft": lambda arm: arm[0], "k": lambda arm: "≤ " * arm[0].endswith(AUTO) + str(arm[1])}
    heads["T"] = lambda arm: f"{arm[2]:g}"
    kinds = dict.fromkeys(kind for of_arm in shares.values() for kind in of_arm)
    of_kinds = {
        kind: lambda arm, kind=kind: f"{shares[arm][kind]:.0%}" if kind in shares[arm] else "-" for kind in kinds
    }
    return Table(list(shares), heads | of_kinds)


def generate_line(run: ComparisonRun) -> str | None:
    """Compare the baseline with the library's own loop; None where that did not run."""
    row = next((row for row in run.rows if (row.method, row.prompt_kind) == ("generate", "all")), None)
    if row is None:
        return None
    agreement = "the same text" if row.same_as_baseline else f"NOT the same text in {run.settings['dtype']}"
    how = "with the lab's settings (greedy, no penalties, no end token), prefill included"
    return f"the baseline against model.generate {how}: {1 / row.speedup:.2f}x its speed, {agreement}"


def counts_summary(counts: Counts, has_branches: bool = False) -> str:
    """Sum up the rounds: their number, acceptance in all its meanings, and a histogram of accepted lengths."""
    n_untested = counts.n_drafted - counts.n_accepted - counts.n_rejected
    rest = " places, in each of which all branches failed" if has_branches else f", never tested {n_untested}"
    rounds = f"rounds {counts.n_rounds}, drafted {counts.n_drafted}, accepted {counts.n_accepted}"
    lines = [
        f"{rounds}, rejected {counts.n_rejected}{rest}",
        *([f"replays {counts.n_replays}: {REPLAYS}"] if counts.n_replays else []),
        f"α (accepted / tested)               {number(counts.acceptance_rate, 3)}",
        f"drafted fraction (accepted/drafted) {number(counts.drafted_fraction, 3)}",
        f"tokens per round (target pass)      {number(counts.tokens_per_round)}",
        "accepted in a round:",
    ]
    most = max(counts.accepted_lengths.values(), default=1)
    for length in range(max(counts.accepted_lengths, default=0) + 1):
        n = counts.accepted_lengths[length]
        lines.append(f"  {length:2d} | {'#' * round(40 * n / most):40s} {n}")
    return "\n".join(lines)
