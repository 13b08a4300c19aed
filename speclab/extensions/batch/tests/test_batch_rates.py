"""The rates of a batch by exact counts: a clock that only passes move, and every number worked out as a fraction."""

from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch

from speclab.core.rounds import Round, tokens_of
from speclab.extensions.batch import measure
from speclab.extensions.batch.decoding import loops
from speclab.extensions.batch.decoding.loops import BatchDecoding
from speclab.extensions.batch.measure import FIRST, BatchArm, Batches, lines_of
from speclab.lab.rows import rows_of
from speclab.models.prompts import Prompt
from speclab.records.rows import BASELINE, Arm
from tests.lab.test_rates import Clock


@pytest.fixture
def batch_of(monkeypatch):
    """A batch of events: the number of a text whose prompt is read, in eight seconds; or a pass, its seconds, and the
    number of tokens of each text. A text ends with the last pass that it is in."""
    clock = Clock(monkeypatch, loops)

    def made(*events):
        def rounds():
            for i, event in enumerate(events):
                if isinstance(event, int):
                    clock.now += 8
                    yield event, Round([1], prefill=True)
                    continue
                clock.now += event[0]
                for number, n in event[1].items():
                    ends = not any(number in later[1] for later in events[i + 1 :] if not isinstance(later, int))
                    yield number, Round([1] * n, 3, n - 1, int(n < 4), finish="length" if ends else None)

        found = BatchDecoding(lambda clock: rounds(), sum(isinstance(event, int) for event in events))
        while not found.done:
            found.advance()
        return found

    return made


def config(n_prompts: int = 2) -> SimpleNamespace:
    prompts = [Prompt("code", "", torch.tensor([[1, number]])) for number in range(n_prompts)]
    return SimpleNamespace(prompts=prompts, repeats=1, temperatures=[0.0], drafters={}, draft_lengths=[3])


def test_a_batch_records_its_exact_rates(batch_of, monkeypatch):
    """Rows with other numbers of tokens, and one that ends before the others."""
    plain = batch_of(0, 1, *[(1.0, {0: 1, 1: 1})] * 4, *[(0.5, {0: 1})] * 5)
    fast = batch_of(0, 1, (1.5, {0: 3, 1: 1}), (1.25, {0: 2, 1: 3}), (2.0, {0: 4}))
    monkeypatch.setattr(measure, "requests_of", lambda *_: [0, 1])
    ways = {BatchArm(BASELINE, 2): plain, BatchArm(Arm("model", "model", 2), 2): fast}
    lines = list(lines_of(Batches(config(), None, {}, decodings=ways)))
    # Full passes alone: 2.75 s, of which each text has a half; 5 tokens of one text and 4 of the other. Each text has
    # the pace of these passes to its end.
    paces = Fraction(11, 8) / 5, Fraction(11, 8) / 4
    seconds = 9 * paces[0] + 4 * paces[1]
    assert [one.seconds for one in lines] == pytest.approx([9 / 2, 4 / 2, float(9 * paces[0]), float(4 * paces[1])])
    assert [one.prefill_seconds for one in lines] == [[8.0]] * 4
    before, row = rows_of(lines)
    assert (before.n_texts, row.n_texts, row.n_emitted) == (2, 2, 13)
    assert row.tokens_per_second == pytest.approx(float(13 / seconds), rel=1e-6)
    assert row.speedup == pytest.approx(float(Fraction(13, 2) / seconds), rel=1e-6)
    assert row.tokens_per_round == 13 / 5


def test_rounds_are_booked_by_pass(batch_of):
    """Two rows, three texts: the third one takes the row of the second. Full passes are shared in equal parts."""
    found = batch_of(0, 1, (2.0, {0: 3, 1: 1}), 2, (4.0, {0: 1, 2: 2}), (7.0, {2: 1}))
    assert found.passes == [({0: 3, 1: 1}, 2.0), ({0: 1, 2: 2}, 4.0), ({2: 1}, 7.0)]
    assert found.full(2) == found.passes[:2]
    assert {number: len(tokens_of(rounds)) for number, rounds in found.rounds.items()} == {0: 5, 1: 2, 2: 4}
    assert found.n_tokens == 11
    assert (found.prefills, found.ended) == ({0: 8.0, 1: 8.0, 2: 8.0}, {0, 1, 2})
    assert found.by_request(2) == {0: (4, 3.0), 1: (1, 1.0), 2: (2, 2.0)}
    assert found.by_request(1) == {2: (1, 7.0)}
    assert found.by_request(2, shared=False) == {0: (4, 6.0), 1: (1, 2.0), 2: (3, 11.0)}, "as users wait"
    assert found.clock == 3 * 8 + 13


def test_copies_of_a_prompt_are_one_prompt(batch_of, monkeypatch):
    """Prompt 0 is decoded twice, in nine rounds of a second and in one of eleven: two seconds a token."""
    monkeypatch.setattr(measure, "requests_of", lambda *args: [0, 1, 0])
    found = batch_of(0, *[(1.0, {0: 1})] * 9, 1, (4.0, {1: 1}), 2, (11.0, {2: 1}))
    lines = list(lines_of(Batches(config(), None, {}, decodings={FIRST: found})))
    assert [(one.prompt_index, one.seconds, one.n_emitted) for one in lines] == [(0, 18.0, 9), (1, 4.0, 1)]
