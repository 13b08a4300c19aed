"""What a batch run decodes, how its rounds are booked, and what it shows."""

import doctest
from types import SimpleNamespace

import pytest
import torch

from draft_models import NgramDrafter
from speclab.core.rounds import Round
from speclab.extensions.batch import measure, shown
from speclab.extensions.batch.decoding import decodings
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.measure import FIRST, BatchArm, Batches, arms, lines_of, requests_of
from speclab.models.prompts import Prompt
from speclab.records.rows import BASELINE, BASELINE_REPEAT, Arm


def config(n_prompts: int = 4, **others) -> SimpleNamespace:
    texts = [Prompt("code", "", torch.tensor([[1, number]])) for number in range(n_prompts)]
    fields = {"prompts": texts, "repeats": 1, "temperatures": [0.0], "draft_lengths": [2], "drafters": {}}
    return SimpleNamespace(**fields | others)


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


def test_copies_of_a_prompt_are_one_prompt(monkeypatch):
    """Prompt 0 is decoded twice, in nine rounds of a second and in one of eleven: two seconds a token."""
    clock = [0.0]
    monkeypatch.setattr(decodings.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(measure, "requests_of", lambda *args: [0, 1, 0])

    def rounds():
        for number, seconds in enumerate([[1.0] * 9, [4.0], [11.0]]):
            yield number, Round([1], prefill=True)
            for i, taken in enumerate(seconds):
                clock[0] += taken
                yield number, Round([1], 2, 0, 1, finish="length" if i == len(seconds) - 1 else None)

    made = BatchDecoding(rounds(), 3)
    while not made.done:
        made.advance()
    lines = list(lines_of(Batches(config(2), {FIRST: made})))
    assert [(one.prompt_index, one.seconds, one.n_emitted) for one in lines] == [(0, 18.0, 9), (1, 4.0, 1)]


def test_every_batch_is_decoded_in_every_way():
    """Plain decoding twice, and first of all one text at a time."""
    ways = arms(config(3, drafters={"ngram": NgramDrafter()}, method=lambda name: name), [1, 2, 4])
    assert ways[0] == FIRST
    for arm in (BASELINE, BASELINE_REPEAT, Arm("ngram", "ngram", 2)):
        assert [one.n_texts for one in ways if one.arm == arm] == [1, 2, 4]


@pytest.mark.parametrize(("n_prompts", "n_texts", "n"), [(30, 1, 30), (30, 16, 60), (4, 8, 24), (3, 1, 3)])
def test_a_batch_is_filled_three_times(n_prompts, n_texts, n):
    assert requests_of(config(n_prompts), n_texts) == [*range(n_prompts)] * (n // n_prompts)


def test_the_warm_up_asks_for_no_more_than_the_run(monkeypatch):
    """Prompts that leave room for three tokens fit, with a warm-up of twelve."""
    budgets = []
    monkeypatch.setattr(measure, "BatchedModel", lambda *args: SimpleNamespace(start=print, prepare=print))
    done = SimpleNamespace(done=True)
    monkeypatch.setattr(
        measure, "_decoding", lambda config, one, engine, numbers, budget: budgets.append(budget) or done
    )
    for most in (3, 200):
        measure._warmed(config(max_new_tokens=most, setup=SimpleNamespace(target=None, chunk=1)), BatchArm(BASELINE, 1))
    assert budgets == [3, measure.WARM_UP_TOKENS]


def test_the_examples_of_the_knee():
    result = doctest.testmod(shown)
    assert result.failed == 0 < result.attempted
    assert shown.knee({1: 2.0, 2: 0.9, 4: 1.0}) == "beyond 4", "a speedup of 1 is no loss, and the last fall counts"
