"""From seconds and counts to rows: every ratio against a value worked out by hand."""

import pytest

from speclab.core.counts import Counts
from speclab.lab.rows import row_of
from speclab.records import files
from speclab.records.rows import BASELINE, GENERATE, Arm, Line, RoundCounts

MODEL = Arm("model", "model", 2)
COMMON = {"target": "t", "device": "cpu", "dtype": "float32"}
TEXT = list(range(11))  # one token from prefill, ten decoded


def sample(arm: Arm, index: int, *seconds: float, prefill: float = 0.5, temperature: float = 0.0, **counts) -> Line:
    """A sample with one decoding for each of `seconds`; `counts` belong to each of them."""
    made = Line.begin(arm, temperature, index, "code", 7)
    for decode in seconds:
        made.add(prefill, decode, TEXT, Counts(**counts) if counts else None)
    return made


def counted(arm: Arm, index: int, *seconds: float, n_rejected: int = 4, **more) -> Line:
    """Five rounds of two drafts each, five of the ten accepted."""
    numbers = {"n_rounds": 5, "n_drafted": 10, "n_accepted": 5, "n_rejected": n_rejected, "n_emitted": 10}
    return sample(arm, index, *seconds, **numbers, **more)


# --- a row ------------------------------------------------------------------------------------------------------------


def test_row_computes_ratios_from_counts_and_seconds():
    """The speedup is a ratio of sums, never a mean of ratios (which would be 2.5 here), and prefill stays outside."""
    baseline = [sample(BASELINE, 0, 1.0), sample(BASELINE, 1, 4.0)]
    fast = [counted(MODEL, 0, 1.0, n_rejected=5, prefill=0.7), counted(MODEL, 1, 1.0, n_rejected=3, prefill=0.7)]
    row = row_of(MODEL, fast, baseline, COMMON, "all")
    assert row.speedup == pytest.approx(5 / 2)
    assert row.speedup_with_prefill == pytest.approx((5 + 2 * 0.5) / (2 + 2 * 0.7))
    assert row.seconds == pytest.approx(2.0)
    assert row.prefill_seconds == pytest.approx(1.4)
    assert row.n_tokens == 20
    assert row.tokens_per_second == pytest.approx(10.0)
    assert row.acceptance_rate == pytest.approx(10 / 18)
    assert row.drafted_fraction == pytest.approx(0.5)
    assert row.tokens_per_round == pytest.approx(2.0)
    assert row.book_formula == pytest.approx(1 / (1 - 10 / 18 + 10 / 36))
    assert row.book_formula_drafted_fraction == pytest.approx(1 / (1 - 1 / 2 + 1 / 4))
    assert (row.n_rounds, row.n_drafted, row.n_accepted, row.n_rejected) == (10, 20, 10, 8)
    assert (row.speedup_low, row.verdict) == (None, "unclear"), "two prompts are too few for an interval"
    assert row.draft_cost is row.forecast is row.ladder is None


def test_interval_resamples_prompts_with_their_repeats_inside():
    """Two repeats of three prompts are three pairs of sums; the ratio of each pair is 2, so the interval is a point."""
    baseline = [sample(BASELINE, i, 1.0 + i, 3.0 + i) for i in range(3)]
    fast = [counted(MODEL, i, 1.5 + i, 0.5) for i in range(3)]
    row = row_of(MODEL, fast, baseline, COMMON, "all")
    assert (row.speedup_low, row.speedup, row.speedup_high) == pytest.approx((2.0, 2.0, 2.0))
    assert row.n_prompts == 3
    assert row.n_tokens == 60
    unequal = [counted(MODEL, 0, 0.5, 1.0), *fast[1:]]
    wider = row_of(MODEL, unequal, baseline, COMMON, "all")
    assert wider.speedup_low < wider.speedup < wider.speedup_high


def test_only_prompts_that_both_finished_count():
    baseline = [sample(BASELINE, i, s) for i, s in enumerate((1.0, 2.0, 50.0))]
    row = row_of(MODEL, [counted(MODEL, 1, 1.0), counted(MODEL, 0, 0.5)], baseline, COMMON, "all")
    assert row.n_prompts == 2
    assert row.speedup == pytest.approx(2.0), "seconds of a prompt that one side has not decoded were counted"


