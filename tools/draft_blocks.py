"""The table of all drafts in the README: the words are here, the speedups come from committed comparisons."""

from typing import NamedTuple

from speclab.present import tables
from speclab.present.first_screen import target_name
from speclab.records.files import read
from speclab.records.rows import Row
from speclab.records.runs import ComparisonRun
from speclab.system.paths import ROOT

FIRST, FULL, PADDED = "cpu-2-cores-default", "cpu-2-cores-full", "cpu-2-cores-200m-trees"
METHODS = ""  # docs/which-method.md says more


class Draft(NamedTuple):
    """One row of the table. record: the comparison in which its fastest row is looked up, under the name `row`."""

    name: str
    what: str
    needs_training: str
    page: str
    record: str | None = None
    row: str = ""


DRAFTS = (
    Draft("`model`", "the lab's one-layer model, distilled from the target", "done", "02-greedy", FIRST, "model"),
    Draft("folder or hub name", "a smaller model with the target's tokenizer", "no", "02-greedy"),
    Draft(
        "`feature`",
        "one layer that reads the target's hidden states (EAGLE-3)",
        "done",
        "11-feature-draft",
        FIRST,
        "feature",
    ),
    Draft("`block`", "seven tokens in one pass (DSpark, DFlash)", "done", "12-block-draft"),
    Draft("`exit:2`", "the target's first two layers and a trained adapter", "done", METHODS),
    Draft("`int8`", "the target itself, its weights rounded to 8 bits", "no", METHODS),
    Draft("`ngram`", "copies what followed the same words earlier in the text", "no", "07-ngram", FULL, "ngram"),
    Draft("`suffix`", "the same, but what followed most often", "no", METHODS),
    Draft("`hybrid`", "`suffix` or `feature`, decided in every round", "done", METHODS, FIRST, "hybrid"),
    Draft(
        "`tree:best:feature`",
        "branches of a draft, here of `feature`",
        "done",
        "15-token-trees",
        PADDED,
        "tree:best:feature",
    ),
    Draft("`merge:suffix+model`", "several drafts merged into one tree", "done", METHODS),
    Draft("`retokenize:NAME`, `intersect:NAME`", "a model with another tokenizer", "no", METHODS),
)


def drafts() -> str:
    """The table with a row for every kind of draft."""
    headers = ["`--draft`", "what it is", "needs training", "measured", "read on"]
    lines = [[draft.name, draft.what, draft.needs_training, _measured(draft), _page(draft)] for draft in DRAFTS]
    return tables.table(lines, headers, markdown=True, n_words=5)


def fastest(run: ComparisonRun, draft: str) -> Row:
    """The fastest greedy row of a draft over all prompts, its length fixed. Raises ValueError where there is none."""
    rows = [row for row in run.rows if (row.method, row.prompt_kind, row.temperature) == (draft, "all", 0.0)]
    return max(rows, key=lambda row: row.speedup)


def _measured(draft: Draft) -> str:
    if draft.record is None:
        return "-"
    run = read(ROOT / "results" / f"{draft.record}.json", ComparisonRun)
    row = fastest(run, draft.row)
    link = f"[{tables.speedup(row.speedup)}](results/{draft.record}.md)"
    return f"{link}, {target_name(run)}, k = {row.draft_length}"


def _page(draft: Draft) -> str:
    if draft.page == METHODS:
        return "[methods](docs/which-method.md)"
    return f"[chapter {int(draft.page[:2])}](docs/chapters/{draft.page}.md)"
