"""Rows of a batch run from rounds that are known: prompts, halves, the noise floor, what nothing is said of."""

from types import SimpleNamespace

import pytest
import torch

from draft_models import NgramDrafter
from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.extensions.batch import batch_rows, turns
from speclab.extensions.batch.decoding import decodings
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.turns import FIRST, BatchArm, Batches, arms, requests_of
from speclab.models.prompts import Prompt
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm

SLOW, FAST = Arm("model", "model", 2), Arm("model", "model", 4)


def config(n_prompts: int = 4, n_copies: int = 0, **others) -> SimpleNamespace:
    ids = [torch.tensor([[1, number]]) for number in range(n_prompts)] + [torch.tensor([[1, 0]])] * n_copies
    texts = [Prompt("code", "", one) for one in ids]
    fields = {"prompts": texts, "repeats": 1, "temperatures": [0.0], "draft_lengths": [2], "drafters": {}}
    return SimpleNamespace(**fields | others)


def decoding(seconds_of_rounds: list[list[float]], monkeypatch, n_texts: int = 1, drafted: int = 2) -> BatchDecoding:
    """Texts one after the other, a prefill and then a token in each round, which takes so long."""
    clock = [0.0]
    monkeypatch.setattr(decodings.time, "perf_counter", lambda: clock[0])

    def rounds():
        for number, seconds in enumerate(seconds_of_rounds):
            yield number, Round([1], prefill=True)
            for i, taken in enumerate(seconds):
                clock[0] += taken
                yield number, Round([1], drafted, 0, 1, finish="length" if i == len(seconds) - 1 else None)

    made = BatchDecoding(rounds(), len(seconds_of_rounds))
    while not made.done:
        made.advance()
    return made


def batches(ways: dict, **others) -> Batches:
    decoded = Batches(config(**others))
    decoded.decodings = ways
    return decoded


def run(monkeypatch, fast: list[float], slow: list[float], again: float = 1.0) -> Batches:
    """Four prompts of two rounds each; plain decoding takes a second for a token."""

    def of(seconds: list[float]) -> BatchDecoding:
        return decoding([[one, one] for one in seconds], monkeypatch)

    return batches(
        {
            FIRST: of([1.0] * 4),
            BatchArm(FAST, 1): of(fast),
            BatchArm(BASELINE_REPEAT, 1): of([again] * 4),
            BatchArm(SLOW, 1): of(slow),
        }
    )


# --- what a text costs ------------------------------------------------------------------------------------------------


def test_a_pass_is_shared_in_equal_parts(monkeypatch):
    """Two rows: 3 tokens of one text and 1 of the other in 2 seconds; then one row alone, which is not counted."""
    clock = iter([0, 0, 0, 0, 0, 2, 2, 9])
    monkeypatch.setattr(decodings.time, "perf_counter", lambda: next(clock))
    start, end = Round([1], prefill=True), Round([4], finish="length")
    made = BatchDecoding(iter([(0, start), (1, start), (0, Round([1, 2, 3])), (1, end), (0, end)]), 2)
    while not made.done:
        made.advance()
    assert made.by_request(2) == {0: (3, 1.0), 1: (1, 1.0)}
    assert made.by_request(1) == {0: (1, 7.0)}


def test_every_prompt_counts_alike(monkeypatch):
    """Copies of a prompt are one prompt; a prompt of which more tokens were timed weighs no more."""
    made = decoding([[1.0] * 9, [4.0], [1.0]], monkeypatch)
    decoded = batches({FIRST: made}, n_prompts=2)
    monkeypatch.setattr(batch_rows, "requests_of", lambda *args: [0, 1, 0])
    assert batch_rows.of_prompts(decoded, FIRST) == {0: (10, 10.0), 1: (1, 4.0)}
    itself = batch_rows.gain(decoded, FIRST, FIRST)
    assert itself.n_prompts == 2
    assert itself.rate == pytest.approx(2 / (1 + 4))
    assert (itself.ratio, itself.low) == (1, None), "two prompts have no interval"


def test_the_interval_is_over_prompts(monkeypatch):
    """Rounds of a prompt that are all alike say nothing new; prompts that differ widen it."""
    alike = run(monkeypatch, [0.5] * 4, [0.5] * 4)
    over = batch_rows.gain(alike, BatchArm(FAST, 1), FIRST)
    assert (over.ratio, over.low, over.high) == pytest.approx((2, 2, 2))
    different = run(monkeypatch, [0.25, 0.75, 0.25, 0.75], [0.5] * 4)
    over = batch_rows.gain(different, BatchArm(FAST, 1), FIRST)
    assert over.ratio == pytest.approx(2)
    assert over.low < 1.5 < 2.5 < over.high


