"""A whole round of the loop with each rule, at T = 0.7 with both filters, as in tests/test_filtered_laws.py."""

import functools
import itertools
from collections import Counter

import pytest
import torch

from speclab.core.rules import rule_of
from speclab.core.sampling import Sampling
from speclab.extensions.rules.lossy import typical_threshold
from speclab.extensions.rules.tests.pieces import block_pieces, conditional, follow_pieces, typical_pieces
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


@pytest.mark.parametrize("rule", LOSSY)
def test_a_lossy_rule_has_its_stated_law(rule, monkeypatch):
    """Token by token, given the tokens before; behind the last drafted one comes the target's own law."""
    tally, off, other, k = Counter[str](), 0.0, 0, CASES["model"].k
    for first, end in itertools.product((0.2, 0.5), ENDS):
        found = enumerated(monkeypatch, CASES["model"], rule, first, end, LOSSY[rule])
        tally += found.tally
        for prefix, law in conditional(found.law).items():
            rows = (row(found.text + prefix) for row in (target_row, draft_row, unfiltered_row))
            p, q, unfiltered = (torch.tensor(row, dtype=torch.float64) for row in rows)
            right = rule_of(rule).law(p, q) if len(prefix) < k else p
            assert [law.get(token, 0.0) for token in range(IDS)] == pytest.approx(right.tolist(), abs=1e-9)
            if len(prefix) < k:
                off = max(off, (right - p).abs().max().item())
                least, most = sorted(typical_threshold(row, 0.6).item() for row in (p, unfiltered))
                other += bool(((least < p) & (p <= most) & (q > 0)).any())
    assert min(tally[kind] for kind in KINDS) > 0, tally
    assert off > 0.01, "nothing was lossy"
    assert other or "lenient" in rule, "the entropy before the filters would decide alike"


def unfiltered_row(text: Text) -> list[float]:
    return filtered(logits_after(0, text), Sampling(SETTINGS.temperature))
