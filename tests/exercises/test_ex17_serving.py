"""Checks of exercise 17: two looks, what they say, a stream, the lab's rounds, and the cause of a curve.

One check and the numbers of the page come from a recorded transcript (exercises/transcript.py), others from measured
curves (results/cpu-curves.json) that the chapter does not show.
"""

import functools
import json
import random
import re
from collections.abc import Callable
from unittest import mock

from exercises import transcript
from solutions import ex17_serving as right
from speclab.system.files import ROOT
from tests.exercises.answers import asked, chapter, simplest

STEM = "ex17_serving"
RECORD = transcript.load()


def rounded(number: object) -> object:
    """For comparing: nine digits are enough."""
    return None if number is None else float(f"{float(number):.9g}")


def or_error(call: Callable[..., object], *args: object) -> object:
    """What it gives, or the name of what was raised; only a ValueError is ever asked for."""
    try:
        return call(*args)
    except (ValueError, ZeroDivisionError, KeyError) as error:
        return type(error).__name__


def numbers(found: object, *what: str) -> object:
    """As many numbers as there are names in `what`, or the name of what was raised."""
    return found if isinstance(found, str) else dict(zip(what, map(rounded, found), strict=True))


DICE = random.Random(0)


def look(dice: random.Random) -> tuple[dict[str, float], dict[str, float]]:
    """A page before and after; now and then a series falls, stands still, is gone, or is new."""
    before = {name: dice.randrange(8) / 4 for name in "nms"[: dice.randrange(4)]}
    steps = [0.0, 0.25, 1.0, 2.0] * 3 + [-1e-4, -0.25, -1.0]
    after = {name: value + dice.choice(steps) for name, value in before.items() if dice.random() < 0.95}
    return before, after | ({"new": 3.0} if dice.random() < 0.3 else {})


LOOKS = simplest(look(DICE) for _ in range(300))


@asked(LOOKS, "before {}, after {}")
def test_what_happened_between_two_looks(one, *looks):
    """between: every series has a difference; where one fell or is gone, another server has answered."""
    found = or_error(one.between, *map(dict, looks))
    return found if isinstance(found, str) else {name: rounded(value) for name, value in found.items()}


Rounds = list[tuple[int, int]]  # drafted, accepted


def rounds(dice: random.Random, k: int, least: int = 0) -> Rounds:
    drafted = [dice.choice([k, k, k, dice.randint(least, k)]) for _ in range(dice.randint(least, 4))]
    return [(n, dice.randint(0, n)) for n in drafted]


def counts_of(served: Rounds, k: int) -> dict[str, float]:
    """What a server counts of rounds that have drafted and kept so many."""
    return {
        right.DRAFTS: float(len(served)),
        right.DRAFTED: float(sum(drafted for drafted, _ in served)),
        right.ACCEPTED: float(sum(kept for _, kept in served)),
        **{right.kept_at(place): float(sum(kept > place for _, kept in served)) for place in range(k)},
    }


ROUNDS = simplest((rounds(DICE, k, 1), k) for k in [1, 2, 3, 4, 7] * 40)


@asked(ROUNDS, "the counts of rounds with (drafted, accepted) {}, k = {}")
def test_three_numbers_that_are_called_acceptance(one, served, k):
    """acceptance: alpha is of the tested tokens, f of the drafted ones, and a round has the target's own token, too."""
    return numbers(or_error(one.acceptance, counts_of(served, k), k), "alpha", "f", "tokens of a round")


def chunks(dice: random.Random) -> tuple[list[tuple[float, int]]]:
    """The chunks of a stream: seconds, which may be those of the chunk before, and tokens, which may be none."""
    times = sorted(0.25 * dice.randint(1, 4) for _ in range(dice.randrange(5)))
    return ([(seconds, dice.randrange(4)) for seconds in times],)


STREAMS = simplest(chunks(DICE) for _ in range(600))


@asked(STREAMS, "chunks (seconds, tokens) {}")
def test_a_stream_is_timed(one, stream):
    """from_stream: tokens are counted, not chunks; those of the first chunk took none of the time after it."""
    return numbers(or_error(one.from_stream, list(stream)), "seconds to the first token", "seconds per token")


