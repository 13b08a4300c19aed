"""Does the lab decode every family of causal language models and of encoder-decoders, or say why not?

For each model type of the installed transformers a tiny random-weight model is built (tiny_families.py) and decoded
greedily: plainly and speculatively with k = 1 and k = 4, on the engines eager and c, then with trees and in a batch
where it can. "bart" is the decoder of that family alone, "bart+encoder" all of it. The draft is a noisy copy of the
model, so that drafts are accepted and rejected. Every text is compared with `model.generate(do_sample=False)`.

What comes out: one outcome for each family.

    identical on both engines   every text is the library's (a near-tie of two logits may be decided the other way)
    identical on eager          the same, and the engine c does not know the model
    refused                     the checks at loading refuse the model
    cannot be built             there is no tiny model of it here, or its plain forward pass fails
    broken                      anything else; the exit code is then 1

    python -m benchmarks.families                           # all of them, ten to twenty minutes on two cores
    python -m benchmarks.families --only llama,gpt2

Each family has a process of its own with a limit of processor time and memory. Ctrl-C keeps what is done.
Files: results/NAME-families.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import multiprocessing
import os
import re
import sys
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch

from benchmarks import common
from benchmarks.families.one_family import (
    BOTH,
    BROKEN,
    DRAFT_LENGTHS,
    EAGER,
    N_TOKENS,
    OUTCOMES,
    PROMPTS,
    FamilyRow,
    examine,
    limit,
)
from benchmarks.families.tiny_families import families
from speclab.cli import parsing
from speclab.present.tables import Block, Cell, Heading, Lines, Table
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress_bar

# Processes that start with torch and transformers imported, where the system can do that.
PROCESSES = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
# What differs between families that fail for the same reason.
NUMBERS = re.compile(r": logits differ| by \d| \(|, and \S+ is one")


@dataclass(kw_only=True)
class FamiliesRun(common.BenchmarkRun):
    """The record of `python -m benchmarks.families`."""

    families: list[FamilyRow]


def sweep(types: list[str], jobs: int) -> tuple[list[FamilyRow], bool]:
    """Examine every family in a process of its own, `jobs` at a time.  -> rows in the order of `types`, interrupted?"""
    PROCESSES.set_forkserver_preload(["benchmarks.families.one_family"])
    rows: list[FamilyRow] = []
    with ThreadPoolExecutor(jobs) as threads:
        answers = [threads.submit(_examined, model_type) for model_type in types]
        try:
            for answer in progress_bar(answers, desc="families", leave=False):
                rows.append(answer.result())
        except KeyboardInterrupt:
            threads.shutdown(cancel_futures=True)
            return rows, True
    return rows, False


def _examined(model_type: str) -> FamilyRow:
    """The row of one family. A process that ends without an answer is one, too."""
    try:
        with ProcessPoolExecutor(1, PROCESSES, limit) as process:
            return process.submit(examine, model_type).result()
    except BrokenProcessPool:
        return FamilyRow(family=model_type, reason="its process ended without an answer")


def page(run: FamiliesRun) -> list[Block]:
    """The page: counts, then the families of each outcome, by reason."""
    counts = Counter(row.outcome for row in run.families)
    decoded = [row for row in run.families if row.outcome in (BOTH, EAGER)]
    refusals = {
        "trees": {row.family: row.no_trees for row in decoded if row.no_trees},
        "batches": {row.family: row.no_batches for row in decoded if row.no_batches},
    }
    cells: dict[str, Cell] = {"outcome": str, "families": lambda outcome: str(counts[outcome])}
    of_ways: dict[str, Cell] = {"also with": str, "families": lambda way: str(len(decoded) - len(refusals[way]))}
    blocks: list[Block] = [
        *common.begin("Families of models", run),
        f"{len(run.families)} families of transformers {run.versions.transformers}, torch {run.versions.torch}",
        Table(OUTCOMES, cells),
    ]
    if any(row.no_trees is not None for row in decoded):
        blocks += [
            f"{len(decoded)} give the library's texts. Of these:",
            Table(list(refusals), of_ways),
        ]
    for outcome in OUTCOMES:
        reasons = {row.family: row.reason for row in run.families if row.outcome == outcome}
        blocks += [Heading(f"{outcome.capitalize()}: {counts[outcome]}"), by_reason(reasons)]
    for way, reasons in refusals.items():
        if reasons:
            blocks += [Heading(f"Identical, but not with {way}: {len(reasons)}"), by_reason(reasons)]
    return [*blocks, "The record has every reason in full, and how many drafted tokens were accepted and rejected."]


def by_reason(reasons: dict[str, str]) -> Lines:
    """Lines for the reasons, the one of most families first. reasons: the reason of each family."""
    families = defaultdict(list)
    for family, reason in reasons.items():
        families[NUMBERS.split(reason)[0] or "every text is the library's"].append(family)
    by_size = sorted(families.items(), key=lambda item: -len(item[1]))
    return Lines(f"{reason} ({len(names)}): {', '.join(names)}" for reason, names in by_size)


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--only", metavar="TYPE,TYPE", help="model types, for example llama,gpt2 (default: all)")
    group.add_argument(
        "--jobs", type=parsing.at_least(1), default=os.cpu_count(), help="families at a time (default: one per core)"
    )
    common.add_result_flags(parser, "families")
    return parser


def chosen(only: str | None) -> list[str]:
    """The model types of --only, or all of them."""
    known = families()
    if only is None:
        return known
    if unknown := [name for name in only.split(",") if name not in known]:
        raise UsageProblem(f"--only {only}: transformers has no family {unknown[0]!r}; try --only llama")
    return list(dict.fromkeys(only.split(",")))


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    args = make_parser().parse_args(argv)
    types = chosen(args.only)
    torch.set_num_threads(1)  # as each family's process does
    common.check_result_flags(args)
    rows, interrupted = sweep(types, args.jobs)
    settings = {"device": "cpu", "dtype": "float32", "engine": "eager and c", "seed": 0}
    settings |= {"n_tokens": N_TOKENS, "prompts": PROMPTS, "draft_lengths": DRAFT_LENGTHS}
    fields = common.head(args, torch.device("cpu"), settings) | {"interrupted": interrupted}
    code = common.finish(args, FamiliesRun(**fields, families=rows), page)
    if interrupted:
        note(f"stopped after {len(rows)} of {len(types)} families")
    return code or int(any(row.outcome == BROKEN for row in rows))


if __name__ == "__main__":
    sys.exit(main())
