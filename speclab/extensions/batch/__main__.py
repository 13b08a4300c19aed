"""Batches: decode several texts side by side, and see up to how many at a time a draft pays.

    python -m speclab.extensions.batch                      # 1, 2, 4, 8 and 16 texts at a time
    python -m speclab.extensions.batch --quick -B 1,4       # fewer prompts, tokens and lengths
    python -m speclab.extensions.batch decode -B 8          # decode eight prompts side by side and print the texts
    python -m speclab.extensions.batch decode -B 8 --draft none    # the same token by token

All prompts are decoded so many at a time, token by token and with every draft at every length. A row whose text has
ended takes the next prompt. What comes out: whether the texts are right, the best draft length of each batch beside
what was expected of it, a run record (JSON), a page in Markdown, and a picture. See docs/which-method.md. Exit code 1
if a greedy difference is not a near-tie, or a sampled row fails its statistics.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys

from speclab.cli import compare, flags, parsing
from speclab.cli.compare import Output, show
from speclab.extensions.batch import batch_plots, batch_views, decode
from speclab.extensions.batch.batch_comparison import check, compare_batches
from speclab.extensions.batch.batch_flags import OTHERS, batch_sizes, make_parser
from speclab.lab.output_checks import exit_code
from speclab.lab.run_config import RunConfig
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import say

SIZE_FLAGS = ("limit", "max_new_tokens", "draft_length")
# What the command line leaves open. limit 0: all prompts, so that a batch of 16 holds no copies.
SIZES = {"default": (0, 48, "2,4,6"), "quick": (2, 32, "2,4"), "full": (0, 128, "2,4,6")}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Compare batches, or decode one.  -> exit code"""
    words = sys.argv[1:] if argv is None else argv
    name, rest = parsing.subcommand(words, OTHERS)
    if name:
        return decode.run(OTHERS[name]().parse_args(rest))
    args = filled(make_parser(__doc__).parse_args(words))
    config, output, sizes = _prepare(args)
    say(compare.head(config))
    record, measured = compare_batches(config, sizes)
    text = functools.partial(batch_views.text, record)
    page = functools.partial(batch_views.page, record, f"../plots/{output.name}.png")
    picture = functools.partial(batch_plots.picture, record, output.plots, output.name)
    show(output, record, text, page, [picture])
    return exit_code(measured)  # raises what ended the run early, if that can be mended


def filled(args: argparse.Namespace) -> argparse.Namespace:
    """The arguments, with the defaults of their size wherever the command line gives none."""
    size = "quick" if args.quick else "full" if args.full else "default"
    full = flags.with_defaults(args, dict(zip(SIZE_FLAGS, SIZES[size], strict=True)))
    full.has_typed_lengths = args.draft_length is not None
    return full


def _prepare(args: argparse.Namespace) -> tuple[RunConfig, Output, list[int]]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    sizes = batch_sizes(args.sizes)
    lengths, auto = parsing.lengths(args.draft_length, "-k")
    if auto:
        raise UsageProblem("-k auto chooses by the costs of one text, and a batch has other costs; give -k numbers")
    compare.check_tokens(args)
    flags.sampling_from(args)
    output = Output(args, f"{args.name}-batch")
    output.check()
    kinds = [kind for kind in args.draft.split(",") if kind]
    choices = compare.read_drafts(kinds, [args.temperature])
    config = compare.load(args, choices, lengths, [args.temperature])
    check(config)
    return config, output, sizes


if __name__ == "__main__":
    sys.exit(main())
