"""What chapter 4 says of its rule: the most that one token allows, and less than a block allows. In exact fractions.

The block rule is the one of Sun et al., "Block Verification Accelerates Speculative Decoding", arXiv 2403.10444.
"""

import itertools
from fractions import Fraction

import pytest

from tests.exercises.answers import chapter

P, Q = (
    (Fraction(1, 3), Fraction(2, 3)),
    (Fraction(2, 3), Fraction(1, 3)),
)  # target and draft at every position, whatever stands before
Law = dict[tuple[int, ...], Fraction]


def token_rule(drafted: tuple[int, ...]) -> list[tuple[Fraction, Fraction]]:
    """For every number of kept drafts: its probability, and the weight of the target in the residual.

    The chapter's rule: each draft is kept with probability min(1, p / q), and the first rejection ends the round.
    """
    chance, found = Fraction(1), []
    for token in drafted:
        kept = min(Fraction(1), P[token] / Q[token])
        found.append((chance * (1 - kept), Fraction(1)))
        chance *= kept
    return [*found, (chance, Fraction(1))]


def block_rule(drafted: tuple[int, ...]) -> list[tuple[Fraction, Fraction]]:
    """The same for block verification: every length has its own test, and the longest that passes is kept."""
    weight, weights, passes = Fraction(1), [Fraction(1)], []
    for token in drafted:
        weight = min(Fraction(1), weight * P[token] / Q[token])
        weights.append(weight)
    for w in weights[:-1]:
        left = sum(max(w * p - q, Fraction(0)) for p, q in zip(P, Q, strict=True))
        passes.append(left / (left + 1 - w) if left + 1 - w else Fraction(0))
    passes = [*passes[1:], weights[-1]]  # of keeping 1, 2, ..., k drafts
    found, later = [], Fraction(1)
    for n in range(len(drafted), 0, -1):
        found.append((later * passes[n - 1], weights[n]))
        later *= 1 - passes[n - 1]
    return [*found, (later, Fraction(1))][::-1]


def outcome(rule, k: int) -> tuple[Fraction, Law]:
    """Drafts that are kept on average, and the joint law of the next k + 1 tokens."""
    kept, law = Fraction(0), {}
    for drafted in itertools.product(range(2), repeat=k):
        chance = Fraction(1)
        for token in drafted:
            chance *= Q[token]
        for n, (share, weight) in enumerate(rule(drafted)):
            if not share:
                continue
            kept += chance * share * n
            row = P if n == k else [max(weight * p - q, Fraction(0)) for p, q in zip(P, Q, strict=True)]
            for rest in itertools.product(range(2), repeat=k + 1 - n):
                probability = chance * share * row[rest[0]] / sum(row)
                for token in rest[1:]:
                    probability *= P[token]
                text = drafted[:n] + rest
                law[text] = law.get(text, Fraction(0)) + probability
    return kept, law


def target_law(k: int) -> Law:
    law = {}
    for text in itertools.product(range(2), repeat=k + 1):
        law[text] = Fraction(1)
        for token in text:
            law[text] *= P[token]
    return law


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", [token_rule, block_rule])
def test_both_rules_are_exact(rule, k):
    found, right = outcome(rule, k)[1], target_law(k)
    assert {text: share for text, share in found.items() if share} == right


def test_at_one_token_both_keep_all_that_can_be_kept():
    """1 - TV, the overlap: no exact rule keeps more of one token."""
    distance = sum(abs(p - q) for p, q in zip(P, Q, strict=True)) / 2
    assert outcome(token_rule, 1)[0] == outcome(block_rule, 1)[0] == 1 - distance == Fraction(2, 3)


def test_at_two_tokens_the_block_keeps_more():
    """The numbers of the chapter."""
    assert outcome(token_rule, 2)[0] == Fraction(10, 9)
    assert outcome(block_rule, 2)[0] == Fraction(11, 9)
    text = " ".join(chapter("ex04_rejection").split())
    assert "p = (1/3, 2/3) and q = (2/3, 1/3)" in text
    assert "10/9 of the two drafts" in text
    assert "11/9" in text
    assert "1 - TV" in text
