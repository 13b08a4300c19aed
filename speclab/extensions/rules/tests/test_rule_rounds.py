"""A whole round of the loop with each rule, at T = 0.7 with both filters, as in tests/test_filtered_laws.py."""

import functools
import itertools
import math
from collections import Counter

import pytest
import torch

from speclab.core.rules import rule_of
from speclab.core.sampling import Sampling
from speclab.extensions.rules.tests.pieces import block_pieces, follow_pieces, typical_pieces
from tests.test_exact import token_pieces
from tests.test_filtered_laws import (
    CASES,
    ENDS,
    IDS,
    KINDS,
    SETTINGS,
    Text,
    assert_lossless,
    draft_row,
    enumerated,
    filtered,
    logits_after,
    target_row,
)

LOSSY = {"lenient:0.75": functools.partial(token_pieces, scale=0.75), "typical:0.6": typical_pieces}


@pytest.mark.parametrize("name", ["model", "feature", "ngram", "model auto"])
def test_a_round_of_block_verification_leaves_the_targets_law(name, monkeypatch):
    assert_lossless(CASES[name], "block", monkeypatch, block_pieces)


@pytest.mark.parametrize("name", ["model", "ngram"])
def test_a_round_that_follows_the_target_leaves_its_law(name, monkeypatch):
    assert_lossless(CASES[name], "follow", monkeypatch, follow_pieces)


def stated(rule: str, p: list[float], q: list[float]) -> list[float]:
    """The law of a tested place under a lossy rule, written down from its definition."""
    kind, _, value = rule.partition(":")
    number = float(value)
    if kind == "lenient":
        kept = [min(b, a / number) for a, b in zip(p, q, strict=True)]
        rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    else:
        kept = [b * (a > threshold(p, number)) for a, b in zip(p, q, strict=True)]
        rest = p
    return [a + (1 - sum(kept)) * b / (sum(rest) or 1.0) for a, b in zip(kept, rest, strict=True)]


def threshold(p: list[float], epsilon: float) -> float:
    """Of typical acceptance: min(E, sqrt(E) exp(-H))."""
    return min(epsilon, math.sqrt(epsilon) * math.exp(sum(one * math.log(one) for one in p if one)))


@pytest.mark.parametrize("rule", LOSSY)
def test_a_lossy_rule_has_its_stated_law(rule, monkeypatch):
    """Token by token, given the tokens before; behind the last drafted one comes the target's own law."""
    tally, off, other = Counter[str](), 0.0, 0
    for first, end in itertools.product((0.2, 0.5), ENDS):
        found = enumerated(monkeypatch, CASES["model"], rule, first, end, LOSSY[rule])
        tally += found.tally
        for n in range(CASES["model"].k + 1):
            for prefix in {block[:n] for block in found.law if len(block) > n}:
                p, q, _ = rows = [row(found.text + prefix) for row in (target_row, draft_row, unfiltered_row)]
                reached = {
                    block: chance for block, chance in found.law.items() if len(block) > n and block[:n] == prefix
                }
                law = [0.0] * IDS
                for block, chance in reached.items():
                    law[block[n]] += chance / sum(reached.values())
                right = stated(rule, p, q) if n < CASES["model"].k else p
                assert law == pytest.approx(right, abs=1e-9)
                if n < CASES["model"].k:
                    of_module = rule_of(rule).law(*(torch.tensor(row, dtype=torch.float64) for row in (p, q)))
                    assert of_module.tolist() == pytest.approx(right, abs=1e-12)
                    off = max(off, *(abs(a - b) for a, b in zip(right, p, strict=True)))
                    least, most = sorted(threshold(row, 0.6) for row in (rows[0], rows[2]))
                    other += any(least < a <= most for a, b in zip(p, q, strict=True) if b)
    assert min(tally[kind] for kind in KINDS) > 0, tally
    assert off > 0.01, "nothing was lossy"
    assert other or "lenient" in rule, "the entropy before the filters would decide alike"


def unfiltered_row(text: Text) -> list[float]:
    return filtered(logits_after(0, text), Sampling(SETTINGS.temperature))
