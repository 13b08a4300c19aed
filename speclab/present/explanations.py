"""Why a comparison's rows are as fast as they are: what was predicted, the ladder, and what a round is made of.

Views of the record, nothing is measured here.
"""

from operator import itemgetter
from statistics import mean

from speclab.present import tables
from speclab.present.tables import Cell, column, columns, draft_names, number, prediction, speedup
from speclab.theory.costs import Costs
from speclab.theory.ladder import PREDICTORS, factors, prediction_errors

# effect -> its name, the head of its column in the terminal, and what it is
LEGEND = {
    "bonus and partial drafts": ("bonus and partial drafts", "bonus", "partly right drafts and the bonus token count"),
    "draft cost": ("draft cost", "drafts", "the draft takes time for every token it proposes"),
    "verification": ("verification", "verify", "a target pass over k + 1 tokens may take longer than one over a token"),
    "overhead": ("overhead", "other", "accepting, rolling back, and the loop around them take time"),
    "real acceptance": ("real acceptance", "real", "right drafts come in streaks, and drafts may be shorter than k"),
    "last round": ("last round", "last", "the last round is cut where the text ends"),
    "longer context": ("longer context", "context", "passes get slower while the text grows"),
    "chance": ("sampling noise", "noise", "the draws of this run against the expected ones"),
    "unexplained": ("unexplained", "rest", "what none of these explains"),
}


def prediction_table(rows: list[dict], markdown: bool = False) -> str | None:
    """Each prediction and its error, predicted / measured - 1, beside the measurement; None without predictions."""
    rows = [row for row in rows if row["draft"]]
    if not prediction_errors(rows):
        return None
    predictions = {name: prediction(itemgetter(key)) for key, name in PREDICTORS.items()}
    measured = {"measured": lambda row: speedup(row["speedup"])}
    return columns(rows, _draft_and_k(rows, markdown) | measured | predictions, markdown)


def _draft_and_k(rows: list[dict], markdown: bool) -> dict[str, Cell]:
    """The first two columns of a table of speculative rows."""
    names = draft_names(rows, markdown)
    return {"draft": lambda row: names[row["method"]], "k": lambda row: str(row["draft_length"])}


def errors_table(rows: list[dict], markdown: bool = False) -> str:
    """How far each predictor was off over the given rows: |predicted / measured - 1|."""
    errors = prediction_errors(rows)
    lines = [
        [PREDICTORS[predictor], str(miss["n"]), f"{miss['median']:.1%}", f"{miss['max']:.1%}"]
        for predictor, miss in errors.items()
    ]
    kinds = ", ".join(dict.fromkeys(row["prompt_kind"] for row in rows))
    return tables.table(lines, ["prediction", f"rows ({kinds})", "median error", "largest error"], markdown)


def learner_table(run: dict, markdown: bool = False) -> str | None:
    """What exercise 5's functions predicted, beside the measurement and the lab's own; None where there is nothing."""
    key = ("method", "draft_length", "temperature")
    yours = {tuple(prediction[name] for name in key): prediction for prediction in run.get("yours", [])}
    rows = [row for row in run["rows"] if row["prompt_kind"] == "all" and tuple(row[name] for name in key) in yours]
    if not rows:
        return None

    def predicted(row: dict) -> dict:
        return yours[tuple(row[name] for name in key)]

    cells = {
        "T": lambda row: f"{row['temperature']:g}",
        "your α": lambda row: number(predicted(row)["acceptance_rate"]),
        "measured": lambda row: speedup(row["speedup"]),
        "yours": prediction(lambda row: predicted(row)["speedup"]),
        "book(α)": column("book_formula"),
        "accounting": column("accounting"),
    }
    return columns(rows, _draft_and_k(run["rows"], markdown) | cells, markdown)


# --- why --------------------------------------------------------------------------------------------------------------


def ladder_table(rows: list[dict], markdown: bool = False) -> str | None:
    """From the book's formula to the measurement, factor by factor; None where no row has a ladder."""
    rows = [row for row in rows if row["draft"]]
    if not any(row["ladder"] for row in rows):
        return None
    cells = {"book": lambda row: speedup(row["book_formula"])}
    for effect, (name, head, _) in LEGEND.items():
        cells[name if markdown else head] = _factor(effect)
    cells["measured"] = lambda row: speedup(row["speedup"])
    return columns(rows, _draft_and_k(rows, markdown) | cells, markdown)


def _factor(effect: str) -> Cell:
    return lambda row: number((factors(row) or {}).get(effect))


def ladder_legend(markdown: bool = False) -> str:
    """What the columns of the ladder are."""
    intro = "From the book's formula to the measured speedup: each factor is what one thing costs or gains."
    if markdown:
        return "\n".join([intro, "", *(f"- {name}: {meaning}" for name, _, meaning in LEGEND.values())])
    return "\n".join([intro, *(f"  {head:8s}{meaning}" for _, head, meaning in LEGEND.values())])


# --- what a round is made of ------------------------------------------------------------------------------------------


def costs_table(run: dict, markdown: bool = False) -> str | None:
    """What each part of a round costs, for each draft, temperature and k; None where nothing was calibrated."""
    if not run["costs"]:
        return None
    context, names, lines = _usual_context(run), draft_names(run["rows"], markdown), []
    for entry in run["costs"]:
        costs, method = Costs.from_json(entry["costs"]), entry["drafter"]
        prefill = [s for sample in run["raw"] if sample["method"] == method for s in sample["prefill_seconds"]]
        for k in filter(None, run["settings"]["draft_lengths"]):
            cells = [
                names.get(method, method),
                f"{entry['temperature']:g}",
                str(k),
                number(1e3 * costs.step_seconds(context)),
            ]
            cells += [number(costs.verify_cost(k + 1, context)), number(costs.draft_cost(k, context), 3)]
            cells += [f"{1e6 * s:.0f}" for s in (costs.accept_seconds(k), costs.rollback, costs.host)]
            lines.append([*cells, number(1e3 * mean(prefill) if prefill else None, 1)])
    headers = ["draft", "T", "k", "step ms", "v(k+1)", "c", "accept µs", "rollback µs", "host µs", "prefill ms"]
    return tables.table(lines, headers, markdown)


def costs_line(run: dict) -> str:
    """What the columns of the costs are."""
    return (
        f"at {_usual_context(run):.0f} tokens of context; v(k+1), a target pass over k + 1 tokens, and c, a drafted "
        "token, are in decode steps of the target; prefill reads the prompt with both models"
    )


def _usual_context(run: dict) -> float:
    """Prompt tokens on average and half of the new ones."""
    prompts = {sample["prompt_index"]: sample["n_prompt"] for sample in run["raw"]}
    return mean(prompts.values()) + run["settings"]["max_new_tokens"] / 2


def phases_line(run: dict) -> str | None:
    """Whether the clocks inside a round account for all of it; None where no round was instrumented."""
    share = run["phases"]["share"]
    return None if share is None else f"instrumented rounds: the phases sum to {share:.1%} of the wall time"
