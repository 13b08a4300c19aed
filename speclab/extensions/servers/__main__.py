"""vLLM's servers on the lab's prompts: agreement first, then speed, then why.

What comes out: whether the servers give the lab's texts, the measured speedups, the engine's counters beside the lab's
own rounds, what happens under load; a run record (JSON), the tables in Markdown, and a picture. See docs/serving.md.

    python -m speclab.extensions.servers            # model, feature, ngram, suffix, block; k = 4; then under load
    python -m speclab.extensions.servers --quick    # fewer prompts and levels
    python -m speclab.extensions.servers --draft model -k 2,4,6 --concurrency none
    python -m speclab.extensions.servers --draft model -k 1,2,4 --schedule    # and with a k that follows the load
    python -m speclab.extensions.servers --url http://127.0.0.1:8000 --url http://127.0.0.1:8001 --draft model -k 4

vLLM runs in an environment of its own: `make vllm` installs it. Exit code 1 if a greedy difference is not a near-tie,
or a sampled row fails its statistics; 3 where vLLM is missing, or does not run a draft that was asked for.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys

import torch

from speclab.cli import flags, no_effect, parsing
from speclab.cli.measured import look_at_cores, show
from speclab.cli.output import Output
from speclab.drafts.registry import check_prompts, make_all, read_all
from speclab.extensions.servers import installed, server_flags, serving_load, serving_views
from speclab.extensions.servers.served import Plan
from speclab.extensions.servers.server_comparison import compare_serving
from speclab.extensions.servers.server_record import ServingRun
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.models import loading
from speclab.models.padded import sizes
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import shown
from speclab.system.terminal import say


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Measure, show, write.  -> exit code"""
    args = server_flags.make_parser(__doc__).parse_args(argv)
    output, config, plan = _prepare(args)
    with output.redirected():
        say(_head(config, plan))
        record, measured = compare_serving(config, plan)
        code = _show(record, output)
    code = max(code, exit_code(measured))  # raises what ended the run early, if that can be mended
    if measured.stop:
        raise measured.stop
    return code or _asked_and_refused(args, record)


def _prepare(args: argparse.Namespace) -> tuple[Output, RunConfig, Plan]:
    """Load and check everything; a Problem with the flags is raised before anything is started."""
    if sizes.is_lab_size(args.target):
        raise UsageProblem(f"--target {args.target} is made in memory, and vLLM reads folders; give a folder")
    args.asked = args.draft is not None
    args = server_flags.filled(args)
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
    choices = read_all(kinds)
    _check_servers(args, kinds, lengths, levels)
    limits, further = server_flags.limits_of(args), installed.further_flags(args.vllm_flags or "")
    output = Output(args, args.name + f"-{server_flags.VLLM}" * (not args.name.endswith(server_flags.VLLM)))
    output.check()
    if not loading.family_named(args.target)[0].one_text:
        raise UsageProblem("the lab asks vLLM's servers for no encoder-decoder models; choose another --target")
    found = None if args.url else installed.find()
    setup, prompts = flags.load(args, temperature=0.0)
    if found:
        found.check_device(setup.device.type)
    drafters = make_all(choices, setup, args.seed)
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens + 2 * lengths[-1])
    config = RunConfig(setup, drafters, prompts, lengths, temperatures, args.max_new_tokens, args.repeats, args.seed)
    no_effect.note_flags(args, temperatures, setup.device)
    look_at_cores(config)  # before the servers' threads are chosen
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
    if args.concurrency == "none":
        return []
    return parsing.numbers(args.concurrency, int, 1, "--concurrency", server_flags.MOST_AT_A_TIME)


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


def _show(record: ServingRun, output: Output) -> int:
    """Print and write the record.  -> exit code"""
    where = f"everything else: {shown(output.result('.md'))}"
    text = functools.partial(serving_views.text, record, where)
    page = functools.partial(serving_views.page, record, f"../plots/{output.name}.png")
    picture = functools.partial(serving_load.picture, record, output.plots, output.name)
    return show(output, record, [text], page, [picture] if record.load else [])


def _asked_and_refused(args: argparse.Namespace, record: ServingRun) -> int:
    """3 where a draft that was asked for by name does not run; the usual ones are tried, and that is said."""
    return 3 if record.refused and args.asked else 0


if __name__ == "__main__":
    sys.exit(main())
