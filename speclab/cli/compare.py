"""The command line of compare.py: a comparison, a plan or sweeps, shown and written down."""

import argparse
import functools
import time
from typing import Any

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing
from speclab.cli.output import Output, Step, View, write_trace
from speclab.core.rounds import DecodeSettings
from speclab.drafts.oracle import OracleDraft
from speclab.drafts.select import check_kinds, check_prompts, make_drafters
from speclab.lab import comparison, plan, sweeps
from speclab.lab.harness import Measurement
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.lab.tracing import follow, profiling
from speclab.learner import loading
from speclab.models import memory
from speclab.models.prompts import describe_chat
from speclab.present import plan_views, plots, report, sweep_views
from speclab.records.runs import ComparisonRun, LabRun, PlanRun, SweepRun
from speclab.system.errors import Problem, UsageProblem, reports_problems
from speclab.system.files import do_all, shown, write_whole
from speclab.system.paths import OUTPUT
from speclab.system.terminal import note, say

# What the command line leaves open, by the kind of the run. limit 0: all prompts.
ALL_LENGTHS = ",".join(map(str, range(17)))
SIZE_FLAGS = ("limit", "max_new_tokens", "repeats", "draft_length", "temperature")
SIZES = {
    "default": (4, 64, 1, "2,4,6,8", "0,0.8"),
    "quick": (2, 48, 1, "2,4", "0,0.8"),
    "full": (0, 128, 1, "2,4,6,8", "0,0.8"),
    "plan": (4, 64, 3, ALL_LENGTHS, "0"),
    "verify_plan": (0, 64, 2, ALL_LENGTHS, "0"),
    "sweep": (2, 64, 1, "4", "0"),
}
ACCURACIES = [f"dial:{i / 10:g}" for i in range(11)]
FREE_ORACLES = [f"{dial}:free" for dial in ACCURACIES]
# What a sweep has of its own.
SWEEP_DEFAULTS: dict[str, dict[str, Any]] = {
    "draft-length": {"draft_length": ALL_LENGTHS},
    "acceptance": {"draft_length": "2", "draft": ",".join([*FREE_ORACLES, *ACCURACIES])},
    "temperature": {"temperature": "0,0.2,0.4,0.6,0.8,1,1.2"},
    "output-length": {"max_new_tokens": 512},
    "draft-kind": {"draft": "model,ngram,dial:0.5", "limit": 4},
    "mismatch": {"draft": "model"},
    "definitions": {"draft_length": "1,2,4,8"},
}


@reports_problems
def run(docstring: str, argv: list[str] | None) -> int:
    """The main() of compare.py.  -> exit code"""
    args = _parser(docstring).parse_args(argv)
    flags.check_file(args.trace, "--trace")
    flags.check_file(args.profile, "--profile")
    if args.profile == parsing.DASH:
        raise UsageProblem("--profile -: a profiler trace is too long for a terminal; give a file")
    if args.sweep:
        return _sweeps(args)
    size = next((name for name in SIZES if getattr(args, name, False)), "default")
    return _run(_filled(args, size), [])


def _parser(docstring: str) -> argparse.ArgumentParser:
    parser = parsing.make_parser(docstring)
    flags.add_shared_flags(parser)
    flags.add_draft_flag(parser, default=None)
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
    group.add_argument(
        "--profile", type=parsing.some_path, metavar="FILE", help="first write a profiler trace of a few rounds"
    )
    flags.add_trace_flag(group)
    group.add_argument(
        "--json", type=parsing.some_path, metavar="PATH", help="the run record here as well; - for stdout, alone"
    )
    group.add_argument(
        "--out-dir", type=parsing.some_path, default=OUTPUT, help=f"of results/, plots/ (default: {shown(OUTPUT)})"
    )
    group.add_argument("--name", type=parsing.plain_name, default="local", help="of this run's files (default: local)")
    parser.set_defaults(max_new_tokens=None)
    return parser


