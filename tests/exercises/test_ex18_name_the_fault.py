"""Checks of exercise 18: conditional rates, f, and the cause of curves that the chapter does not show."""

import functools
import json
import random
import re
from unittest import mock

from solutions import ex18_name_the_fault as right
from speclab.system.paths import ROOT
from tests.exercises.answers import asked, chapter, simplest

STEM = "ex18_name_the_fault"
Counts = tuple[int, int, tuple[int, ...]]


@functools.cache
def entries() -> list[dict]:
    return json.loads((ROOT / "results" / "cpu-curves.json").read_text("utf-8"))["curves"]


@functools.cache
def measured(whole: bool = False) -> dict[str, list[Counts]]:
    """The curves of the record, on each half of the prompts or on all of them; drafts that end early are left out."""
    found = {}
    for entry in entries():
        halves = [(one["n_drafts"], one["n_drafted"], tuple(one["accepted_at"])) for one in entry["halves"]]
        if whole:
            kept = tuple(map(sum, zip(*(half[2] for half in halves), strict=True)))
            halves = [(sum(half[0] for half in halves), sum(half[1] for half in halves), kept)]
        if all(drafted == rounds * len(kept) for rounds, drafted, kept in halves):
            found[entry["name"]] = halves
    return found


def made(dice: random.Random) -> Counts:
    """A curve of round numbers, so that it often lies on a border of a rule."""
    rounds, kept = dice.choice([29, 30, 100, 200, 1000]), []
    for _ in range(dice.choice([1, 2, 3, 4, 5, 7, 8])):
        before = kept[-1] if kept else rounds
        kept.append(int(before * dice.choice([1, 0.96, 0.9, 0.8, 0.7, 2 / 3, 0.5, 0.4, 0.15, 0.1, 0])))
    return rounds, rounds * len(kept), tuple(kept)


DICE = random.Random(0)
CURVES = simplest([*(half for halves in measured().values() for half in halves), *(made(DICE) for _ in range(3000))])
READ = "{} rounds, {} drafted, kept {}: "


@asked(CURVES, READ + "the conditional rates")
def test_conditional_rates(one, *curve):
    """conditional: a rate is of the rounds that kept the position before; None where there is no such round."""
    return [None if rate is None else round(float(rate), 9) for rate in one.conditional(one.Curve(*curve))]


@asked(CURVES, READ + "f")
def test_the_accepted_share(one, *curve):
    """accepted_share: it is accepted over drafted tokens."""
    return round(float(one.accepted_share(one.Curve(*curve))), 9)


@asked(CURVES, READ + "the cause")
def test_the_cause(one, *curve):
    """diagnose: the first rule that is true gives the cause, on curves that the chapter does not show, too."""
    with mock.patch.multiple(one, conditional=right.conditional, accepted_share=right.accepted_share):
        return one.diagnose(one.Curve(*curve))  # the others have checks of their own


def test_the_curves_of_the_chapter_are_measured_and_not_those_of_the_checks():
    table = re.findall(r"^\| ([A-L]) \| (\d+) \| (\d+) \| ([\d, ]+) \|$", chapter(STEM), re.MULTILINE)
    shown = {name: (int(n), int(drafted), tuple(map(int, kept.split(", ")))) for name, n, drafted, kept in table}
    whole = [curve for curves in measured(whole=True).values() for curve in curves]
    assert len(shown) == 12
    assert all(curve in whole and curve not in CURVES for curve in shown.values())
    said = re.findall(r"^\| ([A-L]) \| ([a-z ]+) \| ([^\d|][^|]+) \|$", chapter(STEM), re.MULTILINE)
    for name, cause, fault in said:
        same = [one["fault"] for one in entries() if measured(whole=True).get(one["name"]) == [shown[name]]]
        assert fault in [fault or "nothing is wrong" for fault in same]
        assert cause == right.diagnose(right.Curve(*shown[name]))
    assert [name for name, *_ in said] == list(shown)


def test_every_cause_is_asked_for():
    assert len({right.diagnose(right.Curve(*curve)) for curve in CURVES}) == 8
