"""Does the lab decode every family of causal language models, or say why not?

For each model type of the installed transformers a tiny random-weight model is built (benchmarks/tiny_families.py) and
decoded greedily: plainly and speculatively with k = 1 and k = 4, on both engines. The draft is a noisy copy of the
model, so that drafts are accepted and rejected. Every text is compared with `model.generate(do_sample=False)`.

What comes out: one outcome for each family.

    identical on both engines   every text is the library's (a near-tie of two logits may be decided the other way)
    identical on eager          the same, and the fast engine refused the model
    refused                     the checks at loading refuse the model
    cannot be built             there is no tiny model of it here, or its plain forward pass fails
    broken                      anything else; the exit code is then 1

    python -m benchmarks.families                           # all of them, about ten minutes on two cores
    python -m benchmarks.families --only llama,gpt2

Each family has a process of its own with a limit of processor time and memory. Ctrl-C keeps what is done. Files:
results/NAME-families.json and .md.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import multiprocessing
import os
import re
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from benchmarks import common
from benchmarks.one_family import (
    BROKEN,
    DRAFT_LENGTHS,
    N_TOKENS,
    OUTCOMES,
    PROMPTS,
    SECONDS,
    FamilyRow,
    child,
)
from benchmarks.tiny_families import model_types
from speclab.cli import parsing
from speclab.present.tables import table
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note, progress_bar

# --- the sweep --------------------------------------------------------------------------------------------------------

# Processes that start with torch and transformers imported, where the system can do that.
POSIX = os.name == "posix"
PROCESSES = multiprocessing.get_context("forkserver") if POSIX else multiprocessing.get_context("spawn")


def run_alone(model_type: str, work: Callable[[str, Connection], None] = child) -> FamilyRow:
    """`work` in a process of its own.  -> the row it sends, or a broken one that says how the process ended"""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(model_type, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if receiver.poll(10 * SECONDS):
            return receiver.recv()
        return FamilyRow(family=model_type, reason=f"not done after {10 * SECONDS} seconds")
    except EOFError:
        process.join()
        return FamilyRow(family=model_type, reason=f"its process ended early, exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def sweep(types: list[str], jobs: int) -> tuple[list[FamilyRow], bool]:
    """Every family in a process of its own, `jobs` at a time.  -> rows in the order of `types`, interrupted?"""
    if POSIX:
        PROCESSES.set_forkserver_preload(["benchmarks.one_family"])
    rows, interrupted = {}, False
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(run_alone, model_type): model_type for model_type in types}
        try:
            for future in progress_bar(as_completed(waiting), total=len(waiting), desc="families", leave=False):
                rows[waiting[future]] = future.result()
        except KeyboardInterrupt:
            interrupted = True
            pool.shutdown(cancel_futures=True)
    return [rows[model_type] for model_type in types if model_type in rows], interrupted


# --- views of the record ----------------------------------------------------------------------------------------------

NUMBERS = re.compile(r": logits differ| by \d| \(")  # what differs between families that fail for the same reason


@dataclass(kw_only=True)
class FamiliesRun(common.BenchmarkRun):
    """`python -m benchmarks.families`."""

    families: list[FamilyRow]


def page(run: FamiliesRun, markdown: bool) -> str:
    """Counts, then the families of each outcome."""
    counts = Counter(row.outcome for row in run.families)
    blocks = common.opening("Families of models", run, markdown)
    blocks += [
        f"{len(run.families)} families of transformers {run.versions.transformers}, torch {run.versions.torch}",
        table([[outcome, str(counts[outcome])] for outcome in OUTCOMES], ["outcome", "families"], markdown),
    ]
    for outcome in (outcome for outcome in OUTCOMES if counts[outcome]):
        rows = [row for row in run.families if row.outcome == outcome]
        blocks += [common.heading(f"{outcome.capitalize()}: {counts[outcome]}", markdown), listing(rows, markdown)]
    if markdown:
        blocks.append("The record has every reason in full, and how many drafted tokens were accepted and rejected.")
    return "\n\n".join(blocks) + "\n"


def listing(rows: list[FamilyRow], markdown: bool) -> str:
    """Families without a reason as one paragraph, the others by their reason."""
    families = defaultdict(list)
    for row in rows:
        families[NUMBERS.split(row.reason)[0]].append(row.family)
    if not any(families):
        return textwrap.fill(", ".join(families[""]), 120 if markdown else 79)
    reasons = [(why, ", ".join(names)) for why, names in sorted(families.items(), key=lambda item: -len(item[1]))]
    if not markdown:
        return common.remarks([f"{why}: {names}" for why, names in reasons], False)
    lines = [[str(names.count(",") + 1), why.replace("|", "\\|"), names] for why, names in reasons]
    return table(lines, ["n", "reason", "families"], True, n_words=3)


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--only", metavar="TYPE,TYPE", help="model types, for example llama,gpt2 (default: all)")
    group.add_argument(
        "--jobs", type=parsing.at_least(1), default=os.cpu_count(), help="families at a time (default: one per core)"
    )
    common.add_result_flags(parser)
    return parser


def chosen(only: str | None) -> list[str]:
    """--only, or every model type."""
    known = model_types()
    if only is None:
        return known
    if unknown := [name for name in only.split(",") if name not in known]:
        raise UsageProblem(f"--only {only}: transformers has no causal model type {unknown[0]!r}; try --only llama")
    return list(dict.fromkeys(only.split(",")))


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    types = chosen(args.only)
    torch.set_num_threads(1)  # as each family's process does
    common.check_result_flags(args, "families")
    rows, interrupted = sweep(types, args.jobs)
    settings = {
        "device": "cpu",
        "dtype": "float32",
        "engine": "eager and fast",
        "seed": 0,
        "n_tokens": N_TOKENS,
        "prompts": PROMPTS,
        "draft_lengths": DRAFT_LENGTHS,
    }
    run = FamiliesRun(**common.head("families", torch.device("cpu"), settings, interrupted), families=rows)
    code = common.finish(args, run, page)
    if interrupted:
        note(f"stopped after {len(rows)} of {len(types)} families")
    return code or int(any(row.outcome == BROKEN for row in rows))


if __name__ == "__main__":
    sys.exit(main())
