"""Shapes: every measured curve gets the name of what was wrong with it, and few counts get none."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import counters, curves, diagnose
from speclab.extensions.servers.counters import EngineCounts
from speclab.models import prompts
from speclab.models.loading import LAB_PAIR, LAB_TARGET
from speclab.models.setup import load_setup
from speclab.system.files import ROOT
from tests.decoding import plain_text

CURVES = json.loads((ROOT / "results" / "cpu-curves.json").read_text())["curves"]
RECORD = {one["name"]: counters.total(EngineCounts(**half) for half in one["halves"]) for one in CURVES}
NAMED = dict.fromkeys(("one off", "not loaded", "cached: second"), diagnose.ZERO)
NAMED |= dict.fromkeys(("stale token", "row off, feature", "row off, model"), diagnose.CLIFF)
NAMED |= dict.fromkeys(("target", "unverified", "loop"), diagnose.ALL)
NAMED |= dict.fromkeys(("other layers", "buffer: behind"), diagnose.RISING)
NAMED |= dict.fromkeys(("noise 0.4", "T = 1, certain"), diagnose.LOW)
NAMED |= {"independent": diagnose.FALLING, "k = 16": diagnose.LATE}


def curve(n, kept, drafted=None):
    return EngineCounts(n_drafts=n, n_drafted=drafted or n * len(kept), n_accepted=sum(kept), accepted_at=list(kept))


@pytest.mark.parametrize("name", RECORD)
def test_a_measured_curve_has_the_shape_of_its_fault(name):
    assert diagnose.shape_of(RECORD[name]) == NAMED.get(name)


def test_pairs_of_measured_curves():
    for first, second, named in (("buffer: before", "buffer: behind", diagnose.ENDS), ("model", "word lists", None)):
        assert diagnose.shape_of_two(RECORD[first], RECORD[second], diagnose.ENDS) == named


@given(st.integers(0, 29), st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_few_counts_are_never_named(n, rates):
    kept, left = [], n
    for rate in rates:
        left = round(left * rate)
        kept.append(left)
    assert diagnose.shape_of(curve(n, kept)) is None


def falling(n, first, later, k=4):
    """A first position, and positions behind it, that are kept so often."""
    return curve(n, [round(n * first * later**place) for place in range(k)])


@given(st.integers(300, 5000), st.floats(0.65, 0.85), st.integers(2, 5))
def test_a_level_curve_is_fine(n, rate, k):
    assert diagnose.shape_of(falling(n, rate, rate, k)) is None


def test_curves_that_are_nearly_those_of_another_shape():
    """speculators 613 has .34, then nothing; a rate that rises is no cliff; and .985 at k = 16 is very good."""
    assert diagnose.shape_of(curve(144, [49, 0, 0, 0])) == diagnose.CLIFF
    assert diagnose.shape_of(curve(400, [100, 60, 50, 40])) == diagnose.RISING
    assert diagnose.shape_of(falling(60, 0.985, 0.985, 16)) is None, "f is near .9: tokens are not independent"


@given(st.integers(300, 3000), st.floats(0.3, 0.6), st.floats(0.85, 0.95), st.floats(0, 3))
def test_a_first_position_that_is_low_is_a_fault_of_what_drafts_in_every_round(n, first, later, idle):
    """A lookup finds a copy in some rounds only, and then keeps much of it: that is sound."""
    found = falling(n, first, later)
    assert diagnose.shape_of(found) == diagnose.shape_of(found, n) == diagnose.RISING
    if diagnose.ALWAYS * (1 + idle) > 1:
        assert diagnose.shape_of(found, n * (1 + idle)) != diagnose.RISING


@given(st.lists(st.tuples(st.integers(40, 2000), st.floats(0.2, 0.99)), min_size=1, max_size=4))
def test_level_kinds_together_never_have_the_shape_of_a_fault(sound):
    """Easy texts reach the later positions, so together they rise: half of the rounds at .97 and half at .40 do."""
    kinds = [falling(n, rate, rate) for n, rate in sound]
    found = diagnose.shape_of(counters.total(kinds), 0, kinds)
    assert found is None or not found.faulty
    both = [falling(500, rate, rate) for rate in (0.97, 0.4)]
    assert diagnose.shape_of(counters.total(both)) == diagnose.RISING


@given(st.lists(st.integers(150, 2000), min_size=2, max_size=4), st.integers(0, 29))
def test_what_rises_inside_the_kinds_is_a_fault(sizes, few):
    kinds = [falling(n, 0.45, 0.9) for n in sizes]
    assert diagnose.shape_of(counters.total(kinds), 0, kinds) == diagnose.RISING_INSIDE
    assert diagnose.shape_of(kinds[0], 0, kinds[:1]) == diagnose.RISING, "one kind is no proof"
    both = [kinds[0], falling(few, 0.45, 0.9)]
    assert diagnose.shape_of(kinds[0], 0, both) == diagnose.RISING, "nor are few rounds of a second"


def test_short_drafts_hide_what_stands_behind_the_first_position():
    assert diagnose.shape_of(curve(400, [300, 10, 5, 0])) == diagnose.CLIFF
    short = curve(400, [300, 10, 5, 0], drafted=500)
    assert diagnose.shape_of(short) is None
    assert diagnose.shape_of(replace(short, tested_at=[400, 10, 10, 5])) is None, "what was tested is known"
    assert diagnose.shape_of(replace(short, tested_at=[400, 290, 10, 5])) == diagnose.CLIFF


@pytest.fixture(scope="module")
def lab():
    """The lab's own pair, with one prompt."""
    setup = load_setup(LAB_TARGET, engine="eager", threads=1)
    return setup, prompts.encode([("text", "def area(self):")], setup.tokenizer)


@pytest.mark.parametrize("case", curves.CASES, ids=lambda case: case.name)
def test_what_is_wrong_with_a_draft_changes_no_text(case, lab):
    """Each fault shows in acceptance alone: the text is the baseline's."""
    setup, [prompt] = lab
    drafter = case.fault(curves.registry.make(case.right, setup), setup)
    rounds = curves.rounds_of(setup, drafter, prompt, case.k, 12)
    found = [token for round_ in rounds for token in round_.tokens][:12]
    assert found == plain_text(setup.target, prompt.ids, 12)


def test_the_counts_of_the_parts_are_those_of_all_rounds(lab, monkeypatch):
    """Of a curve that is cut by its place in the text."""
    setup, texts = lab
    monkeypatch.setattr(curves, "LONG_TEXT", 24)
    lookup = curves.Case("x", 3, "ngram")
    [whole] = curves.curves_of(setup, lookup, texts, 24).values()
    assert f" {whole.n_drafts} " in curves.line("x", 3, whole)
    found = curves.curves_of(setup, lookup._replace(cut=texts[0].ids.shape[1] + 12), texts, 24)
    assert (len(found), counters.total(found.values())) == (2, whole)


@pytest.mark.parametrize(("folder", "name"), [("feature", "feature"), ("block", "block"), ("draft", "model")])
def test_the_profile_beside_a_head_is_its_measured_curve(folder, name):
    found = json.loads((LAB_PAIR / folder / "speculation_profile.json").read_text("utf-8"))
    rounds = {int(length): n for length, n in found["acceptance_length_histogram"].items()}
    at = [sum(n for length, n in rounds.items() if length > place) for place in range(1, max(rounds))]
    assert (RECORD[name].n_drafts, RECORD[name].accepted_at) == (sum(rounds.values()), at)
