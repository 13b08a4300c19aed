"""The command line of compare.py: a comparison, shown and written down."""

import argparse
import functools

from speclab.cli import compare_config, compare_flags
from speclab.cli.measured import look_at_cores, show
from speclab.cli.output import Output, Step, View
from speclab.drafts.lengths import LONGEST
from speclab.lab import comparison, padded_pair
from speclab.lab.harness import Measurement, kept_when_stopped
from speclab.lab.instruments import LoopFunctions
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.models import memory
from speclab.present import first_screen, report
from speclab.present.pictures import plots
from speclab.records.runs import ComparisonRun
from speclab.system.errors import reports_problems
from speclab.system.files import shown
from speclab.system.terminal import note, say

WHY = "why is mine not faster? docs/why-not-faster.md"


@reports_problems
def run(docstring: str, argv: list[str] | None, functions: LoopFunctions | None = None) -> int:
    """Run compare.py.  -> exit code"""
    args = compare_flags.make_parser(docstring).parse_args(argv)
    size = compare_flags.size_of(args)
    args = compare_flags.filled(args, size)
    args.padded = compare_flags.wants_padded(args, size)
    return _run(args, functions)


# --- one run ----------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace, functions: LoopFunctions | None) -> int:
    """Make a comparison, show it and write it.  -> exit code"""
    config, output = compare_config.prepare(args, functions)
    config.log = output.begin_log()
    with output.redirected():
        look_at_cores(config)
        if not args.brief:
            say(compare_config.head(config))
        record, measured = _measure(args, config)
        text, page, pictures = _views(args, record, output)
        texts = [text]
        if args.verbose:
            texts.append(functools.partial(report.comparison, record, by_kind=True))
            texts.append(functools.partial(_bytes_of_rounds, config))
        code = show(output, record, texts, page, pictures)
    return max(code, *map(exit_code, measured))


def _measure(args: argparse.Namespace, config: RunConfig) -> tuple[ComparisonRun, list[Measurement]]:
    """Measure, and return the record and what it is made from."""
    run, measured = comparison.compare(config)
    if config.functions.look_at:
        config.functions.look_at(run, measured)
    if args.padded and not measured.interrupted:
        return run, [measured, *_measure_padded(args, config, run)]
    return run, [measured]


def _measure_padded(args: argparse.Namespace, config: RunConfig, run: ComparisonRun) -> list[Measurement]:
    """Put a short comparison of the padded pair into the record, where the machine can do one. -> the measurement"""
    size = padded_pair.size_for(config, run.bandwidth or 0.0)
    if size is None:
        note("no padded pair: reading its weights would take too long here, or they do not fit into memory")
        return []
    with kept_when_stopped(lambda: "the lab's pair is measured, the padded pair is not") as stops:
        second = padded_pair.second_config(config, size, args.draft.split(","))
        note(f"now a short run of the same comparison at another size: {', '.join(second.models().values())}")
        run.padded, padded_measurement = comparison.compare(second)
        return [padded_measurement]
    run.interrupted = isinstance(stops[0], KeyboardInterrupt)
    return []


def _views(args: argparse.Namespace, record: ComparisonRun, output: Output) -> tuple[View, View, list[Step]]:
    """Return the function that makes the text for the terminal and the page, and those that write the pictures."""
    partial, folder, name = functools.partial, output.plots, output.name
    where = f"everything else: {shown(output.result('.md'))}, or --verbose"
    text = partial(first_screen.screen, record, args.brief, [where, WHY])
    page = partial(first_screen.page, record, name)
    pictures: list[Step] = [*plots.comparison(record, folder, name)]
    if record.padded:
        pictures += plots.comparison(record.padded, folder, f"{name}-padded")
    return text, page, pictures


def _bytes_of_rounds(config: RunConfig) -> str:
    """Say how many bytes the rounds of the first model draft read, at the longest k and the longest prompt."""
    context = max(prompt.ids.shape[1] for prompt in config.prompts)
    drafts = [model.model for model in config.cached_models()[1:]]
    return memory.describe(
        config.setup.target.model, drafts[0] if drafts else None, max(config.draft_lengths, default=LONGEST), context
    )
