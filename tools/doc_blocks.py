"""The generated parts of the pages in docs/: every number there is a view of a committed record."""

from functools import cache
from pathlib import Path

from speclab.present import plan_views, report, sweep_views, words
from speclab.records import record
from speclab.theory import ladder
from speclab.theory.formulas import book_formula, omega_star
from tools import rerun

RESULTS = record.ROOT / "results"
DEFAULT_RUN = RESULTS / "cpu-2-cores.json"  # python compare.py
AGAIN_RUN = RESULTS / "cpu-2-cores-again.json"  # the same command once more
FULL_RUN = RESULTS / "cpu-2-cores-full.json"  # the same with --full -k 2,4,8 --max-new-tokens 96 --repeats 2
PLAN = RESULTS / "cpu-2-cores-plan.json"  # python compare.py --verify-plan
PADDED_RUN = RESULTS / "cpu-2-cores-200m.json"  # --target lab:200m --temperature 0 -k 2,4,8 --limit 2
PAGES = tuple(record.ROOT / "docs" / name for name in ("why-not-faster.md", "engines.md"))
BOOK_TABLE = ((0.7, 4, "2.1"), (0.8, 4, "2.5"), (0.7, 8, "2.5"), (0.8, 8, "3.3"))  # alpha, k, what the book prints


@cache
def _load(path: Path) -> dict:
    return record.load(path)


def _all(run: dict, temperature: float | None = None) -> list[dict]:
    return [
        r
        for r in run["rows"]
        if r["prompt_kind"] == "all" and temperature in (None, r["temperature"]) and r["method"] != "generate"
    ]


def book_table() -> str:
    """The book's four entries against the book's formula, with the arithmetic."""
    lines, wrong = [], []
    for alpha, k, printed in BOOK_TABLE:
        value = book_formula(alpha, k)
        right = f"{value:.1f}" == printed
        lines.append(
            [
                f"{alpha:g}",
                str(k),
                f"1 / ({1 - alpha:.1f} + {alpha:g}/{k}) = 1 / {1 - alpha + alpha / k:.4f} = {value:.3f}",
                printed,
                "right" if right else f"**wrong**: {value:.1f}",
                f"{omega_star(alpha, k):.3f}",
            ]
        )
        if not right:
            wrong.append(f"(α = {alpha:g}, k = {k}) gives {value:.2f}, which is {value:.1f}, not {printed}")
    table = report.table(lines, ["α", "k", "the formula", "the book prints", "", "ω*"], markdown=True, n_words=0)
    return (
        f"{table}\n\nThe book's own formula contradicts its table once: {'; '.join(wrong)}. "
        "ω* is the price at which the formula turns from too low to too high: what drafting, the wider pass and the "
        "rest of a round may cost together, in decode steps of the target, before the formula promises too much."
    )


def full_provenance() -> str:
    return words.provenance(_load(FULL_RUN))


def measured() -> str:
    """Speed tables of the full run, with the noise floor under each."""
    run = _load(FULL_RUN)
    blocks = []
    for temperature in run["settings"]["temperatures"]:
        rows = _all(run, temperature)
        blocks += [f"**{words.temperature_words(temperature)}**", report.speed_table(rows, markdown=True)]
        blocks += [line for line in (words.noise_line(run, temperature),) if line]
    return "\n\n".join(blocks)


def ladders() -> str:
    """The factors of every row, then one row in words."""
    run = _load(FULL_RUN)
    blocks = []
    for temperature in run["settings"]["temperatures"]:
        blocks += [
            f"**{words.temperature_words(temperature)}**",
            report.ladder_table(_all(run, temperature), markdown=True) or "",
            "\n".join(f"- {words.verdict_sentence(r)}" for r in _all(run, temperature) if r["draft"]),
        ]
    return "\n\n".join(blocks)


def errors() -> str:
    """How far every predictor was off, over all rows of all kinds of prompt."""
    rows = ladder.prediction_rows(_load(FULL_RUN)["rows"])
    found = ladder.prediction_errors(rows)
    lines = [
        [name, str(found[key]["n"]), f"{found[key]['median']:.1%}", f"{found[key]['max']:.1%}"]
        for key, name in ladder.PREDICTORS.items()
    ]
    kinds = len({r["prompt_kind"] for r in rows})
    return (
        f"Over {len(rows)} configurations (drafts × k × temperature × {kinds} kinds of prompt):\n\n"
        + report.table(lines, ["prediction", "rows", "median error", "largest error"], markdown=True)
        + "\n\nFor comparison: on the twelve rows of Leviathan's own Table 4, his theorem misses the measured speedup "
        "by 17.7 % on average and the book's formula by 26.1 % (both computed in `tests/theory/test_theory.py`)."
    )


