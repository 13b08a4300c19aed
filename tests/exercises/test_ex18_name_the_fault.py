"""Checks of exercise 18: conditional rates, f, and the cause of curves that the chapter does not show."""

import functools
import json
import re
from types import ModuleType

from solutions import ex18_name_the_fault as right
from speclab.system.paths import ROOT
from tests.exercises.answers import chapter, unlike, wrong

STEM = "ex18_name_the_fault"
Counts = tuple[int, int, tuple[int, ...]]


@functools.cache
def measured(whole: bool = False) -> dict[str, list[Counts]]:
    """The curves of the record, on each half of the prompts or on all of them; drafts that end early are left out."""
    found = {}
    for entry in json.loads((ROOT / "results" / "cpu-curves.json").read_text("utf-8"))["curves"]:
        halves = [(one["n_drafts"], one["n_drafted"], tuple(one["accepted_at"])) for one in entry["halves"]]
        if whole:
            kept = tuple(map(sum, zip(*(half[2] for half in halves), strict=True)))
            halves = [(sum(half[0] for half in halves), sum(half[1] for half in halves), kept)]
        if all(drafted == rounds * len(kept) for rounds, drafted, kept in halves):
            found[entry["name"]] = halves
    return found


def made(rounds: int, *kept: int) -> Counts:
    return rounds, rounds * len(kept), kept


CURVES = [
    *(half for halves in measured().values() for half in halves),
    made(29, 0, 0),
    made(30, 0, 0),
    made(30, 27, 27),
    made(200, 190, 100, 90),
    made(100, 96, 90, 84),  # f is 0.9
    made(100, 89, 85),
    made(200, 29, 14),
    made(200, 30, 14),  # kept as often as the line: not below it, and then less than half
    made(200, 100, 25),
    made(200, 100, 24),
    made(300, 150, 100, 44, 20),  # two thirds of the second
    made(300, 150, 100, 45, 20),
    made(300, 150, 120, 60, 40),
    made(300, 150, 90, 50, 20),
    made(100, 90, 54, 27),  # below two thirds of the first, not of the second
    made(100, 80, 48, 14),
    made(100, 70),
    made(400, 360, 350, 60, 20, 5),  # k = 5
    made(500, 400, 250, 200, 100, 40, 10),  # the second half brings just 0.15
    made(99, 54),
    made(100, 55),
    made(100, 50),
    made(100, 10),
    made(400, 300, 225, 169, 127, 95, 10),
    made(400, 300, 225, 169, 30, 20, 10),
    made(400, 300, 225, 169, 127, 20),
    made(1000, 700, 490, 343, 240, 160, 60, 20),  # of seven positions the last four are the second half
    made(400, 260, 130, 100, 90),
]


def as_read(curve: Counts) -> str:
    rounds, drafted, kept = curve
    return f"{rounds} rounds, {drafted} drafted, kept {kept}"


def rates_of(learner: ModuleType) -> list[object]:
    found = []
    for curve in CURVES:
        rates = learner.conditional(learner.Curve(*curve))
        found.append([None if rate is None else round(float(rate), 9) for rate in rates])
    return found


def test_conditional_rates(learner):
    """conditional: a rate is of the rounds that kept the position before; None where there is no such round."""
    for curve, given, expected, name in unlike(STEM, rates_of, learner, right, CURVES):
        wrong(f"{as_read(curve)}: the conditional rates are {expected}, yours says {given}{name}")


def shares_of(learner: ModuleType) -> list[object]:
    return [round(float(learner.accepted_share(learner.Curve(*curve))), 9) for curve in CURVES]


def test_the_accepted_share(learner):
    """accepted_share: it is accepted over drafted tokens."""
    for curve, given, expected, name in unlike(STEM, shares_of, learner, right, CURVES):
        wrong(f"{as_read(curve)}: f is {expected}, yours says {given}{name}")


def causes_of(learner: ModuleType) -> list[object]:
    own = learner.conditional, learner.accepted_share
    learner.conditional, learner.accepted_share = (
        right.conditional,
        right.accepted_share,
    )  # they have checks of their own
    try:
        return [learner.diagnose(learner.Curve(*curve)) for curve in CURVES]
    finally:
        learner.conditional, learner.accepted_share = own


def test_the_cause(learner):
    """diagnose: the first rule that is true gives the cause, on curves that the chapter does not show, too."""
    for curve, given, expected, name in unlike(STEM, causes_of, learner, right, CURVES):
        wrong(f"{as_read(curve)}: the cause is {expected!r}, yours says {given!r}{name}")


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_curves_of_the_chapter_are_measured_and_not_those_of_the_checks():
    rows = re.findall(r"^\| ([A-L]) \| (\d+) \| (\d+) \| ([\d, ]+) \|$", chapter(STEM), re.MULTILINE)
    shown = {name: (int(n), int(drafted), tuple(map(int, kept.split(", ")))) for name, n, drafted, kept in rows}
    whole = [curve for curves in measured(whole=True).values() for curve in curves]
    assert len(shown) == 12
    assert all(curve in whole and curve not in CURVES for curve in shown.values())
    entries = json.loads((ROOT / "results" / "cpu-curves.json").read_text("utf-8"))["curves"]
    faults = dict(re.findall(r"^\| ([A-L]) \| [a-z ]+ \| ([^\d|][^|]+) \|$", chapter(STEM), re.MULTILINE))
    for name, curve in shown.items():
        same = [one["fault"] for one in entries if measured(whole=True).get(one["name"]) == [curve]]
        assert faults[name] in [fault or "nothing is wrong" for fault in same]
    causes = dict(re.findall(r"^\| ([A-L]) \| ([a-z ]+) \| [^\d|]", chapter(STEM), re.MULTILINE))
    assert causes == {name: right.diagnose(right.Curve(*curve)) for name, curve in shown.items()}


def test_every_cause_is_asked_for():
    causes = {right.diagnose(right.Curve(*curve)) for curve in CURVES}
    assert len(causes) == 8
