"""The rates of a batch by exact counts: a clock that only passes move, and every number worked out as a fraction."""

import statistics
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from speclab.core.rounds import Round
from speclab.extensions.batch import batch_rows, decode
from speclab.extensions.batch.decoding import decodings
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.turns import FIRST, BatchArm, Batches
from speclab.models.prompts import Prompt
from speclab.records.arms import BASELINE, BASELINE_REPEAT
from tests.lab.test_rates import MODEL, Clock


def batch_of(clock: Clock, *passes: tuple[float, dict[int, int]], prefills: int) -> BatchDecoding:
    """Texts that start together. A pass: its seconds, and how many tokens it gives each text; a text ends with the last
    pass that it is in."""

    def rounds():
        for number in range(prefills):
            clock.now += 8
            yield number, Round([1], prefill=True)
        for i, (seconds, given) in enumerate(passes):
            clock.now += seconds
            for number, n in given.items():
                ends = not any(number in later for _, later in passes[i + 1 :])
                yield number, Round([1] * n, 3, n - 1, int(n < 4), finish="length" if ends else None)

    made = BatchDecoding(rounds(), prefills)
    while not made.done:
        made.advance()
    return made


def test_a_batch_prints_and_records_its_exact_rates(monkeypatch):
    """Rows with other numbers of tokens, and one that ends before the others."""
    clock = Clock(monkeypatch, decodings)
    plain = batch_of(clock, *[(1.0, {0: 1, 1: 1})] * 4, (0.5, {0: 1}), prefills=2)
    fast = batch_of(clock, (1.5, {0: 3, 1: 1}), (1.25, {0: 2, 1: 3}), (2.0, {0: 4}), prefills=2)
    assert [(text.admitted, text.first, text.last) for text in fast.texts.values()] == [(0, 8, 20.75), (8, 16, 18.75)]
    between = statistics.median([Fraction(51, 4) / 9, Fraction(11, 4) / 4])
    latency = statistics.median([Fraction(83, 4), Fraction(43, 4)])
    assert (fast.latency, fast.between_tokens) == (float(latency), pytest.approx(float(between), rel=1e-15))
    assert decode.speed(fast, 2).split("\n") == [
        "",
        f"15 tokens, 13 of them decoded after the prompts' own passes in 4.75 s, 2 at a time: {13 / 4.75:.1f} tok/s "
        "in all",
        f"a text: {float(latency):.2f} s from its prompt to its last token, {1000 * float(between):.2f} ms between "
        "tokens (medians of 2 texts)",
    ]
    prompts = [Prompt("code", "", torch.tensor([[1, number]])) for number in range(2)]
    config = SimpleNamespace(prompts=prompts, repeats=1, temperatures=[0.0], drafters={}, draft_lengths=[3])
    arms = BatchArm(BASELINE, 2), BatchArm(BASELINE_REPEAT, 2), BatchArm(MODEL, 2)
    monkeypatch.setattr(batch_rows, "requests_of", lambda *_: [0, 1])
    row = batch_rows.row(Batches(config, dict(zip(arms, (plain, plain, fast), strict=True))), arms[2], None)
    # Full passes alone: 2.75 s, of which each text has a half; 5 tokens of one text and 4 of the other.
    half = Fraction(11, 8)
    assert (row.n_passes, row.n_tokens, row.seconds) == (2, 9, 2.75)
    assert row.tokens_per_second == pytest.approx(float(2 / (half / 5 + half / 4)), rel=1e-15)
    assert row.speedup == pytest.approx(float(2 * Fraction(1, 2) / (half / 5 + half / 4)), rel=1e-15)
    assert (row.total_seconds, row.latency) == (20.75, float(latency))
    assert row.tokens_per_round == 13 / 5
    assert FIRST.n_texts == 1
