"""A simulation of decoding on text with easy and hard stretches, for exercise 6. No model and no clock.

    python -m exercises.simulator                        # every fixed draft length, then your rule
    python -m exercises.simulator --impl solutions

What comes out: target steps per token, lower is better. Plain decoding is 1; "always k = 0" decodes plainly too, but in
rounds, and pays each round's overhead. The positions where the draft would be right come from seeded dice, the same for
every rule, so a score is a number and no measurement. The last line is the bound: an oracle that knows in advance where
the draft will be right, and so the best length of every round. No rule can be better.
"""

import importlib
import operator
import random
import sys
from collections.abc import Callable

from exercises import Todo
from exercises.guard import PACKAGES
from speclab.cli import parsing
from speclab.system.errors import Problem, reports_problems

Rule = Callable[[int, int, int, int], int]  # k, n_drafted, n_accepted, longest -> the next k

LONGEST = 16
FIRST = 4  # tokens of the first draft
N_TOKENS = 4000  # of one text
EASY, HARD = 0.97, 0.10  # how often the draft is right in a stretch
STRETCH = (40, 120)  # tokens, shortest and longest
SEEDS = (0, 1, 2)  # three texts
DRAFT_COST, OVERHEAD = 0.12, 0.05  # of a drafted token, and of a round, in target steps
BRONZE = 0.842  # target steps per token: a good fixed length reaches it
SCORE = 0.73  # silver: an adaptive rule is asked to reach it, and no fixed length does


def verify_cost(width: int) -> float:
    """A target pass over `width` tokens, in target steps."""
    return 1 + 0.03 * (width - 1)


def text(seed: int) -> list[bool]:
    """Whether the draft would be right, position by position: easy and hard stretches in turns."""
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
    position, k, cost = 0, first, 0.0
    while position < len(right):
        n_drafted = min(k, len(right) - position - 1)  # a round always adds one token of the target's own
        n_accepted = 0
        while n_accepted < n_drafted and right[position + n_accepted]:
            n_accepted += 1
        cost += round_cost(n_drafted)
        position += n_accepted + 1
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


def round_cost(n_drafted: int) -> float:
    """Target steps of a round."""
    return n_drafted * DRAFT_COST + verify_cost(n_drafted + 1) + OVERHEAD


def oracle() -> float:
    """The least target steps per token that any choice of lengths can reach: the mean over the three texts."""
    return sum(_cheapest(text(seed)) for seed in SEEDS) / len(SEEDS)


def _cheapest(right: list[bool]) -> float:
    """From the end to the start: the cost of the rest of a text, if the best length is chosen at every position."""
    rest = [0.0] * (len(right) + 1)
    n_right = 0  # how many drafted tokens would be accepted from here on
    for position in range(len(right) - 1, -1, -1):
        n_right = n_right + 1 if right[position] else 0
        longest = min(LONGEST, len(right) - position - 1)
        rest[position] = min(
            round_cost(k) + rest[position + min(k, n_right) + 1] for k in range(min(n_right, longest) + 1)
        )
    return rest[0] / len(right)


def medal(score: float) -> str:
    """What a score is worth."""
    return "silver" if score <= SCORE else "bronze" if score <= BRONZE else "no medal"


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
        value = score(rule)
        own = f"{value:.3f}   {medal(value)}"
    except Todo:
        own = "still to be written: exercises/ex06_draft_length.py"
    except ValueError as error:
        raise Problem(f"{error}; type: python check.py 6") from None
    best = min(range(LONGEST + 1), key=fixed)
    print(f"\n  bronze          {BRONZE:.3f} or less   what the best fixed length reaches, k = {best}")
    print(f"  silver          {SCORE:.3f} or less   asked of your rule")
    print(f"  your rule       {own}")
    print(f"  an oracle       {oracle():.3f}   knows every round in advance: the bound, no rule can be better")
    return 0


if __name__ == "__main__":
    sys.exit(main())
