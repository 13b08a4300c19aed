"""Shapes: every measured curve gets the name of what was wrong with it, and few counts get none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab import load
from speclab.extensions.servers import profile, screen, shapes
from speclab.extensions.servers.curves import faults, measuring
from speclab.extensions.servers.curves.__main__ import HEADS, write_profile
from speclab.extensions.servers.curves.curve_record import CurvesRun
from speclab.extensions.servers.curves.curve_views import by_name
from speclab.extensions.servers.vllm.server_record import EngineCounts
from speclab.models import prompts
from speclab.models.loading import LAB_PAIR
from speclab.records.files import read
from speclab.system.paths import ROOT

RECORD = by_name(read(ROOT / "results" / "cpu-curves.json", CurvesRun))
NAMED = {
    "one off": shapes.ZERO,
    "not loaded": shapes.ZERO,
    "cached: second": shapes.ZERO,
    "stale token": shapes.CLIFF,
    "row off, feature": shapes.CLIFF,
    "row off, model": shapes.CLIFF,
    "independent": shapes.FALLING,
    "k = 16": shapes.TOO_LONG,
    "target": shapes.ALL,
    "unverified": shapes.ALL,
    "loop": shapes.ALL,
    "noise 0.4": shapes.LOW,
    "T = 1, certain": shapes.LOW,
    "buffer: behind": shapes.LOW,
}


@pytest.fixture
def tiny_lab(pair_folder, monkeypatch):
    """A tiny pair with two prompts that repeat themselves."""
    monkeypatch.setattr(measuring, "LONG_TEXT", 24)
    target = str(pair_folder / "target")
    setup = load(target, target, engine="eager").setup
    texts = prompts.encode([("text", "a b a b a b a b"), ("text", "def f(x):" * 3)], setup.tokenizer)
    return measuring.Lab(setup, texts, 24, 0)


def curve(n, kept, drafted=None):
    return EngineCounts(n_drafts=n, n_drafted=drafted or n * len(kept), n_accepted=sum(kept), accepted_at=list(kept))


@pytest.mark.parametrize("name", RECORD)
def test_a_measured_curve_has_the_shape_of_its_fault(name):
    assert shapes.shape_of(RECORD[name].counts) == NAMED.get(name)


def test_pairs_of_measured_curves():
    def counts(name):
        return RECORD[name].counts

    assert shapes.shape_of_two(counts("cached: first"), counts("cached: second"), shapes.FORGETS) == shapes.FORGETS
    assert shapes.shape_of_two(counts("buffer: before"), counts("buffer: behind"), shapes.ENDS) == shapes.ENDS
    assert shapes.shape_of_two(counts("model"), counts("word lists"), shapes.ENDS) is None
    assert shapes.fell_by_threshold(counts("threshold"), counts("no threshold")) == shapes.THRESHOLD
    assert shapes.fell_by_threshold(counts("model"), counts("noise 0.4")) is None, "fewer are accepted in a round"
    assert shapes.same_with_both(counts("row off, feature"), counts("row off, model")) == shapes.SAME_WITH_BOTH
    assert shapes.same_with_both(counts("stale token"), counts("model")) is None


@given(st.integers(0, 29), st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_few_counts_are_never_named(n, rates):
    kept, left = [], n
    for rate in rates:
        left = round(left * rate)
        kept.append(left)
    assert shapes.shape_of(curve(n, kept)) is None


@given(st.integers(300, 5000), st.floats(0.65, 0.85), st.integers(2, 5))
def test_a_level_curve_is_fine(n, rate, k):
    assert shapes.shape_of(curve(n, [round(n * rate**place) for place in range(1, k + 1)])) is None


def test_short_drafts_hide_what_stands_behind_the_first_position():
    assert shapes.shape_of(curve(400, [300, 10, 5, 0])) == shapes.CLIFF
    assert shapes.shape_of(curve(400, [300, 10, 5, 0], drafted=500)) is None


def test_the_screen_names_the_shape_and_its_cause():
    assert "a cliff" in screen.shape_lines(RECORD["stale token"].counts)[0]
    assert screen.shape_lines(RECORD["feature"].counts) == screen.shape_lines(None) == []


def test_a_curve_is_cut_into_halves_and_parts(tiny_lab):
    """What is wrong changes no text, and the counts of all parts are those of all rounds."""
    case = measuring.Case("cut", "", "ngram", 3, lambda lab: lab.draft("ngram"), cut=30)
    before, behind = measuring.curves_of(tiny_lab, case)
    whole = [measuring.rounds_of(tiny_lab, case, case.make(tiny_lab), prompt) for prompt in tiny_lab.prompts]
    rounds = [round_ for text in whole for _, round_ in text if round_.n_drafted]
    assert before.counts.n_drafts + behind.counts.n_drafts == len(rounds)
    assert before.counts.n_accepted + behind.counts.n_accepted == sum(one.n_accepted for one in rounds)
    assert all(place < 30 for text in whole for place, _ in text[:1])


def test_what_is_kept_unseen_is_everything(tiny_lab):
    case = measuring.Case("all", "", "ngram", 3, lambda lab: lab.draft("ngram"), rule=faults.keeps_everything)
    [entry] = measuring.curves_of(tiny_lab, case)
    assert entry.counts.n_accepted == entry.counts.n_drafted > 0


@pytest.mark.parametrize(("folder", "name"), HEADS.items())
def test_the_profile_beside_a_head_is_its_measured_curve(folder, name, tmp_path):
    committed = LAB_PAIR / folder / profile.NAME
    assert profile.read(committed).counts == RECORD[name].counts
    write_profile(read(ROOT / "results" / "cpu-curves.json", CurvesRun), folder, tmp_path)
    assert (tmp_path / profile.NAME).read_text() == committed.read_text()
