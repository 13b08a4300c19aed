"""What a comparison of batches shows, and in which order: whether the texts are right, whether to believe, how fast."""

from dataclasses import replace

import pytest

from speclab.extensions.batch import batch_views
from speclab.extensions.batch.batch_record import BatchNoise, BatchRun, Chosen
from speclab.records.files import read
from speclab.system.paths import ROOT
from speclab.theory import attribution

RECORD = ROOT / "results" / "cpu-2-cores-sweep-batch.json"


@pytest.fixture
def run() -> BatchRun:
    """A record with everything that a new one has."""
    made = read(RECORD, BatchRun)
    best = [pair.best for pair in batch_views.pairs(replace(made, chosen=None), "model")]
    made.chosen = [
        Chosen(
            draft="model",
            n_texts=row.n_texts,
            draft_length=2,
            n_prompts=15,
            tokens_per_second=150.0,
            plain_tokens_per_second=120.0,
            speedup=1.25,
            speedup_low=0.9,
            speedup_high=1.5,
            verdict="unclear",
        )
        for row in best
    ]
    made.noise = [
        BatchNoise(temperature=0.0, ratio=1.01, low=0.99, high=1.02, n_texts=n) for n in sorted({1, *made.batches})
    ]
    made.n_distinct, made.row_by_row = 30, []
    return made


def test_texts_come_before_speeds(run):
    for shown in (batch_views.text(run), batch_views.page(run, "x.png")):
        order = [shown.index(words) for words in ("same text? lab pair", "best draft length", "noise floor, plain")]
        assert order == sorted(order)
    assert batch_views.text(run).startswith("same text? lab pair, greedy:")


def test_a_wrong_text_is_said_first(run):
    run.correctness[3] |= {"passed": False}
    head = batch_views.text(run).partition("the best draft length")[0]
    assert "WRONG OUTPUT: baseline, 16 at a time" in head


def test_rough_speeds_hide_nothing(run, monkeypatch):
    """Every row is marked, and one sentence says why."""
    monkeypatch.setattr(attribution, "FURTHEST", 1.1)
    quiet = batch_views.text(run)
    assert "ROUGH" not in quiet
    run.noise[2] = replace(run.noise[2], ratio=0.8, low=0.7, high=0.9)
    text, page = batch_views.text(run), batch_views.page(run, "x.png")
    for shown in (text, page):
        assert shown.index("ROUGH") < shown.index("best draft length")
        assert "pays up to" in shown


def test_the_best_length_is_shown_with_the_other_half(run):
    text = " ".join(batch_views.text(run).split())
    assert text.count("1.25x unclear") == len(run.batches)
    assert "0.90 to 1.50" in text


def test_what_drafts_nothing_says_so(run):
    row = next(row for row in run.rows if row.draft)
    row.n_drafted = 0
    assert batch_views.ALL["speedup"](row) == "drafts nothing"
    row.n_drafted, row.verdict, row.speedup = 5, "slower", 0.8
    assert batch_views.ALL["speedup"](row) == "0.80x slower"
    run.chosen = [entry for entry in run.chosen if entry.n_texts != 4]
    assert [pair.best.n_texts for pair in batch_views.pairs(run, "model")] == [1, 2, 8, 16]