def _head(config: RunConfig) -> str:
    """What runs, on what, and how much of it."""
    drafts = [f"draft   {text}" for name, text in config.models().items() if name != "target"]
    n, size = len(config.prompts), f"{config.max_new_tokens} new tokens each, {config.repeats} x, seed {config.seed}"
    chat = describe_chat(config.prompts, config.setup.tokenizer)
    return "\n".join([config.setup.describe(), *drafts, *chat, *config.learner.lines, f"prompts {n}, {size}", ""])


def _filled(args: argparse.Namespace, size: str, **others: Any) -> argparse.Namespace:
    """The arguments, with the defaults of this size, changed by `others`, wherever the command line gives none."""
    defaults = {"draft": "model,ngram"} | dict(zip(SIZE_FLAGS, SIZES[size], strict=True)) | others
    given = {name: value for name, value in vars(args).items() if value is not None}
    return argparse.Namespace(**vars(args) | defaults | given)


def _prepare(args: argparse.Namespace) -> tuple[RunConfig, Output]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    lengths = parsing.numbers(args.draft_length, int, 0, "-k")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    output = Output(args)
    output.check()
    exercises = loading.of_comparison(temperatures, args.draft.split(","), args.plan or args.verify_plan)
    learner = loading.load(args.impl, exercises)
    kinds = [kind for kind in args.draft.split(",") if kind]
    check_kinds(kinds)
    if 0 not in temperatures and all(kind.startswith("dial:") for kind in kinds):
        raise UsageProblem("the dial only replays greedy output; add 0 to --temperature")
    setup, prompts = flags.load(args, temperature=0.0)
    drafters = make_drafters(kinds, setup, args.seed)
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    size = (args.max_new_tokens, args.repeats, args.seed)
    functions = learner.for_comparison(speculative_decode)
    return RunConfig(setup, drafters, prompts, lengths, temperatures, *size, functions), output


# --- one run ----------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace, records: list[Any]) -> int:
    """A comparison, a plan or a sweep, shown and written; its record is added to `records`.  -> exit code"""
    config, output = _prepare(args)
    traced = _first_that_can_be_traced(config) if args.trace else ""
    if args.verify_plan:
        plan.check_prompts(config)
    if args.profile:
        profiling.write_trace(config, args.profile)
    with output.redirected():
        if not args.sweep:
            say(_head(config))
        record, measured, problem = _measure(args, config)
        records.append(record)
        text, page, pictures = _views(args, record, output)
        tables = [lambda: say(text())]
        if args.verbose:
            tables.append(lambda: say(_bytes_of_rounds(config)))
        code = do_all([*tables, *output.writes(record, page), *pictures])
    wrong = exit_code(measured)
    if problem:
        raise problem
    if traced:  # after everything that was timed
        with output.redirected():
            _trace(args, config, traced)
    return code or wrong


def _measure(args: argparse.Namespace, config: RunConfig) -> tuple[LabRun, Measurement, Problem | None]:
    """The record, what it is made from, and what went wrong in a learner's own predictions."""
    if args.sweep:
        return *sweeps.measure_sweep(config, args.sweep), None
    if args.plan or args.verify_plan:
        return *plan.make(config, args.verify_plan), None
    return comparison.compare(config)


def _views(args: argparse.Namespace, record: LabRun, output: Output) -> tuple[View, View, list[Step]]:
    """What makes the text for the terminal and the page, and what writes the pictures."""
    partial, folder, name = functools.partial, output.plots, output.name
    if isinstance(record, ComparisonRun):
        text = partial(report.comparison, record, by_kind=args.by_kind)
        page = partial(report.comparison, record, by_kind=True, markdown=True)
        return text, page, plots.comparison(record, folder, name)
    if isinstance(record, PlanRun):
        picture = partial(plan_views.picture, record, folder, name)
        return partial(plan_views.text, record), partial(plan_views.page, record), [picture]
    if isinstance(record, SweepRun):
        picture = partial(sweep_views.picture, record, folder, name)
        page = partial(sweep_views.page, record, f"../plots/{name}.png")
        return partial(sweep_views.text, record), page, [picture]
    raise TypeError(type(record))