def plan() -> str:
    """The plan's verdicts and how they did on prompts it had not seen."""
    run = _load(PLAN)
    facts = [f"- {line}" for fact in run["facts"]["drafts"] for line in plan_views.sentences(fact)]
    checked = [f"- {line}" for line in plan_views.verified_sentences(run)]
    return "\n".join([*facts, "", "`--verify-plan` then measured on the other half of the prompts:", "", *checked])


def trust() -> str:
    """The same command twice, the phases against the wall, the intervals."""
    first, second = _load(DEFAULT_RUN), _load(AGAIN_RUN)
    rows = rerun.compared(first, second)
    parts = []
    for temperature in first["settings"]["temperatures"]:
        some = [r for r in rows if r["temperature"] == temperature]
        parts.append(f"{words.temperature_words(temperature)}: {rerun.verdict(some)}")
    phases = words.phases_line(_load(FULL_RUN))
    lines = [
        "`python compare.py`, run twice in a row. " + " ".join(parts),
        f"In the full run, {phases}" if phases else None,
        "The interval over prompts is a bootstrap-t of the log ratio. In simulations with 24 prompts whose times "
        "spread like the lab's it covers the true ratio in 94 to 96 of 100 runs, in fewer where times are strongly "
        "skewed, and no interval knows of a rare stall that its sample has not met (`tests/theory/test_theory.py`).",
        "The forecast's error contains luck: when sampling, what is accepted is drawn anew in every run. Greedy rows "
        "have no such part.",
    ]
    return "\n".join(f"- {line}" for line in lines if line)


def sweep(name: str) -> str:
    """What one sweep found, with its picture; its table stands in the sweeps' own report."""
    found = _load(RESULTS / f"cpu-2-cores-sweep-{name}.json")
    return (
        f"`python compare.py --sweep {name}`\n\n{sweep_views.paragraph(found)}\n\n"
        f"![{sweep_views.TITLES[name]}](../plots/cpu-2-cores-sweep-{name}.png)\n\n"
        f"[All numbers](../results/cpu-2-cores-sweep-{name}.md)"
    )


def padded() -> str:
    """The comparison at the price of a larger target."""
    run = _load(PADDED_RUN)
    rows = _all(run, 0)
    share = [
        f"{r['method']} k = {r['draft_length']}: {r['speedup'] / r['tokens_per_round']:.2f} of its "
        f"{r['tokens_per_round']:.2f} tokens per round"
        for r in rows
        if r["draft"]
    ]
    lines = [
        words.provenance(run),
        "\n".join(f"- {role}: {text}" for role, text in run["models"].items()),
        report.speed_table(rows, markdown=True),
        report.ladder_table(rows, markdown=True) or "",
        *report.costs_tables(run, markdown=True),
        "What a round makes of its tokens: " + "; ".join(share) + ".",
        "![from the book's formula to the measured speedup, padded target](../plots/cpu-2-cores-200m-why.png)",
    ]
    return "\n\n".join(line for line in lines if line)


def results_page(name: str) -> str:
    """A page of results inside another page: without its title, headings as bold lines."""
    text = (RESULTS / f"{name}.md").read_text("utf-8")
    lines = [line for line in text.strip().splitlines() if not line.startswith("# ")]
    return "\n".join(f"**{line[3:]}**" if line.startswith("## ") else line for line in lines).strip()


BLOCKS = {
    "book-table": book_table,
    "full-provenance": full_provenance,
    "measured": measured,
    "ladder": ladders,
    "errors": errors,
    "plan": plan,
    "trust": trust,
    "padded": padded,
    "roofline": lambda: results_page("cpu-2-cores-roofline"),
    "roofline-eager": lambda: results_page("cpu-2-cores-eager-roofline"),
    "peers": lambda: results_page("cpu-2-cores-peers"),
    "scaling": lambda: results_page("cpu-2-cores-scaling"),
    **{f"sweep {name}": (lambda name=name: sweep(name)) for name in sweep_views.TITLES},
}
