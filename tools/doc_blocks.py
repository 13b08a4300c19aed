"""The generated parts of the pages in docs/: every number there is a view of a committed record."""

import functools
from collections.abc import Callable
from functools import cache
from pathlib import Path

from speclab.present import explanations, plan_views, report, run_lines, sweep_views, tables
from speclab.records.files import read
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun, PlanRun, SweepRun
from speclab.system.paths import ROOT
from speclab.theory.formulas import book_formula, omega_star
from speclab.theory.ladder import prediction_rows
from tools import rerun

RESULTS = ROOT / "results"
DEFAULT_RUN = RESULTS / "cpu-2-cores.json"  # python compare.py
AGAIN_RUN = RESULTS / "cpu-2-cores-again.json"  # the same command once more
FULL_RUN = RESULTS / "cpu-2-cores-full.json"  # the same with --full -k 2,4,8 --max-new-tokens 96 --repeats 2
PLAN = RESULTS / "cpu-2-cores-plan.json"  # python compare.py --verify-plan
PADDED_RUN = RESULTS / "cpu-2-cores-200m.json"  # --target lab:200m --temperature 0 -k 2,4,8 --limit 2
PAGES = tuple(ROOT / "docs" / name for name in ("why-not-faster.md", "engines.md", "architecture.md"))
BOOK_TABLE = ((0.7, 4, "2.1"), (0.8, 4, "2.5"), (0.7, 8, "2.5"), (0.8, 8, "3.3"))  # alpha, k, what the book prints
SHORT = 16  # points; the table of a longer sweep stands on the page of its results only


@cache
def comparison(path: Path) -> ComparisonRun:
    """A committed comparison."""
    return read(path, ComparisonRun)


def _by_temperature(run: ComparisonRun) -> dict[float, list[Row]]:
    """Temperature -> the rows of all prompts."""
    rows = [row for row in run.rows if row.prompt_kind == "all" and row.method != "generate"]
    return {t: [row for row in rows if row.temperature == t] for t in run.settings["temperatures"]}


def _shown(*blocks: tables.Block) -> str:
    return tables.show(blocks, markdown=True).strip()


def book_table() -> str:
    """The book's four entries against the book's formula, with the arithmetic."""
    lines = []
    for alpha, k, printed in BOOK_TABLE:
        value = book_formula(alpha, k)
        terms = f"1 / ({1 - alpha:.1f} + {alpha:g}/{k}) = 1 / {1 - alpha + alpha / k:.4f} = {value:.3f}"
        verdict = "right" if f"{value:.1f}" == printed else f"**wrong**: {value:.1f}"
        lines.append([f"{alpha:g}", str(k), terms, printed, verdict, f"{omega_star(alpha, k):.3f}"])
    return tables.table(lines, ["α", "k", "the formula", "the book prints", "", "ω*"], markdown=True, n_words=0)


def measured() -> str:
    """Speed tables of the full run, with the noise floor under each."""
    run = comparison(FULL_RUN)
    blocks: list[tables.Block] = []
    for temperature, rows in _by_temperature(run).items():
        blocks += [f"**{tables.temperature_name(temperature)}**", report.speed_table(rows)]
        blocks += run_lines.noise_lines([floor for floor in run.noise if floor.temperature == temperature])
    return _shown(*blocks)


def ladders() -> str:
    """The factors of every row."""
    blocks: list[tables.Block] = []
    for temperature, rows in _by_temperature(comparison(FULL_RUN)).items():
        blocks += [f"**{tables.temperature_name(temperature)}**", explanations.ladder_table(rows, markdown=True)]
    return _shown(*blocks)


def plan() -> str:
    """The plan's verdicts and how they did on prompts it had not seen."""
    run = read(PLAN, PlanRun)
    verdicts = tables.Lines(plan_views.verdict(fact) for fact in run.facts.drafts)
    return _shown(verdicts, plan_views.checked_table(run.verified) if run.verified else None)


def trust() -> str:
    """The same command twice, and the phases against the wall."""
    lines = [explanations.phases_line(comparison(FULL_RUN))]
    rows = rerun.compared(comparison(DEFAULT_RUN), comparison(AGAIN_RUN))
    for temperature in dict.fromkeys(row.first.temperature for row in rows):
        some = [row for row in rows if row.first.temperature == temperature]
        lines.append(f"{tables.temperature_name(temperature)}: {rerun.verdict(some)}")
    return "\n".join(f"- {line}" for line in lines)


def sweep(name: str) -> str:
    """A sweep's lines and picture, and its table where that is short."""
    run = read(RESULTS / f"cpu-2-cores-sweep-{name}.json", SweepRun)
    return _shown(
        f"`python compare.py --sweep {name}`",
        sweep_views.lines(run),
        f"![{sweep_views.TITLES[name]}](../plots/cpu-2-cores-sweep-{name}.png)",
        sweep_views.table(run) if len(run.points) <= SHORT else None,
        f"[All numbers](../results/cpu-2-cores-sweep-{name}.md)",
    )


def padded() -> str:
    """The comparison at the price of a larger target."""
    run = comparison(PADDED_RUN)
    rows = _by_temperature(run)[0]
    return _shown(
        run_lines.provenance(run),
        tables.Lines(f"{role}: {model}" for role, model in run.models.items()),
        report.speed_table(rows),
        explanations.ladder_table(rows, markdown=True),
        explanations.costs_table(run),
    )


def results_page(name: str) -> str:
    """A page of results inside another page: without its title, headings as bold lines."""
    text = (RESULTS / f"{name}.md").read_text("utf-8")
    lines = [line for line in text.strip().splitlines() if not line.startswith("# ")]
    return "\n".join(f"**{line[3:]}**" if line.startswith("## ") else line for line in lines).strip()


BLOCKS: dict[str, Callable[[], str]] = {
    "book-table": book_table,
    "full-provenance": lambda: run_lines.provenance(comparison(FULL_RUN)),
    "measured": measured,
    "ladder": ladders,
    "errors": lambda: _shown(explanations.errors_table(prediction_rows(comparison(FULL_RUN).rows))),
    "plan": plan,
    "trust": trust,
    "padded": padded,
    "roofline": lambda: results_page("cpu-2-cores-roofline"),
    "roofline-eager": lambda: results_page("cpu-2-cores-eager-roofline"),
    "peers": lambda: results_page("cpu-2-cores-peers"),
    "scaling": lambda: results_page("cpu-2-cores-scaling"),
    **{f"sweep {name}": functools.partial(sweep, name) for name in sweep_views.TITLES},
}
