"""One size in one process: target and draft are loaded once, and everything is measured with them, the headline first.

1. Passes of both models over 1 to 9 tokens beside the machine's ceilings (the record of benchmarks/roofline.py).
2. Baseline, model and ngram at k = 4 and 6, greedy and at temperature 0.8, `generate`, and assisted generation at
   k = 4: one measurement, arms in turns. Its seconds are written before texts are checked and costs are explained
   (the record of compare.py, and that of benchmarks/peers.py for the arms that have a peer).
3. The kernels that take most of a target step and of a round.

    python -m benchmarks.gpu.one_size --target lab:8b:v128256 --name gpu-8b
    python -m benchmarks.gpu.one_size --target lab:20m --device cpu --dtype float32 --limit 1

Ctrl-C keeps the prompts that all arms have finished; their texts are then not checked. Exit code 1 if a text is wrong.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys
from dataclasses import dataclass, replace

from transformers.utils import logging as transformers_logging

from benchmarks import common, peers, peers_page, roofline
from draft_models import ModelDrafter, NgramDrafter
from speclab.cli import flags, parsing
from speclab.core.rounds import Drafter
from speclab.drafts.select import check_kind, check_prompts, drafter_name
from speclab.lab import comparison
from speclab.lab.harness import Measurement, measure
from speclab.lab.output_checks import exit_code, judge, judge_greedy, to_judge
from speclab.lab.padded_pair import padded_kinds
from speclab.lab.run_config import RunConfig
from speclab.lab.tracing.profiling import ArmProfile, most_expensive
from speclab.models.backends.cuda_graphs import GraphedModel
from speclab.models.cached import CachedModel
from speclab.models.padding import is_lab_size
from speclab.present import first_screen
from speclab.present.tables import Block, Cell, Heading, Table
from speclab.records import files
from speclab.records.runs import ComparisonRun
from speclab.records.samples import BASELINE, GENERATE, Arm
from speclab.system import terminal
from speclab.system.errors import reports_problems
from speclab.system.files import check_writable, write_whole
from speclab.system.terminal import note

WIDTHS = list(range(1, 10))
LENGTHS, TEMPERATURES = [4, 6], [0.0, 0.8]
ASSISTED = 4  # the length at which the library's assisted generation runs, too


# --- passes -----------------------------------------------------------------------------------------------------------


def of_benchmark(args: argparse.Namespace, benchmark: str) -> argparse.Namespace:
    """The flags of another record of this run."""
    return argparse.Namespace(**vars(args) | {"benchmark": benchmark})


def models_of(config: RunConfig) -> list[tuple[roofline.Role, str, CachedModel]]:
    """The target, and the draft model."""
    drafts = [(name, d.draft) for name, d in config.drafters.items() if isinstance(d, ModelDrafter)]
    return [("target", config.setup.target_name, config.setup.target), *(("draft", *draft) for draft in drafts)]


def forget_graphs(config: RunConfig) -> None:
    """What is measured next announces its own widths. The passes had one for each width."""
    for _, _, cached in models_of(config):
        if isinstance(cached.fast, GraphedModel):
            cached.fast.forget()


def measure_passes(args: argparse.Namespace, config: RunConfig) -> None:
    """Write the record of the passes."""
    args = of_benchmark(args, "roofline")
    ceilings: roofline.Ceilings = {}
    measured: list[roofline.ModelPasses] = []
    block = roofline.measure_models(args, config.setup, models_of(config), ceilings, measured)
    fields = common.head_of(args, config.setup)
    fields["settings"] |= {name: getattr(args, name) for name in ("widths", "context", "repeats")}
    fields["settings"] |= {"targets": [config.setup.target_name]}
    run = roofline.RooflineRun(**fields, block_bytes=block, ceilings=ceilings, models=measured)
    common.finish(args, run, roofline.page)
    forget_graphs(config)


# --- the one measurement ----------------------------------------------------------------------------------------------


def peer_arms(config: RunConfig) -> tuple[list[Arm], Arm]:
    """The arms that the peers' record holds, and the one that only it holds."""
    draft = next(name for name in config.drafters if name != "ngram")
    model, assisted = Arm(config.method(draft), draft, ASSISTED), Arm("assisted", draft, ASSISTED)
    return [BASELINE, GENERATE, model, assisted], assisted


def write_comparison(args: argparse.Namespace, run: ComparisonRun) -> None:
    """The record and its page, as compare.py writes them."""
    path = args.out_dir / "results" / f"{args.name}.json"
    write_whole(path, files.to_json(run))
    write_whole(path.with_suffix(".md"), terminal.harmless(first_screen.page(run, args.name)))


