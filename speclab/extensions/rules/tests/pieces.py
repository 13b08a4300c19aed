"""Where the tests of each rule change, in exact numbers: what enumerates a rule needs it (tests/test_exact.py)."""

import functools
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from speclab.extensions.rules.block import accept_block
from speclab.extensions.rules.follow import accept_follow
from speclab.extensions.rules.lossy import accept_lenient, accept_typical
from tests.test_exact import Job, Outcome, Pieces, Prefix, Row, Rule, cdf_corners, play, token_pieces

LENIENCE, EPSILON = Fraction(3, 4), Fraction(7, 23)  # no probability of a table here equals EPSILON
lenient_of_1: Rule = functools.partial(accept_lenient, lenience=1.0)
lenient: Rule = functools.partial(accept_lenient, lenience=float(LENIENCE))
typical: Rule = functools.partial(accept_typical, epsilon=float(EPSILON))


def block_pieces(job: Job, tokens: Prefix) -> tuple[list[list[Fraction]], list[Row]]:
    """Of block verification, from the paper's definitions. It leaves bare one-hot drafts to the token rule."""
    if not job.tables.stored:
        return token_pieces(job, tokens)
    tests, residuals, so_far = [], [], Fraction(1)
    for i in range(len(tokens) + 1):
        prefix = job.start + tokens[:i]
        if i:
            before = job.start + tokens[: i - 1]
            ratio = job.tables.target[before][tokens[i - 1]] / job.tables.draft[before][tokens[i - 1]]
            so_far = min(Fraction(1), so_far * ratio)
        if i == len(tokens):
            tests.append([so_far])
            continue
        p, q = job.tables.target[prefix], job.tables.draft[prefix]
        residuals.append([max(Fraction(0), so_far * a - b) for a, b in zip(p, q, strict=True)])
        mass = sum(residuals[-1], Fraction(0))
        if i:
            rest = mass + 1 - so_far
            tests.append([mass / rest] if rest else [])
    return tests if tokens else [], residuals


def typical_pieces(job: Job, tokens: Prefix) -> tuple[list[list[Fraction]], list[Row]]:
    """Of typical acceptance, whose tests use no uniform, and whose next tokens come from the target's rows."""
    return [[]] * job.size, []


def follow_pieces(job: Job, tokens: Prefix) -> tuple[list[list[Fraction]], list[Row]]:
    """Of the rule that draws the target's own token at each place, with the uniform of that place."""
    return [cdf_corners(job.tables.target[job.start + tokens[:i]]) for i in range(len(tokens))], []


def conditional(law: Mapping[Prefix, Any]) -> dict[Prefix, dict[int, Any]]:
    """The law of each token, given the tokens before it."""
    reached: dict[Prefix, dict[int, Any]] = {}
    for block, chance in law.items():
        for i, token in enumerate(block):
            here = reached.setdefault(block[:i], {})
            here[token] = here.get(token, 0) + chance
    return {
        prefix: {token: chance / sum(here.values()) for token, chance in here.items()}
        for prefix, here in reached.items()
    }


PIECES: dict[Rule, Pieces] = {
    accept_block: block_pieces,
    lenient: functools.partial(token_pieces, scale=LENIENCE),
    typical: typical_pieces,
    accept_follow: follow_pieces,
}


def played(jobs: list[Job], rule: Rule, **how) -> list[Outcome]:
    """`play` with a rule and its pieces."""
    return play(jobs, rule=rule, pieces=PIECES.get(rule, token_pieces), **how)
