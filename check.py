#!/usr/bin/env python3
"""How far are you with the exercises, and what is wrong? Start with docs/chapters/README.md.

What comes out: a line per exercise, or per check of one exercise, and at the end the next thing to type.

    python check.py                    # all exercises: todo, 2 of 4, or done
    python check.py 3                  # the checks of exercise 3, one line each
    python check.py 3 --traceback      # with pytest's own report of every failure
    python check.py 3 --hint           # a hint for the first unfinished function; --hint 2 and 3 say more
    python check.py --impl solutions   # the same for the solutions

Underneath it is pytest (tests/exercises/), in a process of its own, which is ended together with all that your code has
started. Exit code 0 when nothing is wrong: a function that is still open is not wrong. Exit code 1 when a check fails.
"""

if __name__ == "__main__":
    from speclab.system import startup  # noqa: F401 - Ctrl-C during the imports below is one line

import sys

from speclab.cli import parsing
from speclab.learner import checklist, runner
from speclab.learner.guard import PACKAGES
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import say


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the checks and say what became of them.  -> exit code"""
    known = checklist.exercises()
    numbers = [exercise.number for exercise in known]
    parser = parsing.make_parser(__doc__)
    parser.add_argument("exercise", nargs="?", type=int, choices=numbers, help="its number (default: all)")
    parser.add_argument(
        "--hint", nargs="?", type=int, choices=(1, 2, 3), const=1, metavar="1|2|3", help="hints up to this one"
    )
    parser.add_argument("--traceback", action="store_true", help="pytest's own report of every failure")
    parser.add_argument("--impl", choices=PACKAGES, default="exercises", help="whose code to check")
    args = parser.parse_args(argv)
    if args.exercise is None and (args.hint or args.traceback):
        flag = "--hint" if args.hint else "--traceback"
        raise UsageProblem(f"{flag} needs an exercise; type: {checklist.check_command('3', flag)}")
    chosen = [exercise for exercise in known if args.exercise in (None, exercise.number)]
    runner.run_checks(args.impl, chosen)
    if args.hint:
        say(checklist.hint_text(chosen[0], args.hint))
        return 0
    say(checklist.summary(chosen) if args.exercise is None else checklist.report(chosen[0], args.traceback))
    say("\n" + checklist.next_step(chosen, args.impl))
    return int(any(exercise.failed for exercise in chosen))


if __name__ == "__main__":
    sys.exit(main())