def test_baseline_row_is_the_yardstick():
    baseline = [sample(BASELINE, i, 1.0 + i) for i in range(3)]
    row = row_of(BASELINE, baseline, baseline, COMMON, "all")
    assert (row.speedup, row.speedup_low, row.speedup_high) == pytest.approx((1.0, 1.0, 1.0))
    assert row.speedup_with_prefill == 1
    assert row.draft is row.tokens_per_round is row.accepted_lengths is row.book_formula is None


def test_generate_is_compared_end_to_end():
    """The library's loop cannot be split, so the baseline's prefill counts as well: (4 + 1) / 2.5."""
    baseline = [sample(BASELINE, 0, 1.0), sample(BASELINE, 1, 3.0)]
    theirs = [sample(GENERATE, i, 1.25, prefill=0.0) for i in range(2)]
    row = row_of(GENERATE, theirs, baseline, COMMON, "all")
    assert row.speedup == pytest.approx(2.0)
    assert row.speedup_with_prefill == pytest.approx(2.0), "prefill was counted twice"
    assert row.same_as_baseline is True


def test_plain_decoding_in_the_speculative_loop_has_no_acceptance():
    """k = 0, or a lookup that never finds anything."""
    numbers = {"n_rounds": 10, "n_emitted": 10}
    baseline = [sample(BASELINE, 0, 1.0)]
    for arm in (Arm("model", "model", 0), Arm("ngram", "ngram", 4)):
        row = row_of(arm, [sample(arm, 0, 1.0, **numbers)], baseline, COMMON, "all")
        assert row.acceptance_rate is row.drafted_fraction is row.book_formula is None
        assert row.book_formula_drafted_fraction is None
        assert row.tokens_per_round == 1


def test_nothing_tested_but_something_drafted():
    """alpha is unknown, f is not: drafts behind an end token are drafted and never tested."""
    arm = Arm("model", "model", 4)
    made = sample(arm, 0, 1.0, n_rounds=1, n_drafted=4, n_emitted=1)
    row = row_of(arm, [made], [sample(BASELINE, 0, 1.0)], COMMON, "all")
    assert row.acceptance_rate is row.book_formula is None
    assert row.drafted_fraction == 0
    assert row.book_formula_drafted_fraction == 1


def test_accepted_lengths_hold_every_length_up_to_k():
    arm = Arm("model", "model", 3)
    made = sample(arm, 0, 1.0)
    made.rounds = [[RoundCounts(0, 0)] * 3 + [RoundCounts(3, 0)] + [RoundCounts(3, 3)] * 2]
    row = row_of(arm, [made], [sample(BASELINE, 0, 1.0)], COMMON, "all")
    assert row.accepted_lengths == [4, 0, 0, 2]
    assert row.n_without_drafts == 3


def test_same_as_baseline_looks_at_every_repeat():
    baseline = [sample(BASELINE, i, 1.0, 1.0) for i in range(2)]
    mine = [counted(MODEL, i, 1.0, 1.0) for i in range(2)]
    assert row_of(MODEL, mine, baseline, COMMON, "all").same_as_baseline is True
    mine[1].texts[1] = [*TEXT[:-1], 99]
    assert row_of(MODEL, mine, baseline, COMMON, "all").same_as_baseline is False
    mine[1].texts.pop()
    assert row_of(MODEL, mine, baseline, COMMON, "all").same_as_baseline is False, "a missing repeat is the same"


# --- the record -------------------------------------------------------------------------------------------------------


def test_a_recorded_line_holds_every_second_and_count_and_no_text():
    made = Line.begin(MODEL, 0.8, 3, "prose", 7)
    counts = Counts(n_rounds=5, n_drafted=10, n_accepted=5, n_rejected=4, n_emitted=10)
    for seconds in ((0.5, 2.0), (0.25, 3.0)):
        made.add(*seconds, [4711] * 11, counts, [RoundCounts(2, 1)] * 5)
    assert files.as_dict(made.recorded()) == {
        "method": "model", "draft": "model", "draft_length": 2, "temperature": 0.8, "prompt_index": 3,
        "prompt_kind": "prose", "n_prompt": 7, "prefill_seconds": [0.5, 0.25], "decode_seconds": [2.0, 3.0],
        "n_rounds": 10, "n_drafted": 20, "n_accepted": 10, "n_rejected": 8, "n_emitted": 20,
        "rounds": [[[2, 1, False]] * 5] * 2,
    }  # fmt: skip
