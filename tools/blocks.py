"""The generated parts of the README and of the pages in docs/: every number there is a view of a committed record."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from speclab.models import padding
from speclab.present import report, screen, tables
from speclab.records.files import ComparisonRun, read
from speclab.records.rows import AUTO, Row, lookup_shares
from speclab.system.files import ROOT
from speclab.theory.attribution import prediction_errors
from speclab.theory.formulas import book_formula, expected_tokens_per_round

RESULTS, PAIR = ROOT / "results", ROOT / "models" / "lab-pair"
# Of the README's screen: rows, and a line about repetition.
LEFT_OUT = re.compile(r"^(?:feature |(?:model|hybrid) +(?:2|6|auto) |lab pair: \d).*\n", re.M)
DEFAULT_RUN = RESULTS / "cpu-2-cores-c.json"  # python compare.py
GPU_RUN = RESULTS / "gpu-lab-8b-v128256.json"  # python -m benchmarks.gpu, its first size
# --target smollm2 --draft hybrid,int8,ngram -k 2,4 --temperature 0 --texts served --limit 2
REAL_RUN = RESULTS / "cpu-2-cores-c-smollm2.json"
# --target lab:200m --draft model,feature,hybrid,tree:best:feature -k 4,6,8,12,auto --temperature 0 --limit 2
LARGE_RUN = RESULTS / "cpu-2-cores-c-200m.json"
# --full --alone --draft model,ngram -k 2,4,8 --max-new-tokens 96 --repeats 2
FULL_RUN = RESULTS / "cpu-2-cores-full.json"
QUICK = (0, 2, 4)  # the draft lengths of --quick, and 0 for the baseline
BOOK_TABLE = ((0.7, 4, "2.1"), (0.8, 4, "2.5"), (0.7, 8, "2.5"), (0.8, 8, "3.3"))  # alpha, k, what the book prints


@cache
def comparison(path: Path) -> ComparisonRun:
    """A committed comparison."""
    return read(path, ComparisonRun)


def shown(items: list[Any], cells: dict[str, tables.Cell], n_words: int = 1) -> str:
    """A table in Markdown."""
    return tables.show([tables.Table(items, cells, n_words=n_words)], markdown=True).strip()


def drafted(run: ComparisonRun, kind: str = "all", temperature: float = 0.0) -> list[Row]:
    """The rows of all drafts whose rule keeps the text, the slowest first."""
    rows = [row for row in run.rows if row.draft and not row.lossy_rule]
    return sorted(
        (row for row in rows if (row.prompt_kind, row.temperature) == (kind, temperature)), key=lambda r: r.speedup
    )


# --- the README -------------------------------------------------------------------------------------------------------


def headline() -> str:
    """The fastest and the slowest greedy row of a real model; one draft where three things limit a pass, which is the
    fastest where reading does; the fastest row on a GPU.

    Raises ValueError where a text of them is not the baseline's.
    """
    real, run, gpu = (comparison(path) for path in (REAL_RUN, DEFAULT_RUN, GPU_RUN))
    found = [(real, REAL_RUN, drafted(real)[place]) for place in (-1, 0)]
    draft = _name(drafted(run.parts[-1])[-1])
    found += [(part, DEFAULT_RUN, row) for part in run.parts for row in drafted(part) if _name(row) == draft]
    found.append((gpu, GPU_RUN, drafted(gpu)[-1]))
    if wrong := [row.method for _, _, row in found if not row.same_as_baseline]:
        raise ValueError(f"the text of {wrong[0]} is not the baseline's, so it is no headline")

    def sampled(one: tuple[ComparisonRun, Path, Row]) -> str:
        same = [row for row in drafted(one[0], temperature=0.8) if _name(row) == _name(one[2])]
        return screen.in_words(next(iter(same), None))

    def text(one: tuple[ComparisonRun, Path, Row]) -> str:
        name = one[0].settings["target"]
        if not name.startswith(padding.PREFIX):
            return "its own"
        return f"of the {padding.OWN['target']} model at the price of {name.split(':')[1].upper()}"

    cells: dict[str, tables.Cell] = {
        "target": lambda one: screen.target_name(one[0]),
        "text": text,
        "draft": lambda one: one[2].draft,
        "machine": lambda one: tables.Markdown(f"[{screen.hardware(one[0])}](results/{one[1].stem}.md)"),
        "k": lambda one: str(one[2].draft_length),
        "speedup": lambda one: tables.Markdown(f"**{screen.in_words(one[2])}**"),
        "95 %": lambda one: tables.interval(one[2].speedup_low, one[2].speedup_high),
        "prompts": lambda one: str(one[2].n_prompts),
        "T = 0.8": sampled,
    }
    return shown(found, cells, n_words=4)


def first_run() -> str:
    """Return what the first screen of a run says of its own target, without some of its rows and lines."""
    run = replace(comparison(DEFAULT_RUN), eager=None, padded=None)
    return f"```text\n{LEFT_OUT.sub('', screen.screen(run))}```"


METHODS = ""  # none: docs/which-method.md says more
DRAFTS = (  # name, what it is, does it need training, its chapter, the comparison in which its fastest row is looked up
    ("`model`", "the lab's own model; or a folder or hub name with its tokenizer", "done", "02-greedy", LARGE_RUN),
    ("`feature`", "one layer over the target's hidden states (EAGLE-3)", "done", "11-feature-draft", LARGE_RUN),
    ("`block`", "seven tokens in one pass (DSpark, DFlash)", "done", "12-block-draft", None),
    ("`int8`", "the target itself, its weights rounded to 8 bits", "no", METHODS, REAL_RUN),
    ("`ngram`", "what followed the same words earlier in the text; `suffix`: most often", "no", "07-ngram", REAL_RUN),
    ("`hybrid`", "`suffix` or `feature`, decided in every round", "done", METHODS, LARGE_RUN),
    ("`tree:best:feature`", "branches of a draft, here of `feature`", "done", "15-token-trees", LARGE_RUN),
)


def drafts() -> str:
    """The table with a row for every kind of draft."""
    lines = []
    for name, what, training, page, record in DRAFTS:
        measured = "-"
        if record is not None:
            run = comparison(record)
            row = [row for row in drafted(run) if row.method.removesuffix(AUTO) == name.strip("`")][-1]
            link = f"[{tables.speedup(row.speedup)}](results/{record.stem}.md)"
            measured = f"{link}, {screen.target_name(run)}, k = {'auto' if row.auto else row.draft_length}"
        chapter = f" ([chapter {int(page[:2])}](docs/chapters/{page}.md))" if page else ""
        lines.append([name, what + chapter, training, measured])
    headers = ["`--draft`", "what it is", "needs training", "measured"]
    return tables.table(lines, headers, markdown=True, n_words=4)


# --- the lab's own models ---------------------------------------------------------------------------------------------


def heads() -> str:
    """The results of the lab's heads on held-out text and on the prompts."""
    scores = [
        (kind, name, score)
        for kind in ("feature", "block", "exit")
        for name, score in read(PAIR / kind / "training.json", dict)["scores"].items()
    ]

    def of(key: str, place: int | str) -> tables.Cell:
        return lambda one: tables.number(one[2][key][place])

    cells: dict[str, tables.Cell] = {
        "head": lambda one: tables.Markdown(f"`{one[0]}`"),
        "greedy texts": lambda one: one[1],
    }
    cells |= {str(i + 1): of("by_position", i) for i in range(7)}
    cells |= {f"tok/rnd k={k}": of("tokens_per_round", k) for k in ("2", "4", "6", "7")}
    return shown(scores, cells, n_words=2)


