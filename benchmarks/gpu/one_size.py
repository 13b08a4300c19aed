"""One size in one process: target and draft are loaded once, and everything is measured with them, the headline first.

1. Passes of both models over 1 to 9 tokens beside the machine's ceilings (the record of benchmarks/roofline.py).
2. Baseline, model and ngram at k = 4 and 6, greedy and at temperature 0.8, `generate`, and assisted generation at
   k = 4: one measurement, arms in turns. Its seconds are written before texts are checked and costs are explained
   (the record of compare.py, and that of benchmarks/peers/ for the arms that have a peer).
3. The kernels that take most of a target step and of a round.

    python -m benchmarks.gpu.one_size --target lab:8b:v128256 --name gpu-8b
    python -m benchmarks.gpu.one_size --target lab:20m --device cpu --dtype float32 --limit 1

Ctrl-C keeps the prompts that all arms have finished; their texts are then not checked. Exit code 1 if a text is wrong.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys
from dataclasses import replace

from transformers.utils import logging as transformers_logging

from benchmarks import common, roofline
from benchmarks.gpu.findings import Finding, FindingsRun, page
from benchmarks.gpu.kernels import most_expensive
from benchmarks.peers import __main__ as peers
from benchmarks.peers import page as peers_page
from draft_models import NgramDrafter
from speclab.cli import flags, parsing
from speclab.core.drafter import Drafter
from speclab.drafts import registry
from speclab.drafts.registry import check_prompts
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.lab import comparison
from speclab.lab.harness import Measurement, measure
from speclab.lab.output_checks import exit_code, judge, judge_greedy, to_judge
from speclab.lab.padded_pair import padded_kinds
from speclab.lab.run_config import RunConfig
from speclab.models.cached import CachedModel
from speclab.models.padded.sizes import is_lab_size
from speclab.present import first_screen
from speclab.records import files
from speclab.records.arms import BASELINE, GENERATE, Arm
from speclab.records.runs import ComparisonRun
from speclab.system import terminal
from speclab.system.errors import reports_problems
from speclab.system.files import write_whole
from speclab.system.terminal import note

WIDTHS = list(range(1, 10))
LENGTHS, TEMPERATURES = [4, 6], [0.0, 0.8]
ASSISTED = 4  # the length at which the library's assisted generation runs, too


# --- passes -----------------------------------------------------------------------------------------------------------


def models_of(config: RunConfig) -> list[tuple[roofline.Role, str, CachedModel]]:
    """The target, and the draft model."""
    drafts = [(name, model) for name, d in config.drafters.items() for model in d.models]
    return [("target", config.setup.target_name, config.setup.target), *(("draft", *draft) for draft in drafts)]


def forget_graphs(config: RunConfig) -> None:
    """Forget the graphs of the passes, which had one for each width: the next measurement announces its own widths."""
    for _, _, cached in models_of(config):
        if isinstance(cached.fast, GraphedModel):
            cached.fast.forget()


def measure_passes(args: argparse.Namespace, config: RunConfig) -> None:
    """Write the record of the passes."""
    ceilings: roofline.Ceilings = {}
    measured: list[roofline.ModelPasses] = []
    block = roofline.measure_models(args, config.setup, models_of(config), ceilings, measured)
    fields = common.head_of(args, config.setup) | {"benchmark": "roofline"}
    common.finish(args, roofline.record(args, fields, block, ceilings, measured), roofline.page)


# --- the one measurement ----------------------------------------------------------------------------------------------


def write_comparison(args: argparse.Namespace, run: ComparisonRun) -> None:
    """Write the record and its page, as compare.py writes them."""
    path = args.out_dir / "results" / f"{args.name}.json"
    write_whole(path, files.to_json(run))
    write_whole(path.with_suffix(".md"), terminal.harmless(first_screen.page(run, args.name)))


def measure_arms(args: argparse.Namespace, config: RunConfig) -> Measurement:
    """Write seconds and counts first; then check, explain and write again. An interrupted run is not checked."""
    draft = next(iter(config.drafters))
    assisted = Arm("assisted", draft, ASSISTED)
    with_peers = [BASELINE, GENERATE, Arm(config.method(draft), draft, ASSISTED), assisted]
    arms, instruments = [*config.with_plain(), assisted], config.instruments(config.arms())
    everything = measure(config.bench(), arms, TEMPERATURES, config.prompts, config.repeats, instruments, args.name)
    measured = replace(everything, lines=[s for s in everything.lines if s.arm != assisted])
    measured.unchecked = list(to_judge(measured))
    greedy = [s for s in everything.lines if s.arm in with_peers and s.temperature == 0]
    beside_peers = replace(everything, lines=greedy)

    def write_peers(checks: list[dict]) -> None:
        run = peers.record(args, beside_peers, config.repeats, [ASSISTED], config.models(), checks)
        common.write(args, run, peers_page.page)

    write_comparison(args, comparison.comparison_record(config, measured, {}))
    write_peers([])
    if not measured.interrupted:
        judge(measured)
        run = comparison.explain(config, measured)
        write_comparison(args, run)
        if not measured.interrupted:
            write_peers([judge_greedy(beside_peers, arm) for arm in with_peers[1:]])
        terminal.say(first_screen.screen(run))
    return measured


# --- the profile ------------------------------------------------------------------------------------------------------


def measure_profile(args: argparse.Namespace, config: RunConfig) -> None:
    """Write the record of the kernels, for one step or round."""
    found = [
        Finding(
            name=f"{arm.arm}: {one.name[:70]}", numbers={"calls": one.calls / arm.n, "ms": one.seconds / arm.n * 1e3}
        )
        for arm in most_expensive(config)
        for one in arm.kernels
    ]
    common.finish(args, FindingsRun(**common.head_of(args, config.setup), findings=found), page)


# --- the command ------------------------------------------------------------------------------------------------------


def load(args: argparse.Namespace) -> RunConfig:
    """Load target, draft and prompts once."""
    args.target = common.target_name(args.target)
    if args.draft is None:
        args.draft = padded_kinds(["model"], args.target)[0] if is_lab_size(args.target) else "model"
    registry.read(args.draft)
    common.check_result_flags(args)
    setup, prompts = flags.load(args, temperature=0.0)
    drafter = common.model_drafter(args.draft, setup, args.seed, "the library's assistant must be a model")
    drafters: dict[str, Drafter] = {registry.read(args.draft).name: drafter, "ngram": NgramDrafter()}
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    args.context = min(args.context, (setup.target.max_length or sys.maxsize) - args.widths[-1])
    transformers_logging.set_verbosity_error()  # its advice on `generate` would fill the log
    return RunConfig(setup, drafters, prompts, LENGTHS, TEMPERATURES, args.max_new_tokens, 1, args.seed)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the command.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    parser.add_argument("--draft", metavar="KIND", help="(default: the lab's, padded to a tenth of a padded target)")
    common.add_result_flags(parser, "profile")
    parser.set_defaults(limit=2, max_new_tokens=64, widths=WIDTHS, context=256, repeats=15)
    args = parser.parse_args(argv)
    config = load(args)
    note("\n".join([config.setup.describe(), *(f"model   {line}" for line in config.models().values())]))
    measure_passes(args, config)
    forget_graphs(config)
    measured = measure_arms(args, config)
    if not measured.interrupted:
        forget_graphs(config)
        measure_profile(args, config)
    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