def fit(dice: random.Random) -> tuple[dict[str, float], Rounds, int]:
    """What a server counts, the lab's rounds, k. Of the server one round is another one, is missing, or is new."""
    k = dice.randint(1, 4)
    own = rounds(dice, k)
    served, at = list(own), dice.choice([len(own) - 1, dice.randrange(len(own))]) if own else 0
    other = dice.choice([dice.randint(0, k)] * 5 + [k + 1]), dice.randint(0, k)
    change = dice.choice(["none", "missing", "new", *["other"] * 5])
    if change != "none":
        served[at : at + (change != "new")] = [other] * (change != "missing")
    return counts_of([one for one in served if one[0]], k), own, k


FITS = simplest(fit(DICE) for _ in range(1500))


def fit_in_words(counts: dict[str, float], own: Rounds, k: int) -> str:
    drafts, drafted, accepted, *kept = (int(n) for n in counts.values())
    server = f"{drafts} drafts of {drafted} tokens, {accepted} accepted, by place {kept}"
    return f"k = {k}; the server: {server}; the lab's rounds {own}"


@asked(FITS, fit_in_words)
def test_counters_are_held_against_own_rounds(one, counts, own, k):
    """reconcile: every counter must fit, the places too; only the very last round may differ, and only as one round."""
    return one.reconcile(dict(counts), list(own), k)


SAID = [("alpha, f, tokens of a round, verdict of prompt", number) for number in range(len(RECORD.prompts))]
SAID.append(("seconds per token, plain, predicted, measured, and of the server's page; prompts", len(SAID)))


@asked(SAID, "the transcript, {} {}")
def test_the_recorded_servers(one, what, number):
    """between, acceptance, from_stream, reconcile: all together read what real servers said."""
    if number == len(RECORD.prompts):
        return [rounded(seconds) for seconds in transcript.times(one, RECORD)]
    own, counts = RECORD.prompts[number].own_rounds, transcript.prompt_by_prompt(one, RECORD)[number]
    return [*map(rounded, one.acceptance(counts, RECORD.k)), one.reconcile(counts, list(own), RECORD.k)]


def test_the_table_of_the_chapter():
    """What the command prints with the solutions."""
    blocks = re.findall(r"```text\n(.*?)```", chapter(STEM), re.DOTALL)
    assert transcript.table(right, RECORD).strip() in [block.strip() for block in blocks]


Counts = tuple[int, int, tuple[int, ...]]  # rounds, drafted, kept


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


CURVES = simplest([*(half for halves in measured().values() for half in halves), *(made(DICE) for _ in range(3000))])
READ = "{} rounds, {} drafted, kept {}: "


@asked(CURVES, READ + "the conditional rates")
def test_conditional_rates(one, *curve):
    """conditional: a rate is of the rounds that kept the position before; None where there is no such round."""
    return [None if rate is None else round(float(rate), 9) for rate in one.conditional(one.Curve(*curve))]


@asked(CURVES, READ + "the cause")
def test_the_cause(one, *curve):
    """diagnose: the first rule that is true gives the cause, on curves that the chapter does not show, too."""
    with mock.patch.object(one, "conditional", right.conditional):  # it has a check of its own
        return one.diagnose(one.Curve(*curve))


def test_the_curves_of_the_chapter_are_measured_and_not_those_of_the_checks():
    """Those of the table, and the sound one of the picture."""
    picture = re.search(r"^ sound +(\d+) rounds -> +([\d> -]+)$", chapter(STEM), re.MULTILINE)
    sound = int(picture[1]), tuple(map(int, re.findall(r"\d+", picture[2])))
    assert sound in [(n, kept) for [(n, _, kept)] in measured(whole=True).values()]
    table = re.findall(r"^\| ([A-L]) \| (\d+) \| (\d+) \| ([\d, ]+) \|$", chapter(STEM), re.MULTILINE)
    shown = {name: (int(n), int(drafted), tuple(map(int, kept.split(", ")))) for name, n, drafted, kept in table}
    whole = [curve for curves in measured(whole=True).values() for curve in curves]
    assert len(shown) == 7
    assert all(curve in whole and curve not in CURVES for curve in shown.values())
    said = re.findall(r"^\| ([A-L]) \| ([a-z ]+) \| ([^\d|][^|]+) \|$", chapter(STEM), re.MULTILINE)
    for name, cause, fault in said:
        same = [one["fault"] for one in entries() if measured(whole=True).get(one["name"]) == [shown[name]]]
        assert fault in [fault or "nothing is wrong" for fault in same]
        assert cause == right.diagnose(right.Curve(*shown[name]))
    assert [name for name, *_ in said] == list(shown)


def test_every_cause_is_asked_for():
    assert len({right.diagnose(right.Curve(*curve)) for curve in CURVES}) == 8
