"""`--trace FILE`: decode a prompt with both decoders, look at every round, and draw it (present/trace_output.py)."""

import argparse
import copy
import functools
import time
from collections.abc import Callable, Iterator

import torch

from baseline_autoregressive import autoregressive_decode
from draft_models import Drafter, OracleDraft
from optimized_speculative import Round, Rules, speculative_decode
from speclab.cli import options, trace_output
from speclab.core.sampling import Sampling
from speclab.lab import shapes, trace
from speclab.lab.detail import DetailRecorder
from speclab.lab.run_config import Job, drafter_name
from speclab.learner.functions import LAB, Learner
from speclab.models import loading
from speclab.models.prompts import Prompt
from speclab.system.errors import UsageProblem

WARM = 12  # tokens of each decoder before the clocks start: shapes met for the first time are slow


def follow(
    setup: options.Setup,
    drafter: Drafter,
    draft_name: str,
    prompt: Prompt,
    draft_length: int,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int = 0,
    eos: frozenset[int] = frozenset(),
    theirs: Learner = LAB,
    longest: int | None = None,
) -> trace.Trace:
    """The prompt decoded by the baseline, then by the speculative loop, with times and details of every round.

    theirs: a reader's own functions in the loop; `longest` is how far these may draft where they choose the length.
    """
    ids = prompt.ids.to(setup.device)

    def dice() -> torch.Generator:
        return torch.Generator(setup.device).manual_seed(seed)

    target = copy.deepcopy(setup.target)  # the same weights with a cache of its own: both decode side by side

    def baseline(n_tokens: int) -> Iterator[int]:
        return autoregressive_decode(target, ids, n_tokens, sampling, dice(), eos, setup.chunk)

    def rounds(n_tokens: int) -> Iterator[Round]:
        proposer = theirs.drafter(drafter, longest)
        args = (setup.target, proposer, ids, draft_length, n_tokens, sampling, dice(), eos)
        return looked_at(theirs, *args)

    if isinstance(drafter, OracleDraft):
        drafter.replay(list(baseline(max_new_tokens)))
    for stream in (baseline, rounds):
        for _ in stream(min(WARM, max_new_tokens)):
            pass
    found, steps = race(rounds(max_new_tokens), baseline(max_new_tokens))
    settings = {
        "target": setup.target_name,
        "draft": loading.short_name(loading.LAB_DRAFT) if draft_name == "model" else draft_name,
        "draft_length": draft_length,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": seed,
        "device": setup.device.type,
        "dtype": setup.dtype_name,
        "engine": setup.engine,
    }
    return trace.trace(found, steps, setup.tokenizer, prompt.text, prompt.id_list, settings)


def looked_at(theirs: Learner, *args) -> Iterator[Round]:
    """Rounds with their phases and with every number that the rule used."""
    looking: list[DetailRecorder] = []

    def rules(verify: Callable, tokens_to_keep: Callable) -> Rules:
        looking.append(DetailRecorder(verify))
        return Rules(looking[-1], tokens_to_keep)

    decode = theirs.decoder(functools.partial(speculative_decode, rules=rules(*Rules())), rules)
    return looking[-1].into(decode(*args, time_phases=True))


def race(rounds: Iterator[Round], tokens: Iterator[int]) -> tuple[list[Round], list[tuple[int, float]]]:
    """Run both to their ends; whoever is behind in time goes next, so that both meet the same machine.

    -> all rounds; all of the baseline's ids with the seconds at which they were there, its first one's being 0
    """
    found, steps = [next(rounds)], [(next(tokens), 0.0)]
    mine, others = 0.0, 0.0
    done: set[int] = set()
    while len(done) < 2:
        behind = tokens if id(rounds) in done or (id(tokens) not in done and others < mine) else rounds
        start = time.perf_counter()
        item = next(behind, None)
        if item is None:
            done.add(id(behind))
        elif behind is rounds:
            found.append(item)
            mine += sum(trace.phases(item.seconds).values())
        else:
            others += time.perf_counter() - start
            steps.append((item, others))
    return found, steps


def draw(
    args: argparse.Namespace,
    setup: options.Setup,
    drafter: Drafter,
    prompt: Prompt,
    eos: frozenset[int],
    theirs: Learner,
) -> None:
    """`optimized_speculative.py --trace`"""
    k, n_tokens, name = args.draft_length, args.max_new_tokens, drafter_name(args.draft)
    found = follow(setup, drafter, name, prompt, k, n_tokens, setup.sampling, args.seed, eos, theirs, longest=k)
    trace_output.write(found, args.trace)


def first_that_can_be_drawn(job: Job) -> str:
    """The draft that `compare.py --trace` shows; said before anything is timed where there is none."""
    temperature = job.temperatures[0]
    names = [name for name, drafter in job.drafters.items() if not (temperature and isinstance(drafter, OracleDraft))]
    if not names:
        raise UsageProblem(
            "--trace has nothing to draw: the dial only replays greedy output; put 0 first in --temperature"
        )
    return names[0]


def draw_job(job: Job) -> None:
    """`compare.py --trace`: what the comparison starts with, its first prompt, draft, length and temperature."""
    name, base = first_that_can_be_drawn(job), job.setup.sampling
    sampling = Sampling(job.temperatures[0], base.top_k, base.top_p)
    k, n_tokens = next(filter(None, job.draft_lengths), 0), job.args.max_new_tokens
    drafter, prompt = job.drafters[name], job.prompts[0]
    with job.talk():
        found = follow(job.setup, drafter, name, prompt, k, n_tokens, sampling, job.args.seed, theirs=job.theirs)
        trace_output.write(found, job.args.trace)


def print_shapes(
    args: argparse.Namespace, setup: options.Setup, drafter: Drafter, prompt: Prompt, theirs: Learner
) -> int:
    """`optimized_speculative.py --trace-shapes`  -> exit code"""
    ids, generator = prompt.ids.to(setup.device), torch.Generator(setup.device).manual_seed(args.seed)
    words = (setup.target, drafter, setup.tokenizer, ids, args.draft_length, setup.sampling, generator)
    return shapes.show(*words, theirs.shapes)
