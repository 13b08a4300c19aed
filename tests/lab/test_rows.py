"""From seconds and counts to rows: every ratio against a value worked out by hand."""

from dataclasses import replace

import pytest

from speclab.core.counts import Counts
from speclab.lab.rows import noise_floors, row_of, rows_of
from speclab.records import files
from speclab.records.rows import BASELINE, BASELINE_REPEAT, GENERATE, Arm, Decoded, RoundCounts
from speclab.theory.attribution import PredictedSeconds

MODEL = Arm("model", "model", 2)
TEXT = list(range(11))  # one token from prefill, ten decoded
FIVE = {"n_rounds": 5, "n_drafted": 10, "n_accepted": 5, "n_rejected": 4, "n_emitted": 10}  # of two drafts each


def sample(arm: Arm, index: int, *seconds: float, prefill: float = 0.5, **counts) -> Decoded:
    """One decoding for each of `seconds`; `counts` belong to each of them."""
    made = Decoded.begin(arm, 0.0, index, "code", 7)
    for decode in seconds:
        made.add(prefill, decode, TEXT, Counts(**counts) if counts else None)
    return made


def test_row_computes_ratios_from_counts_and_seconds():
    """The speedup is a ratio of sums, never a mean of ratios (which would be 2.5 here), and prefill stays outside."""
    baseline = [sample(BASELINE, i, s) for i, s in enumerate((1.0, 4.0, 50.0))]  # the draft has not finished the third
    made = row_of([sample(MODEL, i, 1.0, prefill=0.7, **FIVE | {"n_rejected": 5 - 2 * i}) for i in (0, 1)], baseline)
    expected = {
        "speedup": 5 / 2, "speedup_with_prefill": (5 + 2 * 0.5) / (2 + 2 * 0.7), "seconds": 2.0,
        "n_emitted": 20, "tokens_per_second": 10.0, "tokens_per_round": 2.0, "acceptance_rate": 10 / 18,
        "drafted_fraction": 0.5, "book_formula": 1 / (1 - 10 / 18 + 10 / 36), "n_rounds": 10, "n_drafted": 20,
        "book_formula_drafted_fraction": 1 / (1 - 1 / 2 + 1 / 4), "n_accepted": 10, "n_rejected": 8,
    }  # fmt: skip
    assert {name: getattr(made, name) for name in expected} == pytest.approx(expected)
    assert (made.speedup_low, made.verdict) == (None, "unclear"), "two prompts are too few for an interval"
    assert made.draft_cost is made.forecast is made.ladder is None


def test_rows_stand_beside_the_baseline_of_their_group():
    """At each temperature one row for all prompts, and for each of several kinds. The baseline's second run gives a
    noise floor and no row."""
    made = []
    for temperature, kinds in ((0.0, ("code", "prose")), (0.7, ("code", "code"))):
        for i, kind in enumerate(kinds):
            for arm, seconds in ((BASELINE, 2.0 + 2 * i), (BASELINE_REPEAT, 4.0), (MODEL, 1.0)):
                one = Decoded.begin(arm, temperature, i, kind, 7)
                one.add(0.5, seconds, TEXT, Counts(**FIVE) if arm == MODEL else None)
                made += [one] * (arm != BASELINE_REPEAT or temperature == 0)
    found = [(row.temperature, row.prompt_kind, row.method, row.n_prompts, row.speedup) for row in rows_of(made)]
    wanted = [(0.0, "all", 2, 3.0), (0.0, "code", 1, 2.0), (0.0, "prose", 1, 4.0), (0.7, "all", 2, 3.0)]
    both = [(BASELINE.method, lambda speedup: 1.0), (MODEL.method, float)]
    assert found == [(t, kind, name, n, said(speedup)) for t, kind, n, speedup in wanted for name, said in both]
    assert [(floor.temperature, floor.ratio) for floor in noise_floors(made)] == [(0.0, 6 / 8)]


def test_a_row_says_what_its_decodings_had():
    """Replays, texts at a time, a lossy rule and its distance a token; sampled or missing texts are not compared."""
    mine, baseline = ([sample(arm, i, 1.0, **FIVE) for i in range(2)] for arm in (MODEL, BASELINE))

    def said() -> tuple:
        row = row_of(mine, baseline)
        return row.draft, row.n_replays, row.n_texts, row.lossy_rule, row.total_variation, row.same_as_baseline

    assert said() == ("model", None, 1, None, None, True)
    for i, one in enumerate(mine):
        one.n_replays, one.n_texts, one.lossy_rule, one.distance = 1 + i, 4, "lenient", 1.0 + i
    assert said() == ("model", 3, 4, "lenient", (1 + 2) / 20, True)
    mine[1].distance, baseline[1].texts = None, []
    assert said()[-2:] == (None, None)
    for one in (*mine, *baseline):
        one.temperature, one.texts = 0.7, [TEXT]
    assert said()[-1] is None


