"""Shapes: every measured curve gets the name of what was wrong with it, and few counts get none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab import load
from speclab.extensions.servers import causes, screen, shapes
from speclab.extensions.servers.causes import Named
from speclab.extensions.servers.counters import total
from speclab.extensions.servers.curves import faults, measuring
from speclab.extensions.servers.curves.curve_record import CurvesRun
from speclab.extensions.servers.curves.curve_views import by_name
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.models import prompts
from speclab.models.loading import LAB_PAIR, LAB_TARGET
from speclab.models.setup import load_setup
from speclab.records.files import read
from speclab.system.paths import ROOT
from tests.decoding import plain_text

RECORD = by_name(read(ROOT / "results" / "cpu-curves.json", CurvesRun))
NAMED = {
    "one off": shapes.ZERO,
    "not loaded": shapes.ZERO,
    "cached: second": shapes.ZERO,
    "stale token": shapes.CLIFF,
    "row off, feature": shapes.CLIFF,
    "row off, model": shapes.CLIFF,
    "independent": shapes.FALLING,
    "other layers": shapes.RISING,
    "k = 16": shapes.TOO_LONG,
    "target": shapes.ALL,
    "unverified": shapes.ALL,
    "loop": shapes.ALL,
    "noise 0.4": shapes.LOW,
    "T = 1, certain": shapes.LOW,
    "buffer: behind": shapes.RISING,
}


@pytest.fixture
def tiny_lab(pair_folder, monkeypatch):
    """A tiny pair with two prompts that repeat themselves."""
    monkeypatch.setattr(measuring, "LONG_TEXT", 24)
    target = str(pair_folder / "target")
    setup = load(target, target, engine="eager").setup
    texts = prompts.encode([("text", "a b a b a b a b"), ("text", "def f(x):" * 3)], setup.tokenizer)
    return measuring.Lab(setup, texts, 24, 0)


@pytest.fixture(scope="module")
def pair_lab():
    """The lab's own pair, with one prompt."""
    setup = load_setup(LAB_TARGET, engine="eager", threads=1)
    return measuring.Lab(setup, prompts.encode([("text", "def area(self):")], setup.tokenizer), 12, 0)


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


def test_a_start_below_a_third_can_end_in_a_cliff():
    """speculators 613 has .34, then nothing; and a rate that rises is no cliff."""
    assert shapes.shape_of(curve(144, [49, 0, 0, 0])) == shapes.CLIFF
    assert shapes.shape_of(curve(400, [100, 60, 50, 40])) == shapes.RISING


@given(st.integers(300, 3000), st.floats(0.3, 0.6), st.floats(0.85, 0.95), st.floats(0, 3))
def test_a_first_position_that_is_low_is_a_fault_of_what_drafts_in_every_round(n, first, later, idle):
    """A lookup finds a copy in some rounds only, and then keeps much of it: that is sound."""
    found = curve(n, [round(n * first * later**place) for place in range(4)])
    assert shapes.shape_of(found) == shapes.shape_of(found, n) == shapes.RISING
    if shapes.ALWAYS * (1 + idle) > 1:
        assert shapes.shape_of(found, n * (1 + idle)) != shapes.RISING


def rising(n, first=0.45, later=0.9):
    return curve(n, [round(n * first * later**place) for place in range(4)])


def level(n, rate):
    return curve(n, [round(n * rate**place) for place in range(1, 5)])


@given(st.lists(st.tuples(st.integers(40, 2000), st.floats(0.2, 0.99)), min_size=1, max_size=4))
def test_level_kinds_together_never_have_the_shape_of_a_fault(sound):
    """Easy texts reach the later positions, so together they rise: half of the rounds at .97 and half at .40 do."""
    kinds = [level(n, rate) for n, rate in sound]
    found = shapes.shape_of(total(kinds), 0, kinds)
    assert found is None or not found.faulty
    assert shapes.shape_of(total([level(500, 0.97), level(500, 0.4)])) == shapes.RISING


@given(st.lists(st.integers(150, 2000), min_size=2, max_size=4), st.integers(0, 29))
def test_what_rises_inside_the_kinds_is_a_fault(sizes, few):
    kinds = [rising(n) for n in sizes]
    assert shapes.shape_of(total(kinds), 0, kinds) == shapes.RISING_INSIDE
    assert shapes.shape_of(kinds[0], 0, kinds[:1]) == shapes.RISING, "one kind is no proof"
    assert shapes.shape_of(kinds[0], 0, [kinds[0], rising(few)]) == shapes.RISING, "nor are few rounds of a second"


