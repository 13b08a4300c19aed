"""The table of servers that are wrong on purpose: what it counts as right and as named, and what it does not mix."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import causes
from speclab.extensions.servers.ask import engines
from speclab.extensions.servers.ask.client import Order
from speclab.extensions.servers.curves.measuring import Lab
from speclab.extensions.servers.diagnosis import COST, LOAD, NOTHING, REJECTED, TEXT_WRONG
from speclab.extensions.servers.wrong import __main__ as command
from speclab.extensions.servers.wrong import asking_wrong, wrong_views
from speclab.extensions.servers.wrong.__main__ import CASES
from speclab.extensions.servers.wrong.cases import DROPPED, Place
from speclab.extensions.servers.wrong.third_set import THIRD
from speclab.extensions.servers.wrong.wrong_record import WrongRun
from speclab.models import prompts
from speclab.models.loading import LAB_TARGET
from speclab.models.setup import load_setup
from speclab.records import files
from speclab.system.errors import UsageProblem
from speclab.system.paths import ROOT

RECORD = ROOT / "results" / "cpu-2-cores-wrong-servers.json"
CLOSED = {value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}


@pytest.fixture
def run() -> WrongRun:
    return files.read(RECORD, WrongRun)


def test_every_case_expects_an_answer_and_a_cause_that_the_command_can_give():
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        assert case.answer in ("", REJECTED, COST, LOAD, NOTHING, TEXT_WRONG, DROPPED)
        if case.answer not in (NOTHING, DROPPED):
            assert case.cause in CLOSED


def test_a_cause_counts_as_named_where_it_is_one_of_those_that_are_shown(run):
    right, no_cause = run.wrong[0], run.wrong[1]
    right = replace(right, half="third", cause="a", causes=["b", "a"], named=True, right=True)
    missed = replace(right, name="missed", causes=["b", "c"], named=False)
    fine = replace(no_cause, half="third", cause="", causes=[], named=True, right=True)
    run.wrong = [right, missed, fine]
    assert [wrong_views.place(one) for one in run.wrong] == ["2nd", "NO", "-"]
    both, chance = wrong_views.score(run, "third")
    assert both.startswith("3 of 3 answers are right, 1 of 2 true causes")
    assert "1 of 1 sound" in both
    run.wrong = [right, missed, replace(fine, named=False)]
    assert "1 of 2 true causes" in wrong_views.score(run, "third")[0], "a cause beside a sound server is none of them"
    assert "0 of 1 sound" in wrong_views.score(run, "third")[0]
    run.wrong = [right, missed]
    assert "sound" not in wrong_views.score(run, "third")[0]
    assert chance.endswith("one pair of causes for 2")


@given(st.integers(1, 200), st.floats(0, 1))
def test_the_ends_of_the_interval_are_1_96_errors_from_what_was_seen(n, share):
    """By the definition of Wilson: with the spread that the end itself would have."""
    n_right = round(n * share)
    low, high = wrong_views.interval(n_right, n)
    assert -1e-9 <= low <= n_right / n <= high <= 1 + 1e-9
    for end in (low, high):
        assert abs(n_right / n - end) == pytest.approx(1.96 * (max(0, end * (1 - end)) / n) ** 0.5, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("expected", "of_speed", "shown", "right"),
    [
        (COST, COST, COST, True),
        (COST, REJECTED, REJECTED, False),
        (REJECTED, REJECTED, f"{TEXT_WRONG}, and of its speed: {REJECTED}", True),
        (TEXT_WRONG, NOTHING, f"{TEXT_WRONG}, and of its speed: {NOTHING}", True),
        (TEXT_WRONG, NOTHING, NOTHING, False),
    ],
)
def test_an_answer_is_right_where_it_is_the_expected_one(expected, of_speed, shown, right):
    assert asking_wrong.is_right(expected, of_speed, shown) == right


def test_a_cause_is_named_by_name_alone():
    assert asking_wrong.is_named("a", ("b", "a"), right=False)
    assert not asking_wrong.is_named("a", ("b", "c"), right=True)
    assert asking_wrong.is_named("", (), right=True)
    assert not asking_wrong.is_named("", ("a",), right=True), "a cause is shown where nothing is wrong"
    assert not asking_wrong.is_named("", (), right=False)


def test_a_server_that_verifies_nothing_must_get_the_answer_about_its_text(run):
    [case] = [case for case in CASES if case.name == "nothing verified"]
    [one] = [one for one in run.wrong if one.name == case.name]
    assert case.answer == TEXT_WRONG
    assert one.answer.startswith(TEXT_WRONG)
    assert one.answer != NOTHING


@pytest.mark.parametrize("part", ["machine", "versions", "settings", "thresholds"])
def test_records_of_different_runs_are_not_added(run, part):
    other = files.read(RECORD, WrongRun)
    value = getattr(other, part)
    first = next(iter(value if isinstance(value, dict) else vars(value)))
    setattr(other, part, value | {first: 7} if isinstance(value, dict) else replace(value, **{first: "another"}))
    with pytest.raises(UsageProblem, match=f"other {part}"):
        command.add(run, other, "other.json")


def test_an_unknown_server_is_named(run):
    other = files.read(RECORD, WrongRun)
    other.wrong[0] = replace(other.wrong[0], name="nobody")
    with pytest.raises(UsageProblem, match="nobody"):
        command.add(run, other, "other.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    setup = load_setup(LAB_TARGET, engine="eager", threads=1)
    found = prompts.encode([("code", "def area(self):"), ("prose", "The old man")], setup.tokenizer)
    return Place(Lab(setup, found, 12, 0), "no program", Path("no file"), tmp_path_factory.mktemp("place"))


OWN = [case for case in THIRD if "others" not in case.name]


@pytest.mark.parametrize("case", OWN, ids=[case.name for case in OWN])
def test_a_fault_of_the_draft_changes_no_text_and_any_other_one_does(case, place):
    with case.start(place) as urls:
        texts = []
        for url in (urls.url, urls.plain):
            client = engines.find(url, None).client
            texts.append([client.ask(Order(one.text, 40, chat=False)).text for one in place.lab.prompts])
    assert (texts[0] == texts[1]) == (case.answer != TEXT_WRONG)