def test_interval_resamples_prompts_with_their_repeats_inside():
    """Two repeats of three prompts are three pairs of sums; the ratio of each pair is 2, so the interval is a point."""
    baseline = [sample(BASELINE, i, 1.0 + i, 3.0 + i) for i in range(3)]
    fast = [sample(MODEL, i, 1.5 + i, 0.5, **FIVE, n_replays=1) for i in range(3)]
    made = row_of(fast, baseline)
    assert (made.speedup_low, made.speedup, made.speedup_high) == pytest.approx((2.0, 2.0, 2.0))
    assert (made.n_prompts, made.n_emitted, made.n_replays, made.verdict) == (3, 60, 6, "faster")
    wider = row_of([sample(MODEL, 0, 0.5, 1.0, **FIVE), *fast[1:]], baseline)
    assert wider.speedup_low < wider.speedup < wider.speedup_high
    slow = row_of([sample(MODEL, i, 5.0 + i, 3.0 + 3 * i, **FIVE) for i in range(3)], baseline)
    assert (slow.speedup, slow.verdict) == (0.5, "slower")


def test_plain_rows():
    """The baseline is the yardstick. The library's loop cannot be split, so the baseline's prefill counts as well."""
    baseline = [sample(BASELINE, i, 1.0 + i) for i in range(3)]
    made = row_of(baseline, baseline)
    assert (made.speedup_low, made.speedup, made.speedup_high, made.speedup_with_prefill) == pytest.approx([1.0] * 4)
    assert made.draft is made.tokens_per_round is made.book_formula is made.verdict is baseline[0].draft is None
    assert (made.n_rounds, made.n_emitted, made.draft_length) == (30, 30, 0)
    arms = (BASELINE, MODEL, Arm("model auto", "model auto", 8, auto=True))
    assert [sample(arm, 0).arm.label for arm in arms] == ["baseline", "model k=2", "model auto"]
    theirs = row_of([sample(GENERATE, i, 1.25, prefill=0.0) for i in range(3)], baseline)
    assert theirs.speedup == theirs.speedup_with_prefill == pytest.approx((1 + 2 + 3 + 3 * 0.5) / (3 * 1.25))
    assert theirs.same_as_baseline is True


@pytest.mark.parametrize(
    ("arm", "counts", "expected"),
    [  # k = 0, a lookup that finds nothing, and drafts behind an end token, which are drafted and never tested
        (Arm("model", "model", 0), {"n_rounds": 10, "n_emitted": 10}, (None, None, None, 1)),
        (Arm("ngram", "ngram", 4), {"n_rounds": 10, "n_emitted": 10}, (None, None, None, 1)),
        (Arm("model", "model", 4), {"n_rounds": 1, "n_drafted": 4, "n_emitted": 1}, (None, 0, 1, 1)),
    ],
)
def test_nothing_tested_has_no_acceptance(arm, counts, expected):
    made = row_of([sample(arm, 0, 1.0, **counts)], [sample(BASELINE, 0, 1.0)])
    found = (made.acceptance_rate, made.drafted_fraction, made.book_formula_drafted_fraction, made.tokens_per_round)
    assert found == expected
    assert made.book_formula is None


def test_same_as_baseline_looks_at_every_repeat():
    baseline = [sample(BASELINE, i, 1.0, 1.0) for i in range(2)]
    mine = [sample(MODEL, i, 1.0, 1.0, **FIVE) for i in range(2)]
    assert row_of(mine, baseline).same_as_baseline is True
    for texts in ([TEXT, [*TEXT[:-1], 99]], [TEXT]):
        mine[1].texts = texts
        assert row_of(mine, baseline).same_as_baseline is False


def test_predictions_of_all_prompts_are_added_up():
    part = PredictedSeconds(10.0, draft=1, verify=6, overhead=1, expected=4, expected_rounds=4)
    own, baseline = [sample(MODEL, i, 1.0, **FIVE) for i in range(2)], [sample(BASELINE, i, 1.0) for i in range(2)]
    made = row_of(own, baseline, predicted={(MODEL, 0.0, i): part for i in range(2)})
    assert (made.draft_cost, made.accounting, made.forecast) == pytest.approx((0.1, 10 / 8, 10 / 4))
    one = {(MODEL, 0.0, 0): part}
    made = row_of(own, baseline, predicted=one | {(MODEL, 0.0, 1): replace(part, expected=0.0)})
    assert (made.accounting, made.forecast, made.ladder) == (10 / 8, None, None)
    assert row_of(own, baseline, predicted=one).accounting is None


def test_what_is_recorded_holds_every_second_and_count_and_no_text():
    made = Decoded.begin(MODEL, 0.8, 3, "prose", 7)
    for seconds in ((0.5, 2.0), (0.25, 3.00000001)):
        made.add(*seconds, [4711] * 11, Counts(**FIVE), [RoundCounts(2, 1)] * 5)
    assert files.as_dict(made.recorded()) == {
        "method": "model", "draft": "model", "draft_length": 2, "temperature": 0.8, "prompt_index": 3,
        "prompt_kind": "prose", "n_prompt": 7, "prefill_seconds": [0.5, 0.25], "decode_seconds": [2.0, 3.0],
        "n_rounds": 10, "n_drafted": 20, "n_accepted": 10, "n_rejected": 8, "n_emitted": 20,
        "rounds": [[[2, 1, False]] * 5] * 2,
    }  # fmt: skip
    assert replace(made, draft=None).recorded().rounds == []
