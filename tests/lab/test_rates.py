"""Rates by exact counts: clocks move where they are told to, and a rate is worked out as a fraction.

Times are quarters and eighths of seconds, so float64 holds them exactly and nothing here is approximate but for the
last division.
"""

from fractions import Fraction
from types import SimpleNamespace

import pytest

from speclab.cli import decoding as decoding_cli
from speclab.core.rounds import DecodeSettings, Round
from speclab.core.sampling import Sampling
from speclab.lab.harness import measure
from speclab.lab.rows import row_of
from speclab.present import tables
from speclab.records.rows import BASELINE, Arm, Decoded
from speclab.theory.formulas import ratio_interval
from tests.lab.test_harness import Machine, make_bench, make_prompt
from tests.tiny_models import PlainTransformer, perturbed

MODEL, NGRAM = Arm("model", "model", 2), Arm("ngram", "ngram", 3)
SETTINGS = Sampling(0.7, top_k=5, top_p=0.9)


def seconds_of(sample: Decoded, repeat: int) -> Fraction:
    """By the machine below: a pass over w tokens takes 1 + w / 8 seconds, a drafted token 1/4; a lookup takes none."""
    n_tokens = len(sample.texts[repeat])
    if not sample.arm.speculative:
        return (n_tokens - 1) * Fraction(9, 8)
    made = sample.rounds[repeat]
    draft = Fraction(0 if sample.arm == NGRAM else 1, 4)
    assert sum(1 + one.n_accepted for one in made) == n_tokens - 1, "the prompt's own pass gives one token more"
    return sum((1 + Fraction(1 + one.n_drafted, 8) + draft * one.n_drafted for one in made), Fraction(0))


def test_every_rate_of_a_row_is_a_ratio_of_exact_sums(monkeypatch):
    """Three prompts, two repeats, sampled with both filters: what rows, timings and tables say of seconds."""
    target = PlainTransformer(12, seed=3)
    pair = target, perturbed(target, 0.3)
    Machine(monkeypatch, target, by_width=lambda width: 1 + width / 8)
    bench = make_bench(pair, budget=20)
    bench.setup.sampling = SETTINGS
    found = measure(bench, [BASELINE, MODEL, NGRAM], [0.7], [make_prompt(i) for i in range(3)], 2, {})
    baseline = found.of(BASELINE, 0.7)
    for arm in (BASELINE, MODEL, NGRAM):
        samples = found.of(arm, 0.7)
        of_prompts = [[seconds_of(sample, repeat) for repeat in range(2)] for sample in samples]
        assert [sample.decode_seconds for sample in samples] == of_prompts
        prefill = 2 * 3 * 100 * (2 if arm == MODEL else 1)
        seconds, before = sum(map(sum, of_prompts)), 2 * 3 * 19 * Fraction(9, 8)
        row = row_of(samples, baseline)
        assert (row.n_emitted, row.seconds) == (2 * 3 * 19, seconds)
        assert row.tokens_per_second == float(2 * 3 * 19 / seconds)
        assert row.speedup == float(before / seconds)
        assert row.speedup_with_prefill == float((before + 600) / (seconds + prefill))
        sides = ([2 * 19 * 9 / 8] * 3, [float(sum(one)) for one in of_prompts])
        assert (row.speedup_low, row.speedup_high) == ratio_interval(*sides)
        assert tables.CELLS["tok/s"](row) == f"{float(2 * 3 * 19 / seconds):.1f}"
        rounds = [made for sample in samples for of_repeat in sample.rounds for made in of_repeat]
        if arm.speculative:
            assert row.n_rounds == len(rounds)
            assert row.tokens_per_round == 2 * 3 * 19 / len(rounds)
            assert row.n_drafted > row.n_accepted > 0 < row.n_rejected
        for sample, of_prompt in zip(samples, of_prompts, strict=True):
            assert sample.decode_seconds == of_prompt
            assert sample.prefill_seconds == [prefill / 6] * 2
    assert len({tuple(text) for sample in baseline for text in sample.texts}) == 6


class Clock:
    """It moves when it is told to."""

    def __init__(self, monkeypatch, *modules):
        self.now = 0.0
        for module in modules:
            monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))


ENDING = DecodeSettings(30, eos=frozenset({9}))


def text_of(clock: Clock, *seconds: float):
    """A prompt's own pass of 100 s; rounds of three tokens and of these seconds, the last of which meets an end token.

    After the end token one token more was generated, and one drafted token was accepted.
    """
    clock.now += 100
    yield Round.committing([1], 1, ENDING, prefill=True)
    for i, taken in enumerate(seconds):
        clock.now += taken
        last = i == len(seconds) - 1
        yield Round.committing([1, 9 if last else 2, 3], 4 + 3 * i, ENDING, 4, 2, 1)


def test_a_script_prints_its_exact_rate(monkeypatch):
    """Seconds in which a text is shown are nobody's; what follows an end token is not counted."""
    clock = Clock(monkeypatch, decoding_cli)
    decoded = decoding_cli._Decoded(None, None)
    for seconds in ((0.5, 0.25, 0.25), (0.5, 1.0)):
        for _ in decoded._timed(text_of(clock, *seconds)):
            clock.now += 50  # it is shown
    assert (decoded.counts.n_rounds, decoded.counts.n_emitted, decoded.counts.n_accepted) == (5, 13, 10)
    assert (decoded.n_tokens, decoded.seconds, decoded.counts.n_after_eos, decoded.counts.n_replays) == (15, 2.5, 2, 0)
    with pytest.raises(RuntimeError, match="more than it was asked for"):
        Round.committing([1, 2], 31, ENDING)
    assert decoded.speed() == (
        "\n15 tokens, 13 of them decoded after the prompts' own passes in 2.50 s, from a cold start: 5.2 tok/s; "
        "2 more after an end token were dropped"
    )
