"""The generated parts of the README and of the pages in docs/: every number there is a view of a committed record."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from speclab.present import explanations, first_screen, report, run_lines, tables
from speclab.records.files import read, read_json
from speclab.records.runs import ComparisonRun
from speclab.system.paths import ROOT
from speclab.theory.formulas import book_formula, omega_star
from speclab.theory.ladder import prediction_rows
from tools import architecture, chapter_blocks, draft_blocks, method_blocks, rerun

RESULTS = ROOT / "results"
DEFAULT_RUN = RESULTS / "cpu-2-cores-default.json"  # python compare.py
# The same command on an older commit and another processor, and a run half a day before that one, which had
# --draft model,ngram -k 2,4,8.
TWO_RUNS = RESULTS / "cpu-2-cores.json", RESULTS / "cpu-2-cores-again.json"
GPU_RUN = RESULTS / "gpu-lab-8b-v128256.json"  # python -m benchmarks.gpu, its first size
# --target smollm2 --draft ngram,suffix,int8 -k 2,4 --temperature 0 --texts served --limit 2
REAL_RUN = RESULTS / "cpu-2-cores-smollm2.json"
# --target smollm2 --draft feature,hybrid -k 2,4 --temperature 0 --texts served --limit 2
HEAD_RUN = RESULTS / "cpu-2-cores-smollm2-head.json"
FULL_RUN = RESULTS / "cpu-2-cores-full.json"  # --full --draft model,ngram -k 2,4,8 --max-new-tokens 96 --repeats 2
# --target lab:200m --temperature 0 --limit 2 -k 4,6,8,12,auto
# --draft model,feature,hybrid,tree:best:feature, without the rows of drafts that the lab no longer has
TREES_RUN = RESULTS / "cpu-2-cores-200m-trees.json"
PAIR = ROOT / "models" / "lab-pair"
TRAINING = PAIR / "training.json"
LAST_SENTENCE = {  # of a line; braces: what a step takes
    "lab pair": "Here {}.",
    "padded": "It writes the 10 M model's text, too, at costs nearer to a large model's.",
}
BOOK_TABLE = ((0.7, 4, "2.1"), (0.8, 4, "2.5"), (0.7, 8, "2.5"), (0.8, 8, "3.3"))  # alpha, k, what the book prints


@cache
def comparison(path: Path) -> ComparisonRun:
    """A committed comparison."""
    return read(path, ComparisonRun)


def _shown(*blocks: tables.Block) -> str:
    return tables.show(blocks, markdown=True).strip()


def headline() -> str:
    """Both results of the first command, with the draft model at its best length, and what each stands for.

    Raises ValueError where the record has nothing of the kind to say: a wrong text, too much noise, no gain.
    """
    run = comparison(DEFAULT_RUN)
    lines = [
        "Greedy, and the same text as plain decoding, token for token. The first line is a GPU's; all others: "
        f"{run_lines.hardware(run)}.",
        "",
        _gpu(),
    ]
    for one, kind in ((run, "lab pair"), (run.padded, "padded")):
        if one is None:
            continue
        row = first_screen.best_model_row(one)
        if row is None or row.verdict != "faster" or run_lines.rough_line(one) or not row.same_as_baseline:
            raise ValueError(f"{DEFAULT_RUN.name} has no headline for the {kind}")
        between = tables.interval(row.speedup_low, row.speedup_high)
        name = f"{first_screen.target_name(one)}, draft {row.draft}"
        reading = (first_screen.reading_line(one) or "").partition(": ")[2]
        lines.append(
            f"- **{name}: {tables.speedup(row.speedup)}** (95 %: {between}, {row.n_prompts} prompts) at k = "
            f"{row.draft_length}, trained. {LAST_SENTENCE[kind].format(reading)}"
        )
        best = first_screen.best_row(one)
        if best is not None and best is not row:
            highest = f"{best.method} at k = {best.draft_length}: {tables.speedup(best.speedup)}"
            lines[-1] += f" The highest row is {highest}."
    return "\n".join([*lines, _real_model()])


def _gpu() -> str:
    """Return what a GPU reaches with a large padded target. Raises ValueError as `headline`."""
    run = comparison(GPU_RUN)
    model = first_screen.best_model_row(run)
    if model is None or run_lines.rough_line(run) or not model.same_as_baseline:
        raise ValueError(f"{GPU_RUN.name} has no headline")
    between = tables.interval(model.speedup_low, model.speedup_high)
    plain = next(row for row in run.rows if not row.draft).tokens_per_second
    return (
        f"- **{first_screen.target_name(run)}, the text of the lab's 10 M model at the price of 8 B parameters "
        f"(*padded*), on an {run_lines.hardware(run)}, {run.settings['dtype']}, draft {model.draft}: "
        f"{tables.speedup(model.speedup)}** (95 %: {between}, {model.n_prompts} prompts) at k = {model.draft_length}. "
        f"Plain decoding makes {plain:.1f} tokens per second ([all](results/{GPU_RUN.stem}.md))."
    )


def _real_model() -> str:
    """Return the fastest row of a real model, and the fastest and the slowest without a trained draft. Raises
    ValueError as `headline`."""
    trained, run = comparison(HEAD_RUN), comparison(REAL_RUN)
    best, untrained = first_screen.best_row(trained), first_screen.best_row(run)
    rows = [row for row in (*trained.rows, *run.rows) if row.draft and row.prompt_kind == "all"]
    others = {run_lines.hardware(one) for one in (trained, run)} - {run_lines.hardware(comparison(DEFAULT_RUN))}
    rough = any(run_lines.rough_line(one) for one in (trained, run))
    if best is None or untrained is None or rough or others or not all(row.same_as_baseline for row in rows):
        raise ValueError(f"{HEAD_RUN.name} and {REAL_RUN.name} have no headline")
    lowest = min(rows, key=lambda row: row.speedup)
    between = tables.interval(best.speedup_low, best.speedup_high)
    return (
        f"- **{first_screen.target_name(trained)}, a real model, draft {best.draft}: {tables.speedup(best.speedup)}** "
        f"(95 %: {between}, {best.n_prompts} prompts) at k = {best.draft_length}, trained "
        f"([all](results/{HEAD_RUN.stem}.md)). Untrained: {untrained.method} {tables.speedup(untrained.speedup)}, "
        f"{lowest.method} {tables.speedup(lowest.speedup)} ([all](results/{REAL_RUN.stem}.md))."
    )


def first_run() -> str:
    """The output of the first command."""
    return f"```text\n{first_screen.screen(comparison(DEFAULT_RUN))}```"


def heads() -> str:
    """The lab's heads: their size, their training, and their results on held-out text and on the prompts."""
    return "\n\n".join(_head(read_json(PAIR / kind / "training.json")) for kind in ("feature", "block", "exit"))


