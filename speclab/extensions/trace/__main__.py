"""Look inside a decoding: every round of a prompt, as a page for the browser or as lines in the terminal.

    python -m speclab.extensions.trace                        # every round of the first standard prompt, here
    python -m speclab.extensions.trace trace.html             # the same as a page
    python -m speclab.extensions.trace trace.html --prompt "def read_config(path):" --draft ngram --temperature 0.8
    python -m speclab.extensions.trace shapes                 # the shapes of one round's tensors; nothing is decoded

What comes out: for each round its phases, the drafted tokens, what the accept rule did with each of them and on which
numbers that rests, beside the baseline on the same prompt. One run with timers in it is a picture, no measurement.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the slow imports below is one line

import argparse
import sys
from pathlib import Path

from speclab.cli import flags, parsing
from speclab.extensions.trace import follow, page, shapes, trace_terminal
from speclab.lab.instruments import LoopFunctions
from speclab.system.errors import reports_problems
from speclab.system.files import check_writable, shown, write_whole
from speclab.system.terminal import note

PROG = "python -m speclab.extensions.trace"
SHAPES = "shapes"
DASH = Path("-")  # in place of a file: the terminal
# Fields of LoopFunctions that may be others: a page shows the token rule's tests, and the phases of the lab's loop.
SHOWN = ("accept", "keeps", "adapt")


def parse(words: list[str]) -> argparse.Namespace:
    """Return the flags of the trace or of the shapes. `uses` names the fields of LoopFunctions that take part there."""
    name, rest = (SHAPES, words[1:]) if words[:1] == [SHAPES] else ("", words)
    parser = parsing.make_parser(__doc__ or "", f"{PROG} {name}".rstrip())
    if not name:
        about = "write an HTML page; - prints lines in the terminal (default: -)"
        parser.add_argument("file", nargs="?", type=parsing.some_path, default=DASH, metavar="FILE", help=about)
    flags.add_shared_flags(parser)
    group = parser.add_argument_group("draft")
    flags.add_draft_flag(group)
    length = parsing.at_least(0) if name else parsing.length_or_auto
    about = f"tokens per draft{'' if name else ', or auto: chosen in every round'} (default: %(default)s)"
    group.add_argument("-k", "--draft-length", type=length, default=4, metavar="K", help=about)
    parser.set_defaults(temperature=0.0, ignore_eos=False, shapes=bool(name), uses=(SHAPES,) if name else SHOWN)
    if not name:
        flags.add_decoding_flags(parser)
    return parser.parse_args(rest)


@reports_problems
def main(argv: list[str] | None = None, functions: LoopFunctions | None = None) -> int:
    """Run the command.  -> exit code. functions: what takes the place of parts of the loop; None: nothing."""
    args = parse(sys.argv[1:] if argv is None else argv)
    if args.shapes:
        return shapes.run(args, functions)
    if args.file != DASH:
        check_writable(args.file, "FILE")
    found = follow.load(args, functions)
    trace = follow.follow(found, found.draft_length)
    if args.file == DASH:
        print(trace_terminal.terminal(trace), end="")
    else:
        write_whole(args.file, page.render(page.of_trace(trace)))
        note(f"wrote {shown(args.file)}; open it in a browser")
    return 0


if __name__ == "__main__":
    sys.exit(main())
