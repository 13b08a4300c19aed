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

from speclab.cli import flags, parsing
from speclab.extensions.trace import decoding, follow, profile, report, trace_terminal
from speclab.extensions.trace.dials import own_page, page
from speclab.extensions.trace.shapes import shape_views
from speclab.extensions.trace.trace_flags import OTHERS, make_parser
from speclab.lab.instruments import LoopFunctions
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.files import shown, write_whole
from speclab.system.terminal import note, wants_colour

OWN = {"profile": profile.run, "report": report.run}  # they run the lab's own functions


def parse(words: list[str]) -> argparse.Namespace:
    """Return the flags of the trace or of the shapes. `uses` names the fields of LoopFunctions that take part there."""
    name, rest = parsing.subcommand(words, OTHERS)
    if name in OWN:
        raise UsageProblem(f"{name} runs the lab's own functions; leave it out, or choose shapes")
    return (OTHERS[name]() if name else make_parser(__doc__)).parse_args(rest)


@reports_problems
def main(argv: list[str] | None = None, functions: LoopFunctions | None = None) -> int:
    """Run the command, or the one that the first word names.  -> exit code

    functions: what takes the place of parts of the loop; None: nothing.
    """
    words = sys.argv[1:] if argv is None else argv
    name, rest = parsing.subcommand(words, OTHERS)
    if name in OWN:
        return OWN[name](OTHERS[name]().parse_args(rest))
    args = parse(words)
    if name:
        return shape_views.run(args, functions)
    flags.check_file(args.file, "FILE")
    found = decoding.load(args, functions)
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
