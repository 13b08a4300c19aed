"""Sweeps: change one setting, keep the rest still, and see what the speedup and its predictions do.

    python -m speclab.extensions.sweeps draft-length     # k from 0 to 16
    python -m speclab.extensions.sweeps acceptance       # how often the draft is right, at a draft's price and for free
    python -m speclab.extensions.sweeps temperature      # 0 to 1.2
    python -m speclab.extensions.sweeps output-length    # 8 to 512 new tokens, reading the prompt included
    python -m speclab.extensions.sweeps context          # prompts of 128 to 1,800 tokens
    python -m speclab.extensions.sweeps draft-kind       # which draft for which kind of text
    python -m speclab.extensions.sweeps mismatch         # drafts ever less like the target, down to random weights
    python -m speclab.extensions.sweeps definitions      # four numbers that are called acceptance, fed to the formula
    python -m speclab.extensions.sweeps all              # all of them, one after the other

What comes out: a table, its predictions beside the measurement, a run record (JSON), a page in Markdown, and a picture.
A sweep takes one to five minutes on two cores; --limit 1 makes it shorter. See docs/why-not-faster.md. Exit code 1 if a
greedy difference is not a near-tie, or a sampled row fails its statistics.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys
import time
from typing import Any

from speclab.cli import compare, flags, parsing
from speclab.cli.output import Output, show
from speclab.drafts import registry
from speclab.extensions.sweeps import sweep_views, sweeps
from speclab.extensions.sweeps.sweep_flags import ALL, NAMES, make_parser
from speclab.extensions.sweeps.sweep_record import SweepRun
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import note

ACCURACIES = [f"dial:{i / 10:g}" for i in range(11)]
FREE_ORACLES = [f"{dial}:free" for dial in ACCURACIES]
# The defaults of what the command line leaves open: those of every sweep, and those that one sweep has of its own.
DEFAULTS = {
    "draft": "model,ngram",
    "limit": 2,
    "max_new_tokens": 64,
    "repeats": 1,
    "draft_length": "4",
    "temperature": "0",
}
OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "draft-length": {"draft_length": ",".join(map(str, range(17)))},
    "acceptance": {"draft_length": "2", "draft": ",".join([*FREE_ORACLES, *ACCURACIES])},
    "temperature": {"temperature": "0,0.2,0.4,0.6,0.8,1,1.2"},
    "output-length": {"max_new_tokens": 512},
    "draft-kind": {"draft": "model,ngram,dial:0.5", "limit": 4},
    "mismatch": {"draft": "model"},
    "definitions": {"draft_length": "1,2,4,8"},
}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run one sweep, or all of them, one after the other.  -> exit code"""
    args = make_parser(__doc__).parse_args(argv)
    names = list(NAMES) if args.sweep == ALL else [args.sweep]
    if len(names) > 1 and args.json:
        raise UsageProblem("--json takes one record; run the sweeps one by one, or read results/ afterwards")
    if len(names) > 1 and args.prompts == "-":
        raise UsageProblem("standard input can be read once only; give --prompts a file")
    done: list[SweepRun] = []
    code, start = 0, time.monotonic()
    for place, name in enumerate(names, 1):
        if len(names) > 1:
            spent = time.monotonic() - start
            left = f", about {spent / (place - 1) * (len(names) - place + 1) / 60:.0f} min left" if done else ""
            note(f"sweep {place} of {len(names)}: {name}{left}")
        code = _run(filled(args, name), name, done) or code
        if done[-1].interrupted:
            break
    return code


def filled(args: argparse.Namespace, name: str) -> argparse.Namespace:
    """Return the arguments, with the defaults of this sweep wherever the command line gives none."""
    asked = argparse.Namespace(**vars(args) | {"draft": _drafts(name, args.draft)})
    asked = flags.with_defaults(asked, DEFAULTS | OWN_DEFAULTS.get(name, {}))
    asked.has_typed_lengths = args.draft_length is not None
    return asked


def _drafts(name: str, asked: str | None) -> str | None:
    """Read `--draft` for a sweep: acceptance needs an oracle draft for every model, at that model's cost."""
    models = [kind for kind in (asked or "").split(",") if kind and not _has_no_cost(kind)]
    if name != "acceptance" or not models:
        return asked
    return ",".join([*FREE_ORACLES, *(f"{dial}:{model}" for model in models for dial in ACCURACIES)])


def _has_no_cost(kind: str) -> bool:
    """Tell whether an oracle draft cannot be given the cost of this draft, because it is a lookup or an oracle draft
    itself."""
    choice = registry.read(kind)
    return choice.is_lookup or choice.only_greedy is not None


def _run(args: argparse.Namespace, name: str, done: list[SweepRun]) -> int:
    """Measure one sweep, show and write it; its record is added to `done`.  -> exit code"""
    config, output = _prepare(args, name)
    with output.redirected():
        config.look_at_cores()
        record, measured = sweeps.measure_sweep(config, name)
        done.append(record)
        text = functools.partial(sweep_views.text, record)
        page = functools.partial(sweep_views.page, record, f"../plots/{output.name}.png")
        picture = functools.partial(sweep_views.picture, record, output.plots, output.name)
        show(output, record, [text], page, [picture])
    return exit_code(measured)  # raises what ended the run early, if that can be mended


def _prepare(args: argparse.Namespace, name: str) -> tuple[RunConfig, Output]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    lengths, auto = parsing.lengths(args.draft_length, "-k")
    if auto:
        raise UsageProblem("a sweep has no -k auto; give -k numbers")
    temperatures = parsing.numbers(args.temperature, float, 0, "--temperature")
    compare.check_tokens(args)
    output = Output(args, f"{args.name}-sweep-{name}")
    output.check()
    kinds = [kind for kind in args.draft.split(",") if kind]
    choices = compare.read_drafts(kinds, temperatures)
    registry.check_chains("a sweep", choices)
    config = compare.load(args, choices, lengths, temperatures)
    return config, output


if __name__ == "__main__":
    sys.exit(main())
