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
from speclab.present import report, words
from speclab.records import record
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import do_all, shown, write_whole
from speclab.system.terminal import note
from tools import doc_blocks
from tools.doc_blocks import DEFAULT_RUN, FULL_RUN

README, CARD = record.ROOT / "README.md", record.ROOT / "models" / "lab-pair" / "README.md"
PAGES = (README, CARD, *doc_blocks.PAGES)
FAMILIES = record.ROOT / "results" / "cpu-2-cores-families.json"
TRAINING = record.ROOT / "models" / "lab-pair" / "training.json"


def first_run() -> str:
    """What the first command prints, without the sampled half."""
    run = record.load(DEFAULT_RUN)
    greedy = {
        key: [item for item in run[key] if item["temperature"] == 0]
        for key in ("rows", "noise", "costs", "correctness")
    }
    return f"```text\n{report.comparison(run | greedy)}```"


def summary() -> str:
    """The longer run in a few sentences, losing rows included."""
    run = record.load(FULL_RUN)
    rows = [r for r in run["rows"] if r["draft"]]
    copy = [r for r in rows if r["prompt_kind"] == "copy" and r["method"] == "ngram" and r["temperature"] == 0]
    best_copy = max(copy, key=lambda r: r["speedup"])
    worst = min(rows, key=lambda r: r["speedup"])
    calm = [r for r in rows if r["prompt_kind"] == "not looping" and r["temperature"] == 0]
    best_calm = {m: max((r for r in calm if r["method"] == m), key=lambda r: r["speedup"]) for m in ("model", "ngram")}
    greedy = [r for r in rows if r["prompt_kind"] == "all" and r["temperature"] == 0]
    identical = "identical" if all(r["same_as_baseline"] for r in greedy) else "not identical"
    n_texts = sum(r["n_prompts"] for r in greedy)

    def interval(row: dict) -> str:
        return f"{row['speedup']:.2f}x (95 %: {row['speedup_low']:.2f} to {row['speedup_high']:.2f})"

    head = run["headline"]
    lines = [
        f"- {n_texts} greedy texts from {len(greedy)} speculative arms against the baseline: {identical}.",
        f"- Model draft at its best k = {head['draft_length']}, chosen on half of the prompts, on the other half: "
        f"**{interval(head)}** at alpha {head['acceptance_rate']:.2f}.",
        f"- Prompt lookup on the copy prompts, k = {best_copy['draft_length']}: **{interval(best_copy)}**; "
        "no draft model at all.",
        f"- The worst row: {worst['method']}, k = {worst['draft_length']}, prompts: {worst['prompt_kind']}: "
        f"**{interval(worst)}**.",
        f"- {words.generate_line(run['rows'])[0].upper()}{words.generate_line(run['rows'])[1:]}.",
        f"- {run['prompts']['n_looping']} of {run['prompts']['n']} greedy texts end in a loop, which flatters "
        "acceptance. Without them the best rows are "
        + ", ".join(f"{m} k = {r['draft_length']} {interval(r)}" for m, r in best_calm.items())
        + ".",
        "",
        words.provenance(run),
        f"All rows: [{FULL_RUN.stem}.md](results/{FULL_RUN.stem}.md).",
    ]
    return "\n".join(lines)


def pair() -> str:
    """Sizes, losses and acceptance of the committed pair."""
    facts = record.load(TRAINING, check=lambda _: None)
    loss, accepted = facts["held_out_loss"], facts["acceptance_on_held_out_continuations"]
    rows = []
    for role in ("target", "draft"):
        shape = facts[role]["shape"]
        rows.append(
            [
                role,
                str(shape["num_hidden_layers"]),
                str(shape["hidden_size"]),
                f"{facts[role]['parameters'] / 1e6:.1f} M",
                f"{loss[role]:.2f}",
                f"{facts[role]['seconds'] / 60:.0f}",
            ]
        )
    run = record.load(FULL_RUN)
    row = next(r for r in run["rows"] if (r["method"], r["draft_length"], r["prompt_kind"]) == ("model", 4, "all"))
    headers = ["", "layers", "width", "parameters", "held-out loss (nats/token)", "minutes of training"]
    return (
        report.table(rows, headers, markdown=True)
        + f"\n\nOn what the target writes after held-out text, the draft's first choice is the target's at "
        f"{accepted['greedy_agreement']:.0%} of the places, and their distributions overlap by "
        f"{accepted['overlap_at_temperature_1']:.0%}. On the lab's own prompts, greedy, k = 4: alpha "
        f"{row['acceptance_rate']:.2f}; {run['prompts']['n_looping']} of {run['prompts']['n']} texts of "
        f"{run['settings']['max_new_tokens']} tokens end in a loop."
    )


def families() -> str:
    """How many families of models decode rightly, and what becomes of the others."""
    run = record.load(FAMILIES, check=lambda _: None)
    counts = Counter(row["outcome"] for row in run["families"])
    meaning = {
        "identical on both engines": "plain and speculative texts are the library's, token for token (near-ties apart)",
        "identical on eager": "the same on the eager engine; the fast one refuses the model and says why",
        "refused": "a property fails, which is named",
        "cannot be built": "no tiny model of it can be made here",
        "broken": "a wrong text, or an error that is not one line",
    }
    rows = [[outcome, text, str(counts[outcome])] for outcome, text in meaning.items()]
    table = report.table(rows, ["outcome", "what it means", "families"], markdown=True, n_words=2)
    versions = f"transformers {run['versions']['transformers']}, torch {run['versions']['torch']}, float32"
    each = f"Each family: [{FAMILIES.stem}.md](results/{FAMILIES.stem}.md)."
    return f"{table}\n\n{len(run['families'])} families; {versions}. {each}"


BLOCKS: dict[str, Callable[[], str]] = {
    "first-run": first_run,
    "summary": summary,
    "pair": pair,
    "families": families,
    **doc_blocks.BLOCKS,
}


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
        text = pattern.sub(lambda m, block=block: f"{m[1]}{block}\n{m[2]}", text)
    return text


def _text(page: Path) -> str:
    try:
        return page.read_text("utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise EnvironmentProblem(f"cannot read {shown(page)}: {why}; type: git checkout -- {shown(page)}") from None


@reports_problems
def main(argv: list[str] | None = None) -> int:
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
