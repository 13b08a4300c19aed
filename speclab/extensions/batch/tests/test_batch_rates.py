"""The rates of a batch by exact counts: a clock that only passes move, and every number worked out as a fraction."""

import statistics
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from speclab.core.rounds import Round
from speclab.extensions.batch import decode, measure
from speclab.extensions.batch.decoding import decodings
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.measure import BatchArm, Batches, lines_of
from speclab.lab.rows import rows_of
from speclab.models.prompts import Prompt
from speclab.records.rows import BASELINE
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
    plain = batch_of(clock, *[(1.0, {0: 1, 1: 1})] * 4, *[(0.5, {0: 1})] * 5, prefills=2)
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
    monkeypatch.setattr(measure, "requests_of", lambda *_: [0, 1])
    ways = {BatchArm(BASELINE, 2): plain, BatchArm(MODEL, 2): fast}
    lines = list(lines_of(Batches(config, ways)))
    # Full passes alone: 2.75 s, of which each text has a half; 5 tokens of one text and 4 of the other. Each text has
    # the pace of these passes to its end.
    paces = Fraction(11, 8) / 5, Fraction(11, 8) / 4
    seconds = 9 * paces[0] + 4 * paces[1]
    assert [one.seconds for one in lines] == pytest.approx([9 / 2, 4 / 2, float(9 * paces[0]), float(4 * paces[1])])
    assert [one.prefill_seconds for one in lines] == [[8.0]] * 4
    before, row = rows_of(lines, {"target": "t", "device": "cpu", "dtype": "float32"})
    assert (before.n_texts, row.n_texts, row.n_emitted) == (2, 2, 13)
    assert row.tokens_per_second == pytest.approx(float(13 / seconds), rel=1e-6)
    assert row.speedup == pytest.approx(float(Fraction(13, 2) / seconds), rel=1e-6)
    assert row.tokens_per_round == 13 / 5