# --- what is said of it -----------------------------------------------------------------------------------------------


def test_the_best_length_is_chosen_on_one_half_and_reported_on_the_other(monkeypatch):
    """Prompts 0 and 2 choose, 1 and 3 report: the length that is best on all of them is not the one that is taken."""
    decoded = run(monkeypatch, fast=[0.4, 0.9, 0.4, 0.9], slow=[0.6, 0.1, 0.6, 0.1])
    (entry,) = batch_rows.chosen(decoded)
    assert (entry.draft_length, entry.n_prompts) == (4, 2)
    assert entry.speedup == pytest.approx(1 / 0.9)
    assert (entry.tokens_per_second, entry.plain_tokens_per_second) == pytest.approx((1 / 0.9, 1))
    assert [knee.best for knee in batch_rows.measured_knees([entry], 7)] == [{"1": [4, pytest.approx(1 / 0.9)]}]


def test_halves_where_no_kind_has_two_prompts():
    kinds = [Prompt(str(i), "", torch.tensor([[i]])) for i in range(3)]
    assert batch_rows.held_out(config(prompts=kinds)) == [1]
    assert batch_rows.held_out(config(prompts=kinds[:1])) == [0], "the only one"


@pytest.mark.parametrize(("seconds", "again", "verdict"), [(0.5, 1.0, "faster"), (2.0, 1.0, "slower")])
def test_verdicts(monkeypatch, seconds, again, verdict):
    decoded = run(monkeypatch, [seconds] * 4, [seconds] * 4, again)
    assert batch_rows.row(decoded, BatchArm(FAST, 1), None).verdict == verdict


def test_what_lies_within_the_noise_floor_is_unclear(monkeypatch):
    decoded = run(monkeypatch, [0.95] * 4, [0.5] * 4, again=0.9)
    assert batch_rows.floor(decoded, 1).ratio == pytest.approx(1 / 0.9)
    assert batch_rows.row(decoded, BatchArm(FAST, 1), None).verdict == "unclear"
    assert batch_rows.row(decoded, BatchArm(SLOW, 1), None).verdict == "faster"


def test_what_drafts_nothing_is_no_speculative_row(monkeypatch):
    decoded = run(monkeypatch, [0.5] * 4, [0.6] * 4)
    decoded.decodings[BatchArm(FAST, 1)].counts = Counts(n_rounds=8, n_emitted=8)
    made = batch_rows.row(decoded, BatchArm(FAST, 1), None)
    assert (made.n_drafted, made.verdict, made.speedup_low) == (0, None, None)
    (entry,) = batch_rows.chosen(decoded)
    assert entry.draft_length == SLOW.draft_length


# --- what is decoded --------------------------------------------------------------------------------------------------


def test_every_batch_is_decoded_in_every_way():
    """Plain decoding twice, and first of all one text at a time."""
    about = config(3, drafters={"ngram": NgramDrafter()}, method=lambda name: name)
    ways = arms(about, [2, 4])
    assert ways[0] == FIRST
    for arm in (BASELINE, BASELINE_REPEAT, Arm("ngram", "ngram", 2)):
        assert [one.n_texts for one in ways if one.arm == arm] == [1, 2, 4]


@pytest.mark.parametrize(("n_prompts", "n_texts", "n"), [(30, 1, 30), (30, 16, 60), (4, 8, 24), (3, 1, 3)])
def test_a_batch_is_filled_three_times(n_prompts, n_texts, n):
    assert requests_of(config(n_prompts), n_texts) == [*range(n_prompts)] * (n // n_prompts)


def test_the_warm_up_asks_for_no_more_than_the_run(monkeypatch):
    """Prompts that leave room for three tokens fit, with a warm-up of twelve."""
    budgets = []
    monkeypatch.setattr(turns, "BatchedModel", lambda *args: SimpleNamespace(start=print, prepare=print))
    done = SimpleNamespace(done=True)
    monkeypatch.setattr(turns, "_decoding", lambda config, one, engine, numbers, budget: budgets.append(budget) or done)
    setup = SimpleNamespace(target=None, chunk=1)
    for most in (3, 200):
        turns._warmed(Batches(config(max_new_tokens=most, setup=setup)), FIRST)
    assert budgets == [3, turns.WARM_UP_TOKENS]
