"""Batches: decode several texts side by side, and see up to how many at a time a draft pays.

    python -m speclab.extensions.batch                      # 1, 2, 4, 8 and 16 texts at a time
    python -m speclab.extensions.batch -k 2,4,auto -B 1,4   # -k auto: on one budget of all rows

All prompts are decoded so many at a time, token by token and with every draft at every length. A row whose text has
ended takes the next prompt. What comes out: whether the texts are right, the speed of each batch beside what was
expected of it, a record, a page and a picture (docs/which-method.md). Exit code 1 if a text is wrong.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import functools
import sys

from speclab.cli import compare, flags, parsing
from speclab.cli.compare import Output, show
from speclab.drafts import registry
from speclab.extensions.batch import shown
from speclab.extensions.batch.decoding.batched_model import check_batch
from speclab.extensions.batch.decoding.budget import RULES, Budgeted
from speclab.extensions.batch.decoding.drafters import check_drafter
from speclab.extensions.batch.measure import compare_batches
from speclab.lab.comparison import RunConfig, exit_code
from speclab.present import pictures
from speclab.present.screen import screen
from speclab.records.rows import AUTO
from speclab.system.errors import reports_problems
from speclab.system.terminal import say

# What the command line leaves open. limit 0: all prompts, so that a batch of 16 holds no copies.
SIZES = {
    "default": {"limit": 0, "max_new_tokens": 48, "draft_length": "2,4,6"},
    "quick": {"limit": 2, "max_new_tokens": 32, "draft_length": "2,4"},
}


@reports_problems
def main(argv: list[str] | None = None) -> int:
    args = make_parser().parse_args(argv)
    args = flags.with_defaults(args, SIZES["quick" if args.quick else "default"])
    config, output = _prepare(args)
    say(compare.head(config))
    record, measured = compare_batches(config, args.sizes, args.load)
    text = functools.partial(screen, record, where=shown.lines(record))
    page = functools.partial(shown.page, record, output.name)
    show(output, record, text, page, pictures.comparison(record, output.plots, output.name))
    return exit_code(measured)  # raises what ended the run early, if that can be mended


def make_parser() -> argparse.ArgumentParser:
    parser = parsing.make_parser(__doc__ or "", "python -m speclab.extensions.batch")
    flags.add_shared_flags(parser, spread=False)
    group = parser.add_argument_group("experiment")
    sizes = "texts that are decoded side by side (default: %(default)s)"
    read = functools.partial(parsing.numbers, kind=int, smallest=1, flag="-B", largest=1024)
    group.add_argument("-B", "--sizes", type=read, metavar="B,B", default="1,2,4,8,16", help=sizes)
    flags.add_draft_flag(group, "model,ngram", "as of compare.py; several with commas (default: %(default)s)")
    lengths = "tokens per draft, or auto, each, published: chosen (default: 2,4,6)"
    group.add_argument("-k", "--draft-length", metavar="K", help=lengths)
    load = "texts come at random: this share of what plain decoding could serve"
    group.add_argument("--load", type=parsing.positive, metavar="SHARE", help=load)
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    group.add_argument("--quick", action="store_true", help="2 prompts of a kind, 32 tokens, k = 2, 4")
    flags.add_output_flags(parser.add_argument_group("results"))
    parser.set_defaults(max_new_tokens=None, repeats=1)
    return parser


def _prepare(args: argparse.Namespace) -> tuple[RunConfig, Output]:
    """Load and check everything; a Problem with the flags is raised before anything is timed."""
    words = [word.strip() for word in args.draft_length.split(",")]
    numbers = (parsing.AUTO if word in RULES else word for word in words)
    lengths, args.auto = parsing.lengths(",".join(numbers), "-k")
    flags.sampling_from(args)
    registry.check_chains("a batch", registry.read_all(filter(None, args.draft.split(","))))
    config, output = compare.prepare(args, f"{args.name}-batch", lengths, [args.temperature])
    for name in [name for name in config.drafters if name.endswith(AUTO)]:
        del config.drafters[name]
        base = name.removesuffix(AUTO)
        for rule in (word for word in words if word in RULES):
            named = f"{base} {rule}".removesuffix(AUTO) + AUTO
            config.drafters[named] = Budgeted(config.drafters[base], base, rule)
    check_batch(config.setup.target)
    for name, drafter in config.drafters.items():
        check_drafter(name, drafter)
    return config, output


if __name__ == "__main__":
    sys.exit(main())
