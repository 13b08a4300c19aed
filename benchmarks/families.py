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

import contextlib
import json
import logging
import os
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from tqdm import tqdm
from transformers import GenerationConfig, PreTrainedModel

from baseline_autoregressive import autoregressive_decode
from benchmarks import common
from benchmarks.common import COUNT, MAYBE, TEXT
from benchmarks.tiny_families import VOCAB, model_types, tiny
from draft_models import ModelDrafter
from experiments.unlike import noisy
from optimized_speculative import speculative_decode
from speclab import engine, options, record
from speclab.cached_model import CachedModel, check_rollback
from speclab.errors import EnvironmentProblem, UsageProblem, reports_problems
from speclab.flat import FlatModel, first_line
from speclab.losslessness import judge_divergence

BOTH, EAGER, REFUSED = "identical on both engines", "identical on eager", "refused"
CANNOT, BROKEN = "cannot be built", "broken"
OUTCOMES = (BOTH, EAGER, REFUSED, CANNOT, BROKEN)
PROMPTS = (6, 12)  # lengths: shorter and longer than a tiny model's sliding window
N_TOKENS = 40
DRAFT_LENGTHS = (1, 4)
NOISES = (0.1, 0.03, 0.3, 0.01, 1.0)  # of the draft's weights, until drafts were both accepted and rejected
SECONDS = 120  # of processor time for a family; the wall clock may show ten times as many
GIGABYTES = 12  # of address space


# --- one family -------------------------------------------------------------------------------------------------------


class NotTheSame(Exception):
    """A text is not the library's."""


def examine(model_type: str) -> dict:
    """Build a tiny model of the family and decode with it.  -> its row of the record"""
    row = {"family": model_type, "outcome": BROKEN, "reason": "", "n_parameters": 0, "accepted": 0, "rejected": 0}
    try:
        model = tiny(model_type)
        row["n_parameters"] = sum(p.numel() for p in model.parameters())
        with torch.inference_mode():
            model(input_ids=prompt_of(PROMPTS[0]), use_cache=False).logits  # noqa: B018 - it must be there
    except Exception as error:  # what a library's constructors raise has no end
        return row | {"outcome": CANNOT, "reason": reason(error)}
    try:
        check_loading(model)
        gear, why = engine.choose(model, "fast")
        row["accepted"], row["rejected"] = compare(model, [None, gear] if gear else [None])
    except EnvironmentProblem as problem:
        return row | {"outcome": REFUSED, "reason": str(problem)}
    except NotTheSame as problem:
        return row | {"reason": str(problem)}
    except Exception as error:
        return row | {"reason": reason(error)}
    return row | ({"outcome": BOTH} if gear else {"outcome": EAGER, "reason": why})


def check_loading(model: PreTrainedModel) -> None:
    """What the lab checks when it loads a model; raises EnvironmentProblem."""
    check_rollback(model)


def prompt_of(length: int) -> torch.Tensor:
    """(1, length) ids; 0 is the special token of the tiny models"""
    return torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(0))


def compare(model: PreTrainedModel, gears: list[FlatModel | None]) -> tuple[int, int]:
    """Decode every prompt on these engines, or raise NotTheSame.  -> drafted tokens accepted, rounds with a rejection"""
    model.generation_config = GenerationConfig()  # no ends of text, no forced tokens
    right = {length: library_text(model, prompt_of(length)) for length in PROMPTS}
    for gear in gears:
        for length, text in right.items():
            target = CachedModel(model, flat=gear)
            expect(target, length, text, list(autoregressive_decode(target, prompt_of(length), N_TOKENS)), 0)
    for noise in NOISES:
        drafter = ModelDrafter(CachedModel(noisy(model, noise, seed=1)))
        counts = [speculate(CachedModel(model, flat=gear), drafter, right) for gear in gears]
        accepted, rejected = (sum(column) for column in zip(*counts, strict=True))
        if accepted and rejected:
            break
    return accepted, rejected


def library_text(model: PreTrainedModel, prompt: torch.Tensor) -> list[int]:
    """What the library's own greedy loop makes of the prompt."""
    options = {"do_sample": False, "max_new_tokens": N_TOKENS, "attention_mask": torch.ones_like(prompt)}
    return model.generate(prompt, **options)[0, prompt.shape[1] :].tolist()


def speculate(target: CachedModel, drafter: ModelDrafter, right: dict[int, list[int]]) -> tuple[int, int]:
    """Every prompt with every draft length.  -> drafted tokens accepted, rounds with a rejection"""
    accepted = rejected = 0
    for length, text in right.items():
        for k in DRAFT_LENGTHS:
            rounds = list(speculative_decode(target, drafter, prompt_of(length), k, N_TOKENS))
            expect(target, length, text, [token for round_ in rounds for token in round_.tokens], k)
            accepted += sum(round_.n_accepted for round_ in rounds)
            rejected += sum(round_.n_rejected for round_ in rounds)
    return accepted, rejected


def expect(target: CachedModel, length: int, right: list[int], text: list[int], k: int) -> None:
    """Raise NotTheSame unless the text is the right one, up to a near-tie."""
    divergence = judge_divergence(target, prompt_of(length)[0].tolist(), right, text, k + 1)
    if divergence is not None and not divergence.numerical:
        raise NotTheSame(
            f"{target.engine} engine, prompt of {length} tokens, k = {k}: token {divergence.position} is "
            f"{divergence.speculative_token}, the library's is {divergence.baseline_token}"
        )


def reason(error: Exception) -> str:
    """An error of a library in one short line."""
    return f"{type(error).__name__}: {first_line(error)}"


def child(model_type: str) -> None:
    """What a family's own process runs: its row goes to standard output, as the last line."""
    with contextlib.suppress(ImportError):  # not on Windows
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    print(json.dumps(examine(model_type)))


# --- the sweep --------------------------------------------------------------------------------------------------------


def run_alone(model_type: str) -> dict:
    """`examine` in a process of its own.  -> its row, or a broken one that says how the process ended"""
    command = [sys.executable, "-c", f"from benchmarks.families import child; child({model_type!r})"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=record.ROOT, env=environment, capture_output=True, text=True, timeout=10 * SECONDS
        )
    except subprocess.TimeoutExpired:
        return broken(model_type, f"not done after {10 * SECONDS} seconds")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return broken(model_type, f"the process ended with exit code {done.returncode}: {last[:120]}")
    return json.loads(done.stdout.splitlines()[-1])


def broken(model_type: str, why: str) -> dict:
    """The row of a family whose process did not answer."""
    return {"family": model_type, "outcome": BROKEN, "reason": why, "n_parameters": 0, "accepted": 0, "rejected": 0}


def sweep(types: list[str], jobs: int) -> tuple[list[dict], bool]:
    """Every family in a process of its own, `jobs` at a time.  -> rows in the order of `types`, interrupted?"""
    rows, interrupted = {}, False
    pool = ThreadPoolExecutor(jobs)
    waiting = {pool.submit(run_alone, model_type): model_type for model_type in types}
    try:
        for future in tqdm(as_completed(waiting), total=len(waiting), desc="families", leave=False):
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
    common.check_result_flags(args)
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
    common.finish(args, run, SCHEMA, page)
    return int(any(row["outcome"] == BROKEN for row in rows))


if __name__ == "__main__":
    sys.exit(main())
