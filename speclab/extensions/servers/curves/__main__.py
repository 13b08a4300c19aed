"""Acceptance curves of drafts that are wrong on purpose, measured on the lab's pair (docs/acceptance-curves.md).

    python -m speclab.extensions.servers.curves
    python -m speclab.extensions.servers.curves --limit 1       # one prompt of each kind: a try in a minute

What comes out: a table, a record, a page and a picture. They hold counts and no times, so a busy machine changes
nothing; all of it takes ten minutes on one core.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys

from speclab.cli import flags, parsing
from speclab.cli.output import Output
from speclab.extensions.servers.curves import curve_views, measuring
from speclab.extensions.servers.curves.curve_record import CurveEntry, CurvesRun
from speclab.lab.harness import kept_when_stopped
from speclab.models import loading, prompts
from speclab.models.setup import load_setup
from speclab.system.errors import reports_problems
from speclab.system.files import write_all
from speclab.system.terminal import say


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Measure, print and write.  -> exit code"""
    args = make_parser().parse_args(argv)
    output = Output(args, f"{args.name}-curves")
    output.check()
    setup = load_setup(loading.LAB_TARGET, threads=args.threads, engine="eager")
    found = prompts.first_of_each_kind(prompts.encode(prompts.standard(), setup.tokenizer), args.limit)
    lab = measuring.Lab(setup, found, args.max_new_tokens, args.seed)
    curves: list[CurveEntry] = []
    with kept_when_stopped(lambda: "what is measured is kept" if curves else "") as stops:
        curves.extend(measuring.measure(lab))
    run = CurvesRun(schema_version=2, interrupted=bool(stops), curves=curves, **lab.facts())
    picture = functools.partial(curve_views.picture, run, output.plots, output.name)
    page = functools.partial(curve_views.page, run, f"../plots/{output.name}.png")
    say(curve_views.text(run))
    write_all([*output.writes(run, page), *[picture] * (not stops)])  # the picture shows all curves
    if stops and not isinstance(stops[0], KeyboardInterrupt):
        raise stops[0]
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags."""
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.curves")
    group = parser.add_argument_group("text")
    group.add_argument(
        "--limit", type=parsing.at_least(0), default=0, metavar="N", help="prompts of each kind (default: 0, all)"
    )
    group.add_argument(
        "--max-new-tokens", type=parsing.at_least(8), default=64, metavar="N", help="tokens per prompt (default: 64)"
    )
    group.add_argument("--seed", type=parsing.seed, default=0, metavar="N", help="of damage and samples (default: 0)")
    group.add_argument("--threads", type=parsing.at_least(1), metavar="N", help="of the CPU (default: one per core)")
    flags.add_output_flags(parser.add_argument_group("results"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