def write_peers(args: argparse.Namespace, config: RunConfig, measured: Measurement, checked: bool) -> None:
    """The greedy samples of the arms that have a peer. checked: say whether texts agree"""
    args = of_benchmark(args, "peers")
    arms, _ = peer_arms(config)
    raw = [peers.timing(s) for s in measured.samples if s.arm in arms and s.temperature == 0]
    if not raw:
        return
    fields = common.head_of(args, config.setup) | {"interrupted": measured.interrupted}
    fields["settings"] |= {
        "draft": next(iter(config.drafters)),
        "draft_lengths": [ASSISTED],
        "max_new_tokens": config.max_new_tokens,
        "repeats": config.repeats,
        "n_prompts": len(measured.of(BASELINE, 0.0)),
        "prompts_sha256": files.fingerprint([prompt.text for prompt in measured.prompts]),
    }
    correctness = [judge_greedy(measured, arm) for arm in arms[1:]] if checked else []
    run = peers_page.PeersRun(**fields, models=config.models(), correctness=correctness, raw=raw)
    common.write(args, run, peers_page.page)


def measure_arms(args: argparse.Namespace, config: RunConfig) -> Measurement:
    """Write seconds and counts first; then check, explain and write again. An interrupted run is not checked."""
    _, assisted = peer_arms(config)
    arms, bench = [*config.with_plain(), assisted], config.bench()
    instruments = config.instruments(config.arms())
    everything = measure(bench, arms, config.temperatures, config.prompts, config.repeats, instruments, args.name)
    measured = replace(everything, samples=[s for s in everything.samples if s.arm != assisted])
    measured.unchecked = list(to_judge(measured))
    write_comparison(args, comparison.comparison_record(config, measured, {}))
    write_peers(args, config, everything, checked=False)
    if measured.interrupted:
        return measured
    judge(measured)
    run, _ = comparison.explain(config, measured)
    write_comparison(args, run)
    write_peers(args, config, everything, checked=not measured.interrupted)
    terminal.say(first_screen.screen(run))
    return measured


# --- the profile ------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class ProfileRun(common.BenchmarkRun):
    """The most expensive kernels of a step and of a round."""

    arms: list[ArmProfile]


def profile_page(run: ProfileRun) -> list[Block]:
    """Everything a reader gets, from the record alone."""
    blocks = common.begin("The most expensive kernels", run)
    for arm in run.arms:
        what = "a step of the baseline" if arm.arm == "baseline" else f"a round of {arm.arm}"
        total = f"{arm.seconds / arm.n * 1e6:.0f} us in kernels"
        blocks += [Heading(f"In {what}, {total}"), Table(arm.kernels, cells_of(arm))]
    return blocks


def cells_of(arm: ArmProfile) -> dict[str, Cell]:
    """The columns of its kernels, for one step or round."""
    return {
        "kernel": lambda kernel: kernel.name[:70].replace("|", "/"),
        "calls": lambda kernel: f"{kernel.calls / arm.n:.1f}",
        "us": lambda kernel: f"{kernel.seconds / arm.n * 1e6:.1f}",
        "share": lambda kernel: f"{kernel.seconds / arm.seconds:.0%}" if arm.seconds else "-",
    }


def measure_profile(args: argparse.Namespace, config: RunConfig) -> None:
    """Write the record of the kernels."""
    args = of_benchmark(args, "profile")
    forget_graphs(config)
    run = ProfileRun(**common.head_of(args, config.setup), arms=most_expensive(config))
    common.finish(args, run, profile_page)


# --- the command ------------------------------------------------------------------------------------------------------


def make_parser() -> parsing.Parser:
    """The flags."""
    parser = parsing.make_parser(__doc__)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("draft")
    group.add_argument("--draft", metavar="KIND", help="(default: the lab's, padded to a tenth of a padded target)")
    common.add_result_flags(parser, "")
    parser.set_defaults(limit=2, max_new_tokens=64, widths=WIDTHS, context=256, repeats=15)
    return parser


def load(args: argparse.Namespace) -> RunConfig:
    """Target, draft and prompts, once."""
    args.target = common.target_name(args.target)
    if args.draft is None:
        args.draft = padded_kinds(["model"], args.target)[0] if is_lab_size(args.target) else "model"
    check_kind(args.draft)
    for ending in ("", "-roofline", "-peers", "-profile"):
        check_writable(args.out_dir / "results" / f"{args.name}{ending}.json", "--out-dir")
    setup, prompts = flags.load(args, temperature=0.0)
    drafter = common.model_drafter(args.draft, setup, args.seed, "the library's assistant must be a model")
    drafters: dict[str, Drafter] = {drafter_name(args.draft): drafter, "ngram": NgramDrafter()}
    check_prompts(setup.target, drafters.values(), prompts, args.max_new_tokens)
    room = setup.target.max_length
    args.context = args.context if room is None else min(args.context, room - args.widths[-1])
    transformers_logging.set_verbosity_error()  # its advice on `generate` would fill the log
    return RunConfig(setup, drafters, prompts, LENGTHS, TEMPERATURES, args.max_new_tokens, 1, args.seed)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """The command.  -> exit code"""
    args = make_parser().parse_args(argv)
    config = load(args)
    note("\n".join([config.setup.describe(), *(f"model   {line}" for line in config.models().values())]))
    measure_passes(args, config)
    measured = measure_arms(args, config)
    if not measured.interrupted:
        measure_profile(args, config)
    return exit_code(measured)


if __name__ == "__main__":
    sys.exit(main())
