"""Fill the generated blocks of the README and the docs from the committed records: no number is typed by hand.

    python -m tools.readme            # rewrite the blocks
    python -m tools.readme --check    # exit 1 if a block is stale

A block stands between `<!-- begin NAME -->` and `<!-- end NAME -->`. A test fails when one is stale.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import functools
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from speclab.cli import parsing
from speclab.present import report, run_lines, tables
from speclab.records import record
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import do_all, shown, write_whole
from speclab.system.terminal import note
from tools import architecture, doc_blocks
from tools.doc_blocks import DEFAULT_RUN, FULL_RUN

README, CARD = record.ROOT / "README.md", record.ROOT / "models" / "lab-pair" / "README.md"
PAGES = (README, CARD, *doc_blocks.PAGES)
FAMILIES = record.ROOT / "results" / "cpu-2-cores-families.json"
TRAINING = record.ROOT / "models" / "lab-pair" / "training.json"
OUTCOMES = {
    "identical on both engines": "plain and speculative texts are the library's, token for token (near-ties apart)",
    "identical on eager": "the same on the eager engine; the fast one refuses the model and says why",
    "refused": "a property fails, which is named",
    "cannot be built": "no tiny model of it can be made here",
    "broken": "a wrong text, or an error that is not one line",
}


def first_run() -> str:
    """What the first command prints, without the sampled half."""
    run = record.load(DEFAULT_RUN)
    greedy = {
        key: [item for item in run[key] if item["temperature"] == 0]
        for key in ("rows", "noise", "costs", "correctness")
    }
    return f"```text\n{report.comparison(run | greedy)}```"


def summary() -> str:
    """The longer run: agreement, the headline, and each draft's fastest and slowest row on each kind of prompt."""
    run = record.load(FULL_RUN)
    groups: dict[tuple, list[dict]] = {}
    for row in run["rows"]:
        if row["draft"]:
            groups.setdefault((row["prompt_kind"], row["method"]), []).append(row)
    lines = []
    for (kind, method), rows in groups.items():
        cells = [kind, method]
        for row in (max(rows, key=lambda r: r["speedup"]), min(rows, key=lambda r: r["speedup"])):
            where = f"k = {row['draft_length']}, T = {row['temperature']:g}"
            cells += [where, tables.speedup(row["speedup"]), tables.interval(row["speedup_low"], row["speedup_high"])]
        lines.append(cells)
    greedy = [entry for entry in run["correctness"] if entry["temperature"] == 0]
    notes = [*report.agreement_lines(greedy), report.headline_line(run)]
    notes += [report.generate_line(run["rows"]), report.loops_line(run)]
    headers = ["prompts", "draft", "fastest", "speedup", "95 %", "slowest", "speedup", "95 %"]
    return "\n\n".join(
        [
            "\n".join(f"- {note}" for note in notes),
            tables.table(lines, headers, markdown=True, n_words=2),
            f"{run_lines.provenance(run)} All rows: [{FULL_RUN.stem}.md](results/{FULL_RUN.stem}.md).",
        ]
    )


def pair() -> str:
    """Sizes, losses and acceptance of the committed pair."""
    facts = record.load(TRAINING, check=lambda _: None)
    accepted = facts["acceptance_on_held_out_continuations"]
    lines = []
    for role in ("target", "draft"):
        model = facts[role]
        cells = [role, str(model["shape"]["num_hidden_layers"]), str(model["shape"]["hidden_size"])]
        cells += [f"{model['parameters'] / 1e6:.1f} M", f"{facts['held_out_loss'][role]:.2f}"]
        lines.append([*cells, f"{model['seconds'] / 60:.0f}"])
    run = record.load(FULL_RUN)
    row = next(r for r in run["rows"] if (r["method"], r["draft_length"], r["prompt_kind"]) == ("model", 4, "all"))
    headers = ["", "layers", "width", "parameters", "held-out loss (nats/token)", "minutes of training"]
    return (
        f"{tables.table(lines, headers, markdown=True)}\n\n"
        f"- held-out text: same first choice {accepted['greedy_agreement']:.0%}, overlap of the distributions at "
        f"temperature 1 {accepted['overlap_at_temperature_1']:.0%}\n"
        f"- the lab's prompts, greedy, k = 4: α = {row['acceptance_rate']:.2f}; {report.loops_line(run)}"
    )


def families() -> str:
    """How many families of models decode rightly, and what becomes of the others."""
    run = record.load(FAMILIES, check=lambda _: None)
    counts = Counter(row["outcome"] for row in run["families"])
    lines = [[outcome, meaning, str(counts[outcome])] for outcome, meaning in OUTCOMES.items()]
    versions = f"transformers {run['versions']['transformers']}, torch {run['versions']['torch']}, float32"
    return (
        f"{tables.table(lines, ['outcome', 'what it means', 'families'], markdown=True, n_words=2)}\n\n"
        f"{len(run['families'])} families; {versions}. Each family: [{FAMILIES.stem}.md](results/{FAMILIES.stem}.md)."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "first-run": first_run,
    "summary": summary,
    "pair": pair,
    "families": families,
    "architecture": architecture.plan,
    **doc_blocks.BLOCKS,
}


def _with_block(block: str, match: re.Match) -> str:
    return f"{match[1]}{block}\n{match[2]}"


def filled(text: str) -> str:
    """`text` with every block made anew. EnvironmentProblem: a block that nobody makes, or one that does not end."""
    for name in re.findall(r"<!-- begin ([^>]*?) -->", text):
        pattern = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
        if name not in BLOCKS or not pattern.search(text):
            raise EnvironmentProblem(f"the block {name!r} is unknown or has no end; use one of: {', '.join(BLOCKS)}")
        try:
            block = BLOCKS[name]()
        except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise EnvironmentProblem(
                f"the block {name!r} cannot be made: the records lack what it shows ({why}); run the commands again "
                "that made them"
            ) from None
        text = pattern.sub(functools.partial(_with_block, block), text)
    return text


def _text(page: Path) -> str:
    try:
        return page.read_text("utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise EnvironmentProblem(f"cannot read {shown(page)}: {why}; type: git checkout -- {shown(page)}") from None


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a block is stale")
    args = parser.parse_args(argv)
    old = {path: _text(path) for path in PAGES}
    new = {path: filled(text) for path, text in old.items()}  # every record is read before anything is written
    stale = [path for path in PAGES if new[path] != old[path]]
    if args.check and stale:
        note(f"stale: {', '.join(path.name for path in stale)}; run python -m tools.readme")
        return 1
    return do_all(functools.partial(write_whole, path, new[path]) for path in stale)


if __name__ == "__main__":
    sys.exit(main())
