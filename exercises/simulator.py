"""A simulation of decoding on text with easy and hard stretches, for exercise 6. No model and no clock.

    python -m exercises.simulator                        # every fixed draft length, then your rule
    python -m exercises.simulator --impl solutions

What comes out: target steps per token, lower is better. Plain decoding is 1; "always k = 0" decodes plainly too, but in
rounds, and pays each round's overhead. The places where the draft would be right come from seeded dice, the same for
every rule, so a score is a number and no measurement.
"""

import importlib
import operator
import random
import sys
from collections.abc import Callable

from exercises import Todo
from speclab.cli import parsing
from speclab.learner.guard import PACKAGES
from speclab.system.errors import Problem, reports_problems

Rule = Callable[[int, int, int, int], int]  # k, n_drafted, n_accepted, longest -> the next k

LONGEST = 16
FIRST = 4  # tokens of the first draft
N_TOKENS = 4000  # of one text
EASY, HARD = 0.97, 0.10  # how often the draft is right in a stretch
STRETCH = (40, 120)  # tokens, shortest and longest
SEEDS = (0, 1, 2)  # three texts
DRAFT_COST, OVERHEAD = 0.12, 0.05  # of a drafted token, and of a round, in target steps
SCORE = 0.73  # target steps per token that an adaptive rule is asked to reach


def verify_cost(width: int) -> float:
    """A target pass over `width` tokens, in target steps."""
    return 1 + 0.03 * (width - 1)


def text(seed: int) -> list[bool]:
    """Whether the draft would be right, place by place: easy and hard stretches in turns."""
    dice, right, easy = random.Random(seed), [], True
    while len(right) < N_TOKENS:
        accuracy = EASY if easy else HARD
        right += [dice.random() < accuracy for _ in range(dice.randint(*STRETCH))]
        easy = not easy
    return right[:N_TOKENS]


def steps_per_token(rule: Rule, right: list[bool], first: int = FIRST) -> float:
    """Decode one text by rounds whose lengths the rule chooses.  -> target steps per token

    ValueError where the rule answers anything but a whole number from 0 to LONGEST.
    """
    place, k, cost = 0, first, 0.0
    while place < len(right):
        n_drafted = min(k, len(right) - place - 1)  # a round always adds one token of the target's own
        n_accepted = 0
        while n_accepted < n_drafted and right[place + n_accepted]:
            n_accepted += 1
        cost += n_drafted * DRAFT_COST + verify_cost(n_drafted + 1) + OVERHEAD
        place += n_accepted + 1
        answer = rule(k, n_drafted, n_accepted, LONGEST)
        try:
            k = operator.index(answer)
        except TypeError:
            k = -1
        if not 0 <= k <= LONGEST:
            raise ValueError(f"the rule answered {answer!r}, not a whole number from 0 to {LONGEST}")
    return cost / len(right)


def score(rule: Rule, first: int = FIRST) -> float:
    """Mean over the three texts."""
    return sum(steps_per_token(rule, text(seed), first) for seed in SEEDS) / len(SEEDS)


def fixed(k: int) -> float:
    """The score of always drafting k."""
    return score(lambda *_: k, first=k)


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Print the scores.  -> exit code"""
    parser = parsing.make_parser(__doc__)
    parser.add_argument("--impl", choices=PACKAGES, default="exercises", help="whose rule")
    args = parser.parse_args(argv)
    print("a simulation: target steps per token, lower is better\n")
    for k in range(LONGEST + 1):
        print(f"  always k = {k:2d}   {fixed(k):.3f}" + "   plain decoding, 1, and a round's overhead" * (k == 0))
    rule = importlib.import_module(f"{args.impl}.ex06_draft_length").next_draft_length
    try:
        own = f"{score(rule):.3f}"
    except Todo:
        own = "still to be written: exercises/ex06_draft_length.py"
    except ValueError as error:
        raise Problem(f"{error}; type: python check.py 6") from None
    print(f"\n  your rule       {own}\n  asked for       {SCORE:.3f} or less")
    return 0


if __name__ == "__main__":
    sys.exit(main())