def pair() -> str:
    """The sizes and losses of the committed pair, and how often its models agree."""
    facts = read(PAIR / "training.json", dict)
    accepted = facts["acceptance_on_held_out_continuations"]
    cells: dict[str, tables.Cell] = {
        "": str,
        "layers": lambda role: str(facts[role]["shape"]["num_hidden_layers"]),
        "width": lambda role: str(facts[role]["shape"]["hidden_size"]),
        "parameters": lambda role: f"{facts[role]['parameters'] / 1e6:.1f} M",
        "held-out loss (nats/token)": lambda role: f"{facts['held_out_loss'][role]:.2f}",
        "minutes of training": lambda role: f"{facts[role]['seconds'] / 60:.0f}",
        "same first choice": lambda role: f"{accepted['greedy_agreement']:.0%}" if role == "draft" else "",
        "overlap at T = 1": lambda role: f"{accepted['overlap_at_temperature_1']:.0%}" if role == "draft" else "",
    }
    return shown(["target", "draft"], cells)


# --- docs/ ------------------------------------------------------------------------------------------------------------


def book_table() -> str:
    """The book's four entries against the book's formula, with the arithmetic."""
    lines = []
    for alpha, k, printed in BOOK_TABLE:
        value = book_formula(alpha, k)
        terms = f"1 / ({1 - alpha:.1f} + {alpha:g}/{k}) = 1 / {1 - alpha + alpha / k:.4f} = {value:.3f}"
        verdict = "right" if f"{value:.1f}" == printed else f"**wrong**: {value:.1f}"
        omega_star = expected_tokens_per_round(alpha, k) / value - 1  # extra costs of a round that make both equal
        lines.append([f"{alpha:g}", str(k), terms, printed, verdict, f"{omega_star:.3f}"])
    return tables.table(lines, ["α", "k", "the formula", "the book prints", "", "ω*"], markdown=True, n_words=0)


def errors() -> str:
    """The error of each prediction, over all rows of the full run."""
    table = report.errors_table(comparison(FULL_RUN).rows)
    return tables.show([table], markdown=True).strip()