@given(st.lists(st.tuples(st.integers(30, 900), st.integers(30, 900), st.floats(0.02, 1)), min_size=1, max_size=4))
def test_long_texts_of_another_kind_are_no_end_of_a_window(kinds):
    """Of each kind the draft is as good in long texts as in short ones; how many rounds of each there are is free."""
    pairs = [(level(n_short, rate), level(n_long, rate)) for n_short, n_long, rate in kinds]
    assert shapes.shape_of_lengths(pairs) is None
    apart = [(level(400, 0.9), level(9, 0.9)), (level(40, 0.1), level(400, 0.1))]
    assert shapes.shape_of_lengths(apart) is None
    together = [total(parts) for parts in zip(*apart, strict=True)]
    assert shapes.shape_of_two(*together, shapes.ENDS) == shapes.ENDS, "that is what the kinds together say"


@given(st.lists(st.floats(0.5, 1), min_size=1, max_size=4))
def test_a_window_that_ends_shows_in_each_kind(rates):
    pairs = [(level(150, rate), level(300, rate / 4)) for rate in rates]
    assert shapes.shape_of_lengths(pairs) == shapes.ENDS


def test_a_very_good_draft_of_long_drafts_is_not_called_unverified():
    """α = .985 at k = 16: f is near .9, and its tokens are not independent."""
    assert shapes.shape_of(curve(60, [round(60 * 0.985**place) for place in range(1, 17)])) is None


def test_short_drafts_hide_what_stands_behind_the_first_position():
    assert shapes.shape_of(curve(400, [300, 10, 5, 0])) == shapes.CLIFF
    assert shapes.shape_of(curve(400, [300, 10, 5, 0], drafted=500)) is None


def test_the_screen_names_the_shape_and_its_cause():
    assert "a cliff" in screen.shape_lines([shapes.shape_of(RECORD["stale token"].counts)])[0]
    for shape in vars(shapes).values():
        if isinstance(shape, shapes.Shape):
            assert all(causes.of_kind(Named(shape.causes, ""), kind).causes for kind in causes.IMPOSSIBLE)
    assert shapes.shape_of(RECORD["feature"].counts) is None
    assert screen.shape_lines([]) == []


def test_a_curve_is_cut_into_halves_and_parts(tiny_lab):
    """What is wrong changes no text, and the counts of all parts are those of all rounds."""
    case = measuring.Case("cut", "", "ngram", 3, lambda lab: lab.draft("ngram"), cut=30)
    before, behind = measuring.curves_of(tiny_lab, case)
    whole = [measuring.rounds_of(tiny_lab, case, case.make(tiny_lab), prompt) for prompt in tiny_lab.prompts]
    for entry, part in ((before, lambda place: place < 30), (behind, lambda place: place >= 30)):
        texts = [[round_ for place, round_ in text if part(place) and round_.n_drafted] for text in whole]
        rounds = [round_ for text in texts for round_ in text]
        assert entry.counts.n_drafts == len(rounds) > 0
        assert entry.counts.n_accepted == sum(one.n_accepted for one in rounds)
        assert [half.n_drafts for half in entry.halves] == [len(text) for text in texts]


LOSSLESS = [case for case in measuring.CASES if case.rule is measuring.accept_from_logits and not case.temperature]


@pytest.mark.parametrize("name", [case.name for case in LOSSLESS])
def test_what_is_wrong_with_a_draft_changes_no_text(name, pair_lab):
    """Each fault shows in acceptance alone: the text is the baseline's, also where a prompt is asked twice."""
    [case] = [case for case in LOSSLESS if case.name == name]
    drafter, prompt = case.make(pair_lab), pair_lab.prompts[0]
    expected = plain_text(pair_lab.setup.target, prompt.ids, 12)
    for _ in range(1 + case.twice):
        rounds = measuring.rounds_of(pair_lab, case, drafter, prompt)
        found = [token for _, round_ in rounds for token in round_.tokens]
        assert found[:11] == expected[1:12]


def test_what_is_kept_unseen_is_everything(tiny_lab):
    case = measuring.Case("all", "", "ngram", 3, lambda lab: lab.draft("ngram"), rule=faults.keeps_everything)
    [entry] = measuring.curves_of(tiny_lab, case)
    assert entry.counts.n_accepted == entry.counts.n_drafted > 0


@pytest.mark.parametrize(("folder", "name"), [("feature", "feature"), ("block", "block"), ("draft", "model")])
def test_the_profile_beside_a_head_is_its_measured_curve(folder, name):
    found = json.loads((LAB_PAIR / folder / "speculation_profile.json").read_text("utf-8"))
    rounds = {int(length): n for length, n in found["acceptance_length_histogram"].items()}
    accepted_at = [sum(n for length, n in rounds.items() if length > place) for place in range(1, max(rounds))]
    counts = RECORD[name].counts
    assert counts.accepted_at == accepted_at
    assert (counts.n_drafts, counts.n_accepted) == (sum(rounds.values()), sum(accepted_at))
    assert counts.n_drafted == found["measurement_conditions"].get(
        "n_drafted_tokens", counts.n_drafts * len(accepted_at)
    )