def _bytes_of_rounds(config: RunConfig) -> str:
    """What the first model draft's rounds read, at the longest k and the longest prompt."""
    context = max(prompt.ids.shape[1] for prompt in config.prompts)
    drafts = [drafter.draft.model for drafter in config.drafters.values() if isinstance(drafter, ModelDrafter)]
    return memory.describe(config.setup.target.model, drafts[0] if drafts else None, max(config.draft_lengths), context)


def _first_that_can_be_traced(config: RunConfig) -> str:
    """The draft that --trace shows; UsageProblem where there is none."""
    greedy = config.temperatures[0] == 0
    names = [name for name, drafter in config.drafters.items() if greedy or not isinstance(drafter, OracleDraft)]
    if not names:
        raise UsageProblem(
            "--trace has nothing to draw: the dial only replays greedy output; put 0 first in --temperature"
        )
    return names[0]


def _trace(args: argparse.Namespace, config: RunConfig, draft: str) -> None:
    """What the comparison starts with: its first prompt, draft length and temperature."""
    settings = DecodeSettings(config.max_new_tokens, config.setup.sampling_at(config.temperatures[0]), seed=config.seed)
    k, drafter = next(filter(None, config.draft_lengths), 0), config.drafters[draft]
    loops = (autoregressive_decode, config.learner.loop)
    write_trace(follow.follow(config.setup, drafter, draft, config.prompts[0], k, settings, *loops), args.trace)


# --- sweeps -----------------------------------------------------------------------------------------------------------


def _sweeps(args: argparse.Namespace) -> int:
    """One sweep, or all of them into one report.  -> exit code"""
    if args.impl:
        raise UsageProblem("--impl decides the rows of one comparison; leave out --sweep, or --impl")
    for flag in ("profile", "verbose", "trace"):
        if getattr(args, flag):
            raise UsageProblem(f"--{flag} looks at one comparison; leave out --sweep, or --{flag}")
    names = list(sweeps.SWEEPS) if args.sweep == "all" else [args.sweep]
    if len(names) > 1 and args.json:
        raise UsageProblem("--json takes one record; run the sweeps one by one, or read results/ afterwards")
    if len(names) > 1 and args.prompts == "-":
        raise UsageProblem("standard input can be read once only; give --prompts a file")
    done: list[SweepRun] = []
    code, start = 0, time.monotonic()
    try:
        for place, name in enumerate(names, 1):
            if len(names) > 1:
                spent = time.monotonic() - start
                left = f", about {spent / (place - 1) * (len(names) - place + 1) / 60:.0f} min left" if done else ""
                note(f"sweep {place} of {len(names)}: {name}{left}")
            asked = {"sweep": name, "draft": _drafts_of_sweep(name, args.draft)}
            own = _filled(argparse.Namespace(**vars(args) | asked), "sweep", **SWEEP_DEFAULTS.get(name, {}))
            code = _run(own, done) or code
            if done[-1].interrupted:
                break
    finally:
        if len(names) > 1 and done:
            path = args.out_dir / "results" / f"{args.name}-sweeps.md"
            pictures = {s.sweep: f"../plots/{args.name}-sweep-{s.sweep}.png" for s in done}
            code = do_all([lambda: write_whole(path, sweep_views.all_pages(done, pictures))]) or code
    return code


def _drafts_of_sweep(name: str, asked: str | None) -> str | None:
    """`--draft` as a sweep reads it: acceptance wants an oracle draft for every model, at that model's cost."""
    models = [kind for kind in (asked or "").split(",") if kind and kind != "ngram" and not kind.startswith("dial:")]
    if name != "acceptance" or not models:
        return asked
    return ",".join([*FREE_ORACLES, *(f"{dial}:{model}" for model in models for dial in ACCURACIES)])
