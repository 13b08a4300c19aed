"""`compare.py --engine vllm`: another engine's servers on the same prompts."""

import argparse
import functools

import torch

from speclab.cli import compare_flags, flags, no_effect, parsing
from speclab.cli.output import Output, Step
from speclab.cli.serving_flags import MOST_AT_A_TIME, NOT_HERE, VLLM, VLLM_DRAFTS, limits_of
from speclab.drafts.kinds import check_kinds
from speclab.drafts.select import check_prompts, make_drafters
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.lab.serving import installed
from speclab.lab.serving.comparison import compare_serving
from speclab.lab.serving.served import Plan
from speclab.models import loading, sizes
from speclab.present import serving_load, serving_views
from speclab.present.pictures import library
from speclab.records.serving import ServingRun
from speclab.system.errors import UsageProblem
from speclab.system.files import do_all, shown
from speclab.system.terminal import note, say

OWN_ENGINE = "eager"  # of the lab's own texts and rounds


def run(args: argparse.Namespace) -> int:
    """Measure, show, write.  -> exit code"""
    output, config, plan = _prepare(args)
    with output.redirected():
        say(_head(config, plan))
        record, measured = compare_serving(config, plan)
        code = do_all(_steps(record, output))
    wrong = exit_code(measured)  # raises what ended the run early, if that can be mended
    if measured.stop:
        raise measured.stop
    return code or wrong or _asked_and_refused(args, record)


def _prepare(args: argparse.Namespace) -> tuple[Output, RunConfig, Plan]:
    """Load and check everything; a Problem with the flags is raised before anything is started."""
    if flag := parsing.first_given(args, *NOT_HERE):
        raise UsageProblem(f"{flag} is about the lab's own engines; leave it out, or --engine {VLLM}")
    if args.rule != "token":
        raise UsageProblem(f"--rule {args.rule} is the lab's own; leave it out, or --engine {VLLM}")
    if sizes.is_lab_size(args.target):
        raise UsageProblem(f"--target {args.target} is made in memory, and vLLM reads folders; give a folder")
    args.asked = args.draft is not None
    size = "quick vllm" if args.quick else "full vllm" if args.full else "vllm"
    args = compare_flags.filled(args, size, draft=VLLM_DRAFTS)
    levels = _concurrency(args)
    lengths, auto = parsing.lengths(args.draft_length, "-k")
    if auto or 0 in lengths:
        raise UsageProblem("vLLM drafts the same number of tokens in every round; give -k numbers above 0")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    if args.max_new_tokens <= (shortest := 2 * (lengths[-1] + 1)):
        raise UsageProblem(
            f"a first chunk may carry {shortest} tokens, and decoding is timed after it; use --max-new-tokens "
            f"{shortest + 1} or more"
        )
    kinds = [kind for kind in args.draft.split(",") if kind]
    check_kinds(kinds)
    _check_servers(args, kinds, lengths, levels)
    limits, further = limits_of(args), installed.further_flags(args.vllm_flags or "")
    output = Output(args)
    output.check()
    if loading.room_of(args.target).encodes:
        raise UsageProblem(
            f"--engine {VLLM} serves no encoder-decoder models; leave it out, or choose another --target"
        )
    found = None if args.url else installed.find()
    own = argparse.Namespace(**vars(args) | {"engine": OWN_ENGINE})
    setup, prompts = flags.load(own, temperature=0.0)
    if found:
        found.check_device(setup.device.type)
    drafters = make_drafters(kinds, setup, args.seed)
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens + 2 * lengths[-1])
    config = RunConfig(setup, drafters, prompts, lengths, temperatures, args.max_new_tokens, args.repeats, args.seed)
    no_effect.note_flags(args, temperatures, setup.device)
    if busy := config.look_at_cores():  # before the servers' threads are chosen
        note(f"busy    {busy}")
    longest = max(prompt.ids.shape[1] for prompt in prompts)
    settings = installed.ServerSettings(
        target=args.target,
        device=setup.device.type,
        dtype=setup.dtype_name,
        max_length=installed.context_for(longest, args.max_new_tokens, lengths[-1], setup.target.max_length),
        n_threads=torch.get_num_threads(),
        tensor_parallel=args.tensor_parallel or 1,
        flags=further,
    )
    settings.environment()  # a wrong number of ranks is said now
    return output, config, Plan(found, settings, levels, tuple(args.url or ()), limits, args.schedule)


def _check_servers(args: argparse.Namespace, kinds: list[str], lengths: list[int], levels: list[int]) -> None:
    """Raise UsageProblem where vLLM has no such draft, or where flags about servers contradict each other."""
    for kind in kinds:
        installed.speculative_config(kind, lengths[0])
    if args.url and (len(args.url) != 2 or len(kinds) > 1 or len(lengths) > 1):
        raise UsageProblem("give --url twice, for one draft at one length: --url BASE --url SPEC --draft model -k 4")
    if args.url and args.vllm_flags:
        raise UsageProblem("--vllm-flags are for servers that this run starts; leave them out with --url")
    if args.schedule and (args.url or not levels):
        raise UsageProblem(
            "--schedule needs servers of this run and levels of load; leave out --url, and give numbers "
            "with --concurrency"
        )


def _concurrency(args: argparse.Namespace) -> list[int]:
    given = args.concurrency or ("1,4" if args.quick else compare_flags.BATCHES)
    return [] if given == "none" else parsing.numbers(given, int, 1, "--concurrency", MOST_AT_A_TIME)


def _head(config: RunConfig, plan: Plan) -> str:
    """What runs, on what, and how much of it."""
    engine = f"vLLM {plan.installed.version}" if plan.installed else f"servers at {' and '.join(plan.urls)}"
    ranks = f", tensor parallel {plan.settings.tensor_parallel}" * (plan.settings.tensor_parallel > 1)
    size = f"{len(config.prompts)}, {config.max_new_tokens} new tokens each, {config.repeats} x, seed {config.seed}"
    setup, n = config.setup, torch.get_num_threads()
    return "\n".join(
        [
            f"target  {config.models()['target']}",
            f"on      {setup.device.type}, {setup.dtype_name}, {n} thread{'s' * (n != 1)}",
            f"engine  {engine}{ranks}",
            f"prompts {size}",
            "",
        ]
    )


def _steps(record: ServingRun, output: Output) -> list[Step]:
    where = f"everything else: {shown(output.result('.md'))}"
    steps: list[Step] = [lambda: say(serving_views.text(record, where))]
    steps += output.writes(record, functools.partial(serving_views.page, record, f"../plots/{output.name}.png"))
    if not record.load:
        return steps
    if not library.is_here():
        note(library.MISSING)
        return steps
    return [*steps, functools.partial(serving_load.picture, record, output.plots, output.name)]


def _asked_and_refused(args: argparse.Namespace, record: ServingRun) -> int:
    """3 where a draft that was asked for by name does not run; the usual ones are tried, and that is said."""
    return 3 if record.refused and args.asked else 0
