#!/usr/bin/env python3
"""Baseline against speculative decoding on the same prompts: agreement first, then speed, then why.

What comes out: what ran, whether the outputs agree, the measured speedups, what the book's formula and two predictions
said about them, a ladder of factors from the formula to the measurement, a run record (JSON), the tables in Markdown,
and pictures.

    python compare.py                             # the lab's own pair: no network, no GPU, a few minutes
    python compare.py --quick                     # a minute
    python compare.py --plan                      # predict every draft length from a baseline run
    python compare.py --verify-plan               # plan on half of the prompts, measure on the other half
    python compare.py --sweep acceptance          # turn one dial; --sweep all turns all of them
    python compare.py --quick --trace trace.html  # and look at a decoding, round by round, in a browser
    python compare.py --draft model,ngram,dial:0.9 -k 1,2,4,8 --temperature 0 --by-kind
    python compare.py --target lab:200m --temperature 0        # the lab's text at a 200-million-parameter price
    python compare.py --target Qwen/Qwen2.5-7B-Instruct --draft Qwen/Qwen2.5-0.5B-Instruct,ngram --device cuda

The arms of a prompt decode side by side and take turns step by step, so that they meet the same machine. Prefill and
decoding are timed apart. Timed runs produce a fixed number of tokens: an end-of-text token does not stop them.
Exit code 1 if a greedy difference is not a near-tie, or a sampled row fails its statistics.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing, trace_output
from speclab.cli.flags import add_draft_flag
from speclab.cli.parsing import plain_name, some_path
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts.oracle import OracleDraft
from speclab.lab import comparison, plan, profiling, sweeps, tracing
from speclab.lab.run_config import Job, prepare
from speclab.records import record
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_writable

# Prompts of each kind (0: all), new tokens, repeats, draft lengths, temperatures.
SIZES = {
    "default": (4, 64, 1, "2,4,6,8", "0,0.8"),
    "quick": (2, 48, 1, "2,4", "0,0.8"),
    "full": (0, 128, 1, "2,4,6,8", "0,0.8"),
    "plan": (4, 64, 3, plan.LENGTHS, "0"),
    "verify": (0, 64, 2, plan.LENGTHS, "0"),
}


def make_parser() -> argparse.ArgumentParser:
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    add_draft_flag(parser, default=None)
    flags.add_impl_flag(parser)
    group = parser.add_argument_group("experiment")
    group.add_argument(
        "-k", "--draft-length", metavar="K,K", help="(default: 2,4,6,8; --quick 2,4; plans 0 to 16; most sweeps 4)"
    )
    group.add_argument("--temperature", metavar="T,T", help="(default: 0,0.8; plans and most sweeps 0)")
    group.add_argument("--repeats", type=parsing.at_least(1), help="times each prompt is decoded by each arm")
    what = group.add_mutually_exclusive_group()
    what.add_argument("--quick", action="store_true", help="2 prompts of a kind, 48 tokens, k = 2, 4")
    what.add_argument("--full", action="store_true", help="all prompts, 128 tokens")
    what.add_argument("--plan", action="store_true", help="predict k = 0 to 16 from a baseline run and calibration")
    what.add_argument(
        "--verify-plan", action="store_true", help="the plan from half of the prompts, measured on the rest"
    )
    what.add_argument(
        "--sweep", choices=[*sweeps.SWEEPS, "all"], metavar="NAME", help=f"{', '.join(sweeps.SWEEPS)}, all"
    )
    group = parser.add_argument_group("results")
    group.add_argument("--by-kind", action="store_true", help="a table for each kind of prompt too")
    flags.add_verbose_flag(group)
    group.add_argument("--profile", type=some_path, metavar="FILE", help="first write a profiler trace of a few rounds")
    trace_output.add_trace_flag(group)
    group.add_argument(
        "--json", type=some_path, metavar="PATH", help="the run record here as well; - for stdout, alone"
    )
    group.add_argument("--out-dir", type=some_path, default=record.ROOT, help="of results/, plots/ (default: the lab)")
    group.add_argument("--name", type=plain_name, default="local", help="of this run's files (default: local)")
    parser.set_defaults(max_new_tokens=None)
    return parser


def fill_in(args: argparse.Namespace) -> None:
    """What was not said on the command line. Every sweep has sizes of its own."""
    if args.sweep:
        return
    args.draft = args.draft if args.draft is not None else "model,ngram"
    size = next((name for name in ("quick", "full", "plan") if getattr(args, name)), "default")
    size = "verify" if args.verify_plan else size
    names = ("limit", "max_new_tokens", "repeats", "draft_length", "temperature")
    for name, value in zip(names, SIZES[size], strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)


def first_that_can_be_drawn(job: Job) -> str:
    """The draft that --trace shows; UsageProblem before anything is timed where there is none."""
    temperature = job.temperatures[0]
    names = [name for name, drafter in job.drafters.items() if not (temperature and isinstance(drafter, OracleDraft))]
    if not names:
        raise UsageProblem(
            "--trace has nothing to draw: the dial only replays greedy output; put 0 first in --temperature"
        )
    return names[0]


def draw_trace(job: Job) -> None:
    """What the comparison starts with: its first prompt, draft, length and temperature."""
    name, base = first_that_can_be_drawn(job), job.setup.sampling
    settings = DecodeSettings(
        job.args.max_new_tokens, Sampling(job.temperatures[0], base.top_k, base.top_p), seed=job.args.seed
    )
    k = next(filter(None, job.draft_lengths), 0)
    functions = job.theirs.functions(speculative_decode)
    with job.talk():
        drafter, prompt = job.drafters[name], job.prompts[0]
        trace = tracing.follow(job.setup, drafter, name, prompt, k, settings, autoregressive_decode, functions)
        trace_output.write(trace, job.args.trace)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    trace_output.check_path(args.trace)
    if args.profile:
        check_writable(args.profile, "--profile")
    fill_in(args)
    if args.sweep:
        if args.impl:
            raise UsageProblem("--impl decides the rows of one comparison; leave out --sweep, or --impl")
        if args.profile or args.verbose or args.trace:
            flag = "--profile" if args.profile else "--verbose" if args.verbose else "--trace"
            raise UsageProblem(f"{flag} looks at one comparison; leave out --sweep, or {flag}")
        return sweeps.run(args)
    job = prepare(args)
    if args.trace:
        first_that_can_be_drawn(job)
    if args.profile:
        profiling.write_trace(job, args.profile)
    code = plan.run(job) if args.plan or args.verify_plan else comparison.compare(job)
    if args.trace:  # after everything that was timed
        draw_trace(job)
    return code


if __name__ == "__main__":
    sys.exit(main())
