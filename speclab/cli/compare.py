"""The command line of compare.py: a comparison, a plan or sweeps, shown and written down."""

import argparse
import copy
import itertools
import time

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.cli import flags, parsing, trace_output
from speclab.cli.output import Output
from speclab.core.rounds import DecodeSettings
from speclab.drafts.oracle import OracleDraft
from speclab.drafts.select import check_prompts, make_drafters
from speclab.lab import comparison, plan, sweeps
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.lab.tracing import follow, profiling
from speclab.learner import loading
from speclab.models import memory
from speclab.present import plan_views, plots, report, sweep_views
from speclab.records.runs import SweepRun
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import check_writable, do_all, write_whole
from speclab.system.paths import OUTPUT
from speclab.system.terminal import note, say

# Prompts of each kind (0: all), new tokens, repeats, draft lengths, temperatures.
SIZES = {
    "default": (4, 64, 1, "2,4,6,8", "0,0.8"),
    "quick": (2, 48, 1, "2,4", "0,0.8"),
    "full": (0, 128, 1, "2,4,6,8", "0,0.8"),
    "plan": (4, 64, 3, plan.LENGTHS, "0"),
    "verify": (0, 64, 2, plan.LENGTHS, "0"),
}


@reports_problems
def run(docstring: str, argv: list[str] | None) -> int:
    """The main() of compare.py.  -> exit code"""
    args = _parser(docstring).parse_args(argv)
    trace_output.check_path(args.trace)
    if args.profile:
        check_writable(args.profile, "--profile")
    if args.sweep:
        return _sweep(args)
    _fill_in(args)
    config, output = _prepare(args)
    traced = _first_that_can_be_traced(config) if args.trace else ""
    if args.profile:
        profiling.write_trace(config, args.profile)
    code = (_plan if args.plan or args.verify_plan else _compare)(args, config, output)
    if traced:  # after everything that was timed
        with output.redirected():
            _trace(args, config, traced)
    return code


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
    trace_output.add_trace_flag(group)
    group.add_argument(
        "--json", type=parsing.some_path, metavar="PATH", help="the run record here as well; - for stdout, alone"
    )
    group.add_argument(
        "--out-dir", type=parsing.some_path, default=OUTPUT, help="of results/, plots/ (default: the lab)"
    )
    group.add_argument("--name", type=parsing.plain_name, default="local", help="of this run's files (default: local)")
    parser.set_defaults(max_new_tokens=None)
    return parser


def _fill_in(args: argparse.Namespace) -> None:
    """The size of the run, where the command line leaves it open."""
    args.draft = args.draft if args.draft is not None else "model,ngram"
    size = next((name for name in ("quick", "full", "plan") if getattr(args, name)), "default")
    size = "verify" if args.verify_plan else size
    names = ("limit", "max_new_tokens", "repeats", "draft_length", "temperature")
    for name, value in zip(names, SIZES[size], strict=True):
        if getattr(args, name) is None:
            setattr(args, name, value)


def _prepare(args: argparse.Namespace) -> tuple[RunConfig, Output]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    lengths = parsing.numbers(args.draft_length, int, 0, "-k")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    if args.max_new_tokens < 2:
        raise UsageProblem("one new token comes from the prompt's own pass; use --max-new-tokens 2 or more")
    output = Output(args)
    output.check()
    usable = loading.of_comparison(temperatures, args.draft.split(","), args.plan or args.verify_plan)
    learner = loading.load(args.impl, usable)
    setup = flags.setup_from(args, temperature=0.0)
    drafters = make_drafters([kind for kind in args.draft.split(",") if kind], setup, args.seed)
    prompts = flags.read_prompts(args, setup.tokenizer)
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    if 0 not in temperatures and all(isinstance(drafter, OracleDraft) for drafter in drafters.values()):
        raise UsageProblem("the dial only replays greedy output; add 0 to --temperature")
    size = (args.max_new_tokens, args.repeats, args.seed)
    reader = learner.for_comparison(speculative_decode)
    return RunConfig(setup, drafters, prompts, lengths, temperatures, *size, reader), output


# --- one comparison, one plan -----------------------------------------------------------------------------------------


def _compare(args: argparse.Namespace, config: RunConfig, output: Output) -> int:
    with output.redirected():
        say(config.describe())
        run, measured, fault = comparison.compare(config)
        tables = [lambda: say(report.comparison(run, by_kind=args.by_kind))]
        if args.verbose:
            tables.append(lambda: say(_bytes_of_rounds(config)))
        files = output.writes(run, lambda: report.comparison(run, by_kind=True, markdown=True))
        code = do_all(itertools.chain(tables, files, plots.comparison(run, output.plots, output.name)))
    wrong = exit_code(measured)
    if fault:
        raise fault
    return code or wrong


def _bytes_of_rounds(config: RunConfig) -> str:
    """What the first model draft's rounds read, at the longest k and the longest prompt."""
    context = max(prompt.ids.shape[1] for prompt in config.prompts)
    drafts = [drafter.draft.model for drafter in config.drafters.values() if isinstance(drafter, ModelDrafter)]
    return memory.describe(config.setup.target.model, drafts[0] if drafts else None, max(config.draft_lengths), context)


def _plan(args: argparse.Namespace, config: RunConfig, output: Output) -> int:
    if args.verify_plan:
        plan.check_prompts(config)
    with output.redirected():
        say(config.describe())
        made, measured = plan.make(config, args.verify_plan)
        files = output.writes(made, lambda: plan_views.page(made))
        picture = [lambda: plan_views.picture(made, output.plots, output.name)]
        code = do_all(itertools.chain([lambda: say(plan_views.text(made))], files, picture))
    wrong = exit_code(measured)
    return code or wrong


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
    loops = (autoregressive_decode, config.reader.loop)
    trace_output.write(follow.follow(config.setup, drafter, draft, config.prompts[0], k, settings, *loops), args.trace)


# --- sweeps -----------------------------------------------------------------------------------------------------------


def _sweep(args: argparse.Namespace) -> int:
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
            config, output = _prepare(_of_sweep(args, name))
            with output.redirected():
                sweep, measured = sweeps.measure_sweep(config, name)
                done.append(sweep)
                code = _show_sweep(sweep, output) or code
            wrong = exit_code(measured)
            code = code or wrong
            if measured.interrupted:
                break
    finally:
        if len(names) > 1 and done:
            path = args.out_dir / "results" / f"{args.name}-sweeps.md"
            pictures = {s.sweep: f"../plots/{args.name}-sweep-{s.sweep}.png" for s in done}
            code = do_all([lambda: write_whole(path, sweep_views.all_pages(done, pictures))]) or code
    return code


def _of_sweep(args: argparse.Namespace, name: str) -> argparse.Namespace:
    """The arguments of one sweep: its own sizes wherever the command line gives none."""
    own, sweep = copy.copy(args), sweeps.SWEEPS[name]
    own.sweep = name
    for key, value in sweep.defaults.items():
        if getattr(own, key) is None:
            setattr(own, key, value)
    if args.draft:
        own.draft = sweep.drafts(args.draft)
    return own


def _show_sweep(sweep: SweepRun, output: Output) -> int:
    """The table, then the record, the page and the picture.  -> exit code"""
    files = output.writes(sweep, lambda: sweep_views.page(sweep, f"../plots/{output.name}.png"))
    picture = [lambda: sweep_views.picture(sweep, output.plots, output.name)]
    return do_all(itertools.chain([lambda: say(sweep_views.text(sweep))], files, picture))