def errors_by_record() -> str:
    """Return the error of the forecast in several comparisons, over all prompts and over each kind of them."""
    found = []
    for path in (FULL_RUN, DEFAULT_RUN, REAL_RUN, LARGE_RUN, GPU_RUN):
        for run in comparison(path).parts:
            rows = [row for row in run.rows if row.prompt_kind == "all"]
            errors = [prediction_errors(some)["forecast"] for some in (rows, run.rows)]
            name = f"[{screen.target_name(run)}](../results/{path.stem}.md)"
            found.append((name, f"{1e3 * screen.step_seconds(run):.3g}", errors))

    def error(which: int, of: str) -> tables.Cell:
        return lambda line: f"{line[2][which][of]:.1%}"

    cells: dict[str, tables.Cell] = {
        "target": lambda line: tables.Markdown(line[0]),
        "a step, ms": lambda line: line[1],
        "rows": lambda line: str(line[2][0]["n"]),
        "median error": error(0, "median"),
        "largest": error(0, "max"),
        "by kind: median": error(1, "median"),
        "largest by kind": error(1, "max"),
    }
    return shown(found, cells)


def rounds() -> str:
    """Return what a greedy round of hybrid with k = 4 costs and gives in each part of the run of three limits."""
    run = comparison(DEFAULT_RUN)
    found = []
    for part in run.parts:
        row = next(r for r in drafted(part) if (r.method, r.draft_length) == ("hybrid", 4))
        costs = [(row.draft_cost or 0.0) * row.n_drafted / row.n_rounds, row.verify_cost or 0.0, row.overhead or 0.0]
        shares = lookup_shares(part.raw)["hybrid", 4, 0.0]
        found.append((screen.target_name(part), 1e3 * screen.step_seconds(part), [*costs, sum(costs)], row, shares))
    cells: dict[str, tables.Cell] = {"target": lambda line: line[0], "a step, ms": lambda line: f"{line[1]:.3g}"}

    def cost(i: int) -> tables.Cell:
        return lambda line: f"{line[2][i]:.2f}"

    cells |= {name: cost(i) for i, name in enumerate(("draft", "pass", "rest", "whole round"))}
    cells |= {"tokens a round": lambda line: tables.number(line[3].tokens_per_round)}
    cells |= {"lookups": lambda line: f"{line[4]['all']:.0%}"}
    return shown(found, cells | {"speedup": lambda line: tables.speedup(line[3].speedup)})


def full(ladder: bool) -> str:
    """The greedy rows of the full run over all prompts: how fast they are, or why."""
    run = comparison(FULL_RUN)
    if ladder:
        table = report.ladder_table([row for row in run.rows if row.temperature == 0])
        return tables.show([table], markdown=True).strip()
    rows = [row for row in run.rows if (row.prompt_kind, row.temperature) == ("all", 0.0)]
    heads = ("draft", "k", "tok/s", "speedup", "95 %", "end to end", "α", "f", "tok/rnd")
    return shown([row for row in rows if row.draft or row.method == "baseline"], tables.cells(*heads))


def counts() -> str:
    """The counts of the greedy rows of a quick run: they do not depend on the machine."""
    rows = [row for row in comparison(DEFAULT_RUN).rows if row.draft and row.draft_length in QUICK]
    greedy = [row for row in rows if (row.prompt_kind, row.temperature) == ("all", 0.0)]
    table = tables.Table(greedy, tables.cells("draft", "k", "α", "f", "tok/rnd"))
    return f"```text\n{tables.show([table]).strip()}\n```"


def methods() -> str:
    """The fastest and the slowest draft for each kind of prompt."""
    regimes = [
        (target, kind, temperature, rows)
        for target, path in (("lab pair", FULL_RUN), ("lab:200m", LARGE_RUN))
        for temperature in (0.0, 0.8)
        for kind in ("code", "prose", "copy")
        if (rows := drafted(comparison(path), kind, temperature))
    ]
    cells: dict[str, tables.Cell] = {
        "target": lambda regime: regime[0],
        "T": lambda regime: f"{regime[2]:g}",
        "prompts": lambda regime: f"{regime[1]} ({regime[3][0].n_prompts})",
        "fastest": lambda regime: _name(regime[3][-1]),
        "speedup": lambda regime: tables.speedup(regime[3][-1].speedup),
        "95 %": lambda regime: tables.interval(regime[3][-1].speedup_low, regime[3][-1].speedup_high),
        "slowest": lambda regime: _name(regime[3][0]),
        "": lambda regime: tables.speedup(regime[3][0].speedup),
    }
    return shown(regimes, cells, n_words=3)


def _name(row: Row) -> str:
    """The name of a row: "model k = 4", and without k for an auto draft."""
    return row.method if row.auto else f"{row.method} k = {row.draft_length}"


BLOCKS: dict[str, Callable[[], str]] = {
    "headline": headline,
    "first-run": first_run,
    "drafts": drafts,
    "pair": pair,
    "heads": heads,
    "book-table": book_table,
    "errors": errors,
    "errors-by-record": errors_by_record,
    "rounds": rounds,
    "full-from": lambda: tables.escaped(screen.provenance(comparison(FULL_RUN))),
    "full-rows": lambda: full(ladder=False),
    "full-ladder": lambda: full(ladder=True),
    "methods": methods,
    "counts-greedy": counts,
}
