"""How far are you with the exercises, and what is wrong? Start with docs/chapters/README.md.

What comes out: a line per exercise, or per check of one exercise, and at the end the next thing to type.

    python check.py                    # all exercises: todo, 2 of 4, or done
    python check.py 3                  # the checks of exercise 3, one line each
    python check.py 3 --hint           # a hint for the first unfinished function; --hint 2 and 3 say more
    python check.py --impl solutions   # the same for the solutions

With --run, the functions that pass their checks then decide in one of the lab's own scripts:

    python check.py --run optimized_speculative.py               # every finished exercise that this run can use
    python check.py 2,3 --run optimized_speculative.py --stream  # these only; what follows --run is the script's
    python check.py 0 --run baseline_autoregressive.py           # exercise 0 rates the run
    python check.py 4 --run compare.py --temperature 0.8         # exercise 4 decides the sampled rows, or exercise 10
    python check.py 9 --run optimized_speculative.py -k auto     # exercise 9 decides when a draft stops
    python check.py 1 --run trace shapes                         # a command of an extension that takes functions

Exit code 1 when a check fails, or a text is not the baseline's. A function that is still open is not wrong.
"""

import argparse
import sys

from exercises.guard import PACKAGES
from speclab.cli import parsing
from speclab.extensions.learner import checks
from speclab.system.errors import UsageProblem, reports_problems
from speclab.system.terminal import say


@reports_problems
def main(argv: list[str] | None = None) -> int:
    known = {str(exercise.number): exercise for exercise in checks.exercises()}
    parser = parsing.make_parser(__doc__, "check.py")
    add = parser.add_argument
    add("exercises", nargs="?", metavar="N", help="exercises by number, as in 3 or 2,3 (default: all)")
    add("--hint", nargs="?", type=int, choices=(1, 2, 3), const=1, metavar="1|2|3", help="hints up to this one")
    add("--impl", choices=PACKAGES, default="exercises", help="whose code")
    add("--run", nargs=argparse.REMAINDER, metavar="SCRIPT", help="a script of the lab, then the script's own flags")
    args = parser.parse_args(argv)
    words = known.keys() if args.exercises is None else args.exercises.split(",")
    if not known.keys() >= {*words}:
        parser.error(f"{args.exercises[:99]!r}: choose from {', '.join(known)}, as in 3 or 2,3")
    chosen = [exercise for number, exercise in known.items() if number in words]
    if args.hint and (len(chosen) != 1 or args.run is not None):
        raise UsageProblem(f"--hint needs one exercise, and no --run; type: {checks.check_command('3', '--hint')}")
    if args.run is not None:
        from speclab.extensions.learner import run  # here: it loads torch, and the checks answer at once

        return run.run(args.impl, [one.number for one in chosen] if args.exercises else [], args.run)
    checks.run_checks(args.impl, chosen)
    if args.hint:
        say(checks.hint_text(chosen[0], args.hint))
        return 0
    say(checks.report(chosen[0]) if len(chosen) == 1 else checks.summary(chosen))
    say("\n" + checks.next_step(chosen, args.impl))
    return int(any(exercise.failed for exercise in chosen))


if __name__ == "__main__":
    sys.exit(main())
