"""The table of servers that are wrong on purpose: what it counts as right and as named, and what it does not mix."""

from dataclasses import replace

import pytest

from speclab.extensions.servers.diagnosis import NOTHING, TEXT_WRONG
from speclab.extensions.servers.wrong import __main__ as command
from speclab.extensions.servers.wrong import wrong_views
from speclab.extensions.servers.wrong.cases import CASES
from speclab.extensions.servers.wrong.wrong_record import WrongRun
from speclab.records import files
from speclab.system.errors import UsageProblem
from speclab.system.paths import ROOT

RECORD = ROOT / "results" / "cpu-2-cores-wrong-servers.json"


@pytest.fixture
def run() -> WrongRun:
    return files.read(RECORD, WrongRun)


def test_words_that_another_screen_has_name_nothing(run):
    one, other = run.wrong[:2]
    one, other = replace(one, cause="a word", screen=["a", "word"]), replace(other, cause="", right=False)
    run.wrong = [one, other]
    assert wrong_views.names(run, one)
    assert not wrong_views.names(run, other), "without words of its own, the answer must be right"
    run.wrong = [one, replace(other, screen=["this is a word"])]
    assert not wrong_views.names(run, one)


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
