"""Look inside a decoding: every round of a prompt, as a page for the browser or as lines in the terminal.

    python -m speclab.extensions.trace                        # every round of the first standard prompt, here
    python -m speclab.extensions.trace trace.html             # the same as a page
    python -m speclab.extensions.trace trace.html --prompt "def read_config(path):" --draft ngram --temperature 0.8
    python -m speclab.extensions.trace shapes                 # the shapes of one round's tensors
    python -m speclab.extensions.trace profile trace.json     # a few rounds, kernel by kernel, for ui.perfetto.dev
    python -m speclab.extensions.trace report results/local.json --out report.html    # a comparison as one page

What comes out: for each round its phases, the drafted tokens, what the accept rule did with each of them and on which
numbers that rests, beside the baseline on the same prompt. One run with timers in it is a picture, no measurement.
Each of the other three has a help of its own: `python -m speclab.extensions.trace shapes --help`.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys

from speclab.cli import flags, no_effect, parsing
from speclab.extensions.trace import decoding, follow, profile, report, shape_views, trace_terminal
from speclab.extensions.trace.dials import own_page, page
from speclab.lab.instruments import LoopFunctions
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import shown, write_whole
from speclab.system.terminal import note, wants_colour

OTHERS = {"profile": profile.run, "report": report.run}
# Fields of LoopFunctions that may be others: a page shows the token rule's tests, and the phases of the lab's loop.
SHOWN = ("accept", "keeps", "adapt")


def parse(words: list[str]) -> argparse.Namespace:
    """The flags of the trace or of the shapes. `uses` names the fields of LoopFunctions that take part there."""
    if words and words[0] in OTHERS:
        raise UsageProblem(f"{words[0]} runs the lab's own functions; leave it out, or choose shapes")
    if words and words[0] == "shapes":
        return shape_views.parse(words[1:])
    parser = parsing.make_parser(__doc__ or "", decoding.PROG)
    parser.add_argument(
        "file",
        nargs="?",
        type=parsing.some_path,
        default=parsing.DASH,
        metavar="FILE",
        help="write an HTML page; - prints lines in the terminal (default: -)",
    )
    decoding.add_flags(parser, "[FILE]")
    decoding.add_temperature_flag(parser)
    parser.set_defaults(uses=SHOWN)
    return decoding.parse(parser, words)


@reports_problems
def main(argv: list[str] | None = None, functions: LoopFunctions | None = None) -> int:
    """The command, or the one that the first word names.  -> exit code

    functions: what takes the place of parts of the loop; None: nothing.
    """
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in OTHERS:
        return OTHERS[words[0]](words[1:])
    args = parse(words)
    if words and words[0] == "shapes":
        return shape_views.run(args, functions)
    flags.check_file(args.file, "FILE")
    found = decoding.load(args, functions)
    no_effect.note_flags(args, [args.temperature], found.setup.device)
    note("\n".join(found.head))
    if args.file == parsing.DASH:
        print(trace_terminal.terminal(follow.decoded(found, found.draft_length), wants_colour(sys.stdout)), end="")
    else:
        data = own_page.data(found, follow.decoded(found, found.draft_length))
        write_whole(args.file, page.render(data))
        note(f"wrote {shown(args.file)}; open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