def _steps(facts: dict) -> str:
    tokens, minutes = facts["tokens"] / 1e6, facts["seconds"] / 60
    return f"{facts['steps']:,} steps over {tokens:.1f} M tokens in {minutes:.0f} minutes"


def _head(facts: dict) -> str:
    scores, kind, n_parameters = facts["scores"], facts["kind"], facts["parameters"]
    depth = len(next(iter(scores.values()))["by_position"])
    cells: dict[str, tables.Cell] = {"greedy texts": str}

    def of(key: str, place: int | str) -> tables.Cell:
        return lambda name: tables.number(scores[name][key][place])

    cells |= {str(i + 1): of("by_position", i) for i in range(depth)}
    cells |= {f"tok/rnd k={k}": of("tokens_per_round", k) for k in ("2", "4", "6", "7")}
    steps = [_steps(facts)]
    while isinstance(facts.get("init"), dict) and "steps" in facts["init"]:  # it was trained further
        facts = facts["init"]
        steps.insert(0, _steps(facts))
    about = (
        f"`{kind}`: {n_parameters / 1e6:.1f} M parameters, {', then '.join(steps)}, on two shared cores. Acceptance "
        "of drafted token 1, 2, ..., given that those before it were accepted, and tokens per round:"
    )
    return f"{about}\n\n{_shown(tables.Table(list(scores), cells))}"


def pair() -> str:
    """The sizes, losses and acceptance of the committed pair."""
    facts = read_json(TRAINING)
    accepted = facts["acceptance_on_held_out_continuations"]
    cells: dict[str, tables.Cell] = {
        "": str,
        "layers": lambda role: str(facts[role]["shape"]["num_hidden_layers"]),
        "width": lambda role: str(facts[role]["shape"]["hidden_size"]),
        "parameters": lambda role: f"{facts[role]['parameters'] / 1e6:.1f} M",
        "held-out loss (nats/token)": lambda role: f"{facts['held_out_loss'][role]:.2f}",
        "minutes of training": lambda role: f"{facts[role]['seconds'] / 60:.0f}",
    }
    run = comparison(FULL_RUN)
    row = next(r for r in run.rows if (r.method, r.draft_length, r.prompt_kind) == ("model", 4, "all"))
    return (
        f"{_shown(tables.Table(['target', 'draft'], cells))}\n\n"
        f"- held-out text: same first choice {accepted['greedy_agreement']:.0%}, overlap of the distributions at "
        f"temperature 1 {accepted['overlap_at_temperature_1']:.0%}\n"
        f"- the lab's prompts, greedy, k = 4: α = {row.acceptance_rate:.2f}; {report.loops_line(run)}"
    )


def book_table() -> str:
    """The book's four entries against the book's formula, with the arithmetic."""
    lines = []
    for alpha, k, printed in BOOK_TABLE:
        value = book_formula(alpha, k)
        terms = f"1 / ({1 - alpha:.1f} + {alpha:g}/{k}) = 1 / {1 - alpha + alpha / k:.4f} = {value:.3f}"
        verdict = "right" if f"{value:.1f}" == printed else f"**wrong**: {value:.1f}"
        lines.append([f"{alpha:g}", str(k), terms, printed, verdict, f"{omega_star(alpha, k):.3f}"])
    return tables.table(lines, ["α", "k", "the formula", "the book prints", "", "ω*"], markdown=True, n_words=0)


def errors() -> str:
    """The error of each prediction, over all rows of the full run."""
    return _shown(explanations.errors_table(prediction_rows(comparison(FULL_RUN).rows)))


def trust() -> str:
    """The rows that two runs share, and the sum of the phases beside the clock on the wall."""
    lines = [explanations.phases_line(comparison(FULL_RUN))]
    rows = rerun.compared(*map(comparison, TWO_RUNS))
    for temperature in dict.fromkeys(row.first.temperature for row in rows):
        some = [row for row in rows if row.first.temperature == temperature]
        lines.append(f"{tables.temperature_name(temperature)}: {rerun.verdict(some)}")
    return "\n".join(f"- {line}" for line in lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "headline": headline,
    "first-run": first_run,
    "drafts": draft_blocks.drafts,
    "pair": pair,
    "heads": heads,
    "book-table": book_table,
    "errors": errors,
    "trust": trust,
    "methods": lambda: method_blocks.methods([("lab pair", DEFAULT_RUN), ("lab:200m", TREES_RUN)]),
    "autos": lambda: method_blocks.autos(TREES_RUN),
    "architecture": architecture.plan,
    "brief-greedy": lambda: chapter_blocks.brief(0),
    "brief-sampled": lambda: chapter_blocks.brief(0.8),
    "counts-greedy": lambda: chapter_blocks.counts(0),
}
