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
    from speclab import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import multiprocessing
import os
import sys
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch

from benchmarks import common
from benchmarks.common import COUNT, TEXT
from benchmarks.one_family import BROKEN, DRAFT_LENGTHS, N_TOKENS, OUTCOMES, PROMPTS, SECONDS, child
from benchmarks.tiny_families import model_types
from speclab import options, record
from speclab.errors import UsageProblem, reports_problems
from speclab.terminal import progress_bar

# --- the sweep --------------------------------------------------------------------------------------------------------

# Processes that start with torch and transformers imported, where the system can do that.
PROCESSES = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")


def run_alone(model_type: str) -> dict:
    """`examine` in a process of its own.  -> its row, or a broken one that says how the process ended"""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=child, args=(model_type, sender), daemon=True)
    process.start()
    sender.close()
    try:
        if receiver.poll(10 * SECONDS):
            return receiver.recv()
        return broken(model_type, f"not done after {10 * SECONDS} seconds")
    except EOFError:
        process.join()
        return broken(model_type, f"its process ended with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()


def broken(model_type: str, why: str) -> dict:
    """The row of a family whose process did not answer."""
    return {"family": model_type, "outcome": BROKEN, "reason": why, "n_parameters": 0, "accepted": 0, "rejected": 0}


def sweep(types: list[str], jobs: int) -> tuple[list[dict], bool]:
    """Every family in a process of its own, `jobs` at a time.  -> rows in the order of `types`, interrupted?"""
    rows, interrupted = {}, False
    if os.name == "posix":
        PROCESSES.set_forkserver_preload(["benchmarks.one_family"])
    pool = ThreadPoolExecutor(jobs)
    waiting = {pool.submit(run_alone, model_type): model_type for model_type in types}
    try:
        for future in progress_bar(as_completed(waiting), total=len(waiting), desc="families", leave=False):
            rows[waiting[future]] = future.result()
    except KeyboardInterrupt:
        interrupted = True
    pool.shutdown(cancel_futures=True)
    return [rows[model_type] for model_type in types if model_type in rows], interrupted


# --- views of the record ----------------------------------------------------------------------------------------------

SCHEMA = common.one_of(
    {
        **common.HEAD,
        "families": common.list_of(
            {
                "family": TEXT,
                "outcome": {"enum": list(OUTCOMES)},
                "reason": TEXT,
                "n_parameters": COUNT,
                "accepted": COUNT,
                "rejected": COUNT,
            }
        ),
    }
)


def page(run: dict, markdown: bool) -> str:
    """Counts, then every family with its outcome (in Markdown), or the families of each outcome (in the terminal)."""
    counts = Counter(row["outcome"] for row in run["families"])
    versions = run["versions"]
    blocks = ["# Families of models"] * markdown + [
        f"{len(run['families'])} families of transformers {versions['transformers']}, torch {versions['torch']}",
        common.table([[outcome, str(counts[outcome])] for outcome in OUTCOMES], ["outcome", "families"], markdown),
    ]
    for outcome in OUTCOMES:
        mine = [row for row in run["families"] if row["outcome"] == outcome]
        if mine:
            blocks += [common.heading(f"{outcome.capitalize()}: {len(mine)}", markdown), listing(mine, markdown)]
    return "\n\n".join(blocks) + "\n"


def listing(rows: list[dict], markdown: bool) -> str:
    """Families without a reason as one paragraph, the others as a table or as lines."""
    if not any(row["reason"] for row in rows):
        return textwrap.fill(", ".join(row["family"] for row in rows), 120 if markdown else 79)
    if not markdown:
        return common.sentences([f"{row['family']}: {row['reason']}" for row in rows], False)
    return common.table([[row["family"], row["reason"]] for row in rows], ["family", "reason"], True, n_words=2)


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> options.Parser:
    parser = options.make_parser(__doc__)
    group = parser.add_argument_group("benchmark")
    group.add_argument("--only", metavar="TYPE,TYPE", help="model types, for example llama,gpt2 (default: all)")
    group.add_argument(
        "--jobs", type=options.at_least(1), default=os.cpu_count(), help="families at a time (default: one per core)"
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
    args = make_parser().parse_args(argv)
    types = chosen(args.only)
    common.check_result_flags(args, "families")
    rows, interrupted = sweep(types, args.jobs)
    run = {
        "benchmark": "families",
        "schema_version": common.SCHEMA_VERSION,
        "created": record.today(),
        "interrupted": interrupted,
        "machine": record.machine(torch.device("cpu")),
        "versions": record.versions(),
        "settings": {"n_tokens": N_TOKENS, "prompts": PROMPTS, "draft_lengths": DRAFT_LENGTHS, "dtype": "float32"},
        "families": rows,
    }
    code = common.finish(args, run, SCHEMA, page)
    return code or int(any(row["outcome"] == BROKEN for row in rows))


if __name__ == "__main__":
    sys.exit(main())
