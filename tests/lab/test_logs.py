"""The log of a record is enough: its rows are computed from it again, in the one function that computed them first."""

import pytest

from speclab.lab.rows import rows_of
from speclab.records import files
from speclab.records.files import ComparisonRun
from speclab.records.rows import Row
from tests.present.made import COMPARISONS

NAMES = ("method", "draft", "draft_length", "temperature", "prompt_kind")
COUNTS = ("n_prompts", "n_rounds", "n_drafted", "n_accepted", "n_rejected", "n_emitted", "n_replays")
RATIOS = ("acceptance_rate", "drafted_fraction", "tokens_per_round", "book_formula", "book_formula_drafted_fraction")
RATIOS += ("lossy_rule", "total_variation")
OF_CLOCK = ("seconds", "tokens_per_second", "speedup", "speedup_low", "speedup_high", "speedup_with_prefill")


def pairs_of(run: ComparisonRun) -> list[tuple[Row, Row]]:
    """Every row of a record, beside the same row computed from its log; those of the padded pair, too."""
    pairs = list(zip(run.rows, rows_of(run.raw), strict=True))
    return pairs + (pairs_of(run.padded) if run.padded else [])


def assert_same(one: Row, other: Row, names: tuple[str, ...]) -> None:
    mine, theirs = ({name: getattr(row, name) for name in names} for row in (one, other))
    assert files.as_dict(mine) == files.as_dict(theirs), (one.method, one.draft_length, one.prompt_kind)


@pytest.mark.parametrize("path", [path for path in COMPARISONS if path.stem.startswith("cpu")], ids=lambda p: p.stem)
def test_rows_of_a_committed_record_follow_from_its_log(path):
    """Counts and their ratios are equal to the last digit. The committed rows were computed from seconds with all
    digits, of which the log kept seven: their ratios agree in six."""
    for row, again in pairs_of(files.read(path, ComparisonRun)):
        assert_same(row, again, NAMES + COUNTS + RATIOS)
        for name in OF_CLOCK:
            before = getattr(row, name)
            assert getattr(again, name) == (before and pytest.approx(before, rel=3e-6)), name


def test_rows_of_a_new_record_follow_from_its_log_to_the_last_digit(whole):
    record = whole.record
    pairs = pairs_of(record)
    for row, again in pairs:
        assert_same(row, again, NAMES + COUNTS + RATIOS + OF_CLOCK)
        assert (row.speedup_low is not None) == (row.prompt_kind == "all"), "three prompts have an interval"
    assert any(row.n_accepted and row.auto for row, _ in pairs)
    for line in record.raw:
        made = [one for rounds in line.rounds for one in rounds]
        assert bool(made) == bool(line.draft)
        if made:
            sums = len(made), sum(one.n_drafted for one in made), sum(one.n_accepted for one in made)
            assert sums == (line.n_rounds, line.n_drafted, line.n_accepted)
