"""Checks of exercise 17: a page of counters, what it says, a prediction, a stream, and the lab's rounds.

The last check and the numbers of the page come from a recorded transcript (exercises/transcript.py).
"""

import contextlib
import re
from collections.abc import Callable
from types import ModuleType

import pytest

from exercises import transcript
from solutions import ex17_serving as right
from tests.exercises.answers import chapter, named, unlike, wrong

STEM = "ex17_serving"
RECORD = transcript.load()


def rounded(number: object) -> object:
    """For comparing: nine digits are enough, and NaN is a word, since it equals no number."""
    short = None if number is None else float(f"{float(number):.9g}")
    return short if short == short else "nan"


def series(found: object) -> dict[str, object]:
    """What read_counters and between give."""
    if not isinstance(found, dict):
        wrong(f"a dict is asked for: series -> value; yours is of type {type(found).__name__}")
    return {name: rounded(value) for name, value in found.items()}


def series_or_error(call: Callable[[], object]) -> object:
    """A dict, or the name of what was raised; only a ValueError is ever asked for."""
    try:
        found = call()
    except (ValueError, ZeroDivisionError, KeyError) as error:
        return type(error).__name__
    return series(found)


def numbers_or_error(what: tuple[str, ...], call: Callable[[], object]) -> object:
    """As many numbers as there are names in `what`, or the name of what was raised."""
    try:
        found = call()
    except (ValueError, ZeroDivisionError, KeyError) as error:
        return type(error).__name__
    if not isinstance(found, tuple | list) or len(found) != len(what):
        wrong(f"{len(what)} numbers are asked for, {', '.join(what)}; yours is {found!r:.100}")
    return tuple(map(rounded, found))


def shown(one: dict) -> str:
    return "{" + ", ".join(f"{name}: {value:g}" for name, value in one.items()) + "}"


# --- a page -----------------------------------------------------------------------------------------------------------

TWO_ENGINES = """# HELP n_total Something that happened.
# TYPE n_total counter
n_total{engine="0",model_name="m"} 2.0
n_total{engine="1",model_name="m"} 3.0
"""
A_GAUGE_FIRST = """# HELP waiting How many wait now; 3 a moment ago.
# TYPE waiting gauge
waiting{engine="0",model_name="m"} 4.0
# TYPE n_total counter
n_total{engine="0",model_name="m"} 2.0
# TYPE n_created gauge
n_created{engine="0",model_name="m"} 1.7e+09
# TYPE busy gauge
busy 1.0
"""
PLACES = """# TYPE kept_total counter
kept_total{engine="0",model_name="m",position="0"} 7.0
kept_total{engine="0",model_name="m",position="1"} 3.0
kept_total{engine="1",model_name="m",position="0"} 1.0
kept_total{engine="1",model_name="m",position="1"} 1.0
"""
A_HISTOGRAM = """# TYPE wait_seconds histogram
wait_seconds_bucket{engine="0",le="0.5",model_name="m"} 3.0
wait_seconds_bucket{engine="0",le="+Inf",model_name="m"} 4.0
wait_seconds_count{engine="0",model_name="m"} 4.0
wait_seconds_sum{engine="0",model_name="m"} 1.75
"""
NO_LABELS = """early_total 3.0
# TYPE n_total counter
n_total 1.5e+06

# a remark
# TYPE m_total counter
m_total{engine="0"} 2.0
"""
ODD_VALUES = """# TYPE n_total counter
n_total{engine="0",model_name="my model, a {small} one",why="the end, or a stop"} 2.0
n_total{engine="0",model_name="my model, a {small} one",why="{}"} 1.0
n_total{engine="0",model_name="m}",why="x"} 4.0
n_total{engine="0",engine_kind="a",model_name="m",model_names="b",why=""} 5.0
"""
REMARKS = """# TYPE hits counter
# HELP hits How often, without _total in its name.
# a remark
hits{zone="b",engine="0",area="a"} 3.0
# another one
hits{zone="b",engine="1",area="a"} 4.0
# TYPE waiting gauge
# a remark
waiting 5.0
# TYPE n_total counter
n_total 1.0
"""
OTHER_KINDS = "".join(f"# TYPE {kind} {kind}\n{kind} 1.0\n" for kind in ("summary", "untyped", "unknown", "info"))
LONG = "".join(
    f"# TYPE kept_{i}_total counter\n"
    + "".join(
        f'kept_{i}_total{{engine="{e}",a="{i}",b="x y",c="",d="{e % 2}",e="5",f="6",model_name="m"}} {e + i / 8}\n'
        for e in range(8)
    )
    for i in range(8)
)
PAGES = {
    "remarks between the lines, and labels in an order of their own": REMARKS,
    "eight counters of eight engines": LONG,
    "two engines": TWO_ENGINES,
    "places of a draft": PLACES,
    "a histogram": A_HISTOGRAM,
    "gauges": A_GAUGE_FIRST,
    "few labels": NO_LABELS,
    "odd values of labels": ODD_VALUES,
    "names that do not say the kind": "# TYPE kept counter\nkept 3.0\n# TYPE made_created counter\nmade_created 4.0\n",
    "other kinds": OTHER_KINDS,
    "odd numbers": '# TYPE n counter\nn{at="0"} +Inf\nn{at="1"} NaN\nn{at="2"} -2.5e-01\nn{at="3"} inf\n',
    "an empty page": "",
}


def read(learner: ModuleType) -> dict[str, object]:
    found: dict[str, object] = {what: {} for what in PAGES}
    for what, page in PAGES.items():
        with contextlib.suppress(OverflowError):  # int() of +Inf: other pages tell what is wrong with it
            found[what] = series(learner.read_counters(page))
    return found


def test_a_page_is_read(learner):
    """read_counters: counters and histograms are read, by the labels that say what is counted, summed over engines."""
    found = read(learner)
    for what, expected in read(right).items():
        given = found[what]
        others = [name for name in given if name not in expected]
        for name, value in expected.items():
            if name not in given:
                wrong(f"{what}: {name} is missing, yours has {others or 'no others'}{named(STEM, read, found)}")
            if given[name] != value:
                wrong(f"{what}: {name} is {value}, yours says {given[name]}{named(STEM, read, found)}")
        if others:
            wrong(f"{what}: {others[0]} does not belong there{named(STEM, read, found)}")


# --- two looks --------------------------------------------------------------------------------------------------------

LOOKS = [
    ({"n": 5.0}, {"n": 7.0}),
    ({"n": 5.0, "m": 0.25}, {"n": 5.0, "m": 0.75}),
    ({"n": 5.0}, {"n": 7.0, "m": 3.0}),
    ({}, {"n": 7.0}),
    ({"n": 5.0, "m": 1.0}, {"n": 4.0, "m": 2.0}),
    ({"n": 5.0, "m": 1.0}, {"n": 6.0}),
    ({"n": 5.0, "m": 0.0}, {"n": 6.0}),
    ({"n": 5.0, "s": 1.75}, {"n": 6.0, "s": 1.5}),
    ({"n": 5.0, "s": 2.0}, {"n": 6.0, "s": 1.9999}),
    ({"n": 5.0}, {}),
    ({}, {}),
    ({f"n{i}": i / 8 for i in range(12)}, {f"n{i}": i / 4 for i in range(14)}),
    ({f"n{i}": 5.0 for i in range(12)}, {f"n{i}": 6.0 - 2 * (i == 11) for i in range(12)}),
]


def differences(learner: ModuleType) -> list[object]:
    found = []
    for before, after in LOOKS:
        looks = dict(before), dict(after)
        found.append(series_or_error(lambda looks=looks: learner.between(*looks)))
        if looks != (before, after):
            wrong("it looks as if yours changes a look; remember: the one after this answer is the one before the next")
    return found


def test_what_happened_between_two_looks(learner):
    """between: every series has a difference; where one fell or is gone, another server has answered."""
    for (before, after), given, expected, name in unlike(STEM, differences, learner, right, LOOKS):
        wrong(f"before {shown(before)}, after {shown(after)}: {expected}, yours says {given}{name}")


# --- acceptance -------------------------------------------------------------------------------------------------------


def counts_of(rounds: list[tuple[int, int]], k: int) -> dict[str, float]:
    """What a server counts of rounds that have drafted and kept so many."""
    return {
        right.DRAFTS: float(len(rounds)),
        right.DRAFTED: float(sum(drafted for drafted, _ in rounds)),
        right.ACCEPTED: float(sum(kept for _, kept in rounds)),
        **{right.kept_at(place): float(sum(kept > place for _, kept in rounds)) for place in range(k)},
    }


ROUNDS = [
    ([(4, 2), (4, 4), (4, 0), (4, 1)], 4),
    ([(4, 4), (4, 4)], 4),
    ([(4, 0), (4, 0), (4, 0)], 4),
    ([(2, 2), (2, 1), (2, 1), (2, 0)], 2),
    ([(1, 1), (1, 0), (1, 0)], 1),
    ([(4, 2), (3, 3), (4, 1)], 4),
    ([(3, 3), (3, 1), (3, 3), (3, 2), (3, 0)], 3),
    ([(4, 3), (1, 0)], 4),
    ([(3, 3), (1, 0)], 4),  # together they drafted k
    ([(4, 2), (2, 1), (2, 0)], 4),
    ([(7, n) for n in (7, 0, 6, 6, 1, 5, 7, 7, 3, 2)], 7),
    ([(12, n) for n in (12, 0, 11, 9)], 12),
]


THREE = ("alpha", "f", "tokens of a round")


def acceptances(learner: ModuleType) -> list[object]:
    return [
        numbers_or_error(THREE, lambda rounds=rounds, k=k: learner.acceptance(counts_of(rounds, k), k))
        for rounds, k in ROUNDS
    ]


def test_three_numbers_that_are_called_acceptance(learner):
    """acceptance: alpha is of the tested tokens, f of the drafted ones, and a round has the target's own token, too."""
    for (rounds, k), given, expected, name in unlike(STEM, acceptances, learner, right, ROUNDS):
        asked = ", ".join(f"{what} {number}" for what, number in zip(THREE, expected, strict=True))
        wrong(f"k = {k}, the counts of rounds with (drafted, accepted) {rounds}: {asked}; yours says {given}{name}")


# --- time per token ---------------------------------------------------------------------------------------------------

COSTS = [  # plain, k, draft_cost, verify_cost, overhead, tokens_per_round
    (0.5, 4, 0.125, 1.25, 0.25, 2.0),
    (0.01, 4, 0.141, 1.301, 0.042, 2.74),
    (0.02, 1, 0.3, 1.0, 0.1, 1.6),
    (1.0, 0, 0.5, 1.0, 0.05, 1.0),
    (0.25, 8, 0.0, 1.5, 0.0, 9.0),
    (0.01234, 7, 0.0567, 1.2345, 0.0678, 3.4567),
]


def predictions(learner: ModuleType) -> list[object]:
    return [rounded(learner.predict(*one)) for one in COSTS]


def test_the_time_per_token_is_predicted(learner):
    """predict: a token takes the seconds of a round, over its tokens."""
    for one, given, expected, name in unlike(STEM, predictions, learner, right, COSTS):
        plain, k, draft, verify, overhead, length = one
        wrong(
            f"a plain token takes {plain} s, k = {k}; costs in plain tokens: draft {draft}, verify {verify}, "
            f"overhead {overhead}; {length} tokens of a round: {expected} s per token, yours says {given}"
            f"{name}"
        )


STREAMS = [
    [(0.25, 1), (0.5, 1), (0.75, 1)],
    [(0.25, 2), (0.75, 1), (1.25, 3)],
    [(0.125, 0), (0.25, 2), (0.75, 1), (1.25, 3), (1.5, 0)],
    [(0.5, 3), (1.0, 0), (2.0, 4)],
    [(0.5, 4)],
    [(0.5, 1), (0.75, 0)],
    [],
    [(0.5, 0), (0.75, 0)],
    [(0.5, 3), (0.5, 1), (1.0, 1)],  # two chunks came at one time, in this order
    [(0.03 * i, 1 + i % 3) for i in range(1, 20)],
]


def streams(learner: ModuleType) -> list[object]:
    what = "seconds to the first token", "seconds per token"
    return [numbers_or_error(what, lambda chunks=chunks: learner.from_stream(list(chunks))) for chunks in STREAMS]


def test_a_stream_is_timed(learner):
    """from_stream: tokens are counted, not chunks; those of the first chunk took none of the time after it."""
    for chunks, given, expected, name in unlike(STEM, streams, learner, right, STREAMS):
        wrong(f"chunks (seconds, tokens) {chunks}: {expected}, yours says {given}{name}")


# --- the lab's rounds -------------------------------------------------------------------------------------------------


def case(served: list[tuple[int, int]], own: list[tuple[int, int]], k: int = 4) -> tuple:
    """A server that made these rounds, the lab's rounds, and k."""
    return counts_of([one for one in served if one[0]], k), own, k


A_FEW = [(4, 2), (4, 4), (4, 0)]
MANY = [(7, n) for n in (5, 0, 6, 7, 1, 7, 2, 3)]
FITS = [
    case(A_FEW, A_FEW),
    case([(4, 4), (4, 0), (4, 2)], A_FEW),
    case([(4, 2), (4, 4), (4, 1)], A_FEW),
    case([(4, 2), (4, 4), (4, 4)], A_FEW),
    case([(4, 2), (4, 4), (3, 2)], A_FEW),
    case([(4, 2), (4, 4), (1, 0)], [(4, 2), (4, 4), (4, 3)]),
    case([(4, 2), (4, 4), (4, 3)], [(4, 2), (4, 4), (2, 1)]),
    case([(4, 2), (4, 4), (4, 2)], [(4, 2), (4, 4), (2, 1)]),
    case([(4, 2), (4, 4)], A_FEW),
    case([*A_FEW, (4, 0)], A_FEW),
    case([*A_FEW, (4, 4)], [(4, 2), (4, 4), (4, 4), (4, 0), (4, 0)]),
    case([(4, 1), (4, 4), (4, 1)], A_FEW),
    case([(4, 3), (4, 3), (4, 1)], [(4, 4), (4, 2), (4, 1)]),
    case([(4, 0), (4, 4), (4, 4)], A_FEW),
    case([(4, 2), (4, 4), (4, 0)], [(4, 3), (4, 3), (4, 0)]),
    case([(3, 2), (3, 3), (4, 0)], A_FEW),
    case([(2, 2), (4, 4), (2, 0)], A_FEW),
    case([(4, 2), (4, 4), (8, 4)], A_FEW),
    case([(4, 2), (4, 4), (5, 3)], A_FEW),
    case(A_FEW, [(4, 2), (0, 0), (4, 4), (0, 0), (4, 0)]),
    case(A_FEW, [*A_FEW, (0, 0)]),
    case([(4, 2), (4, 4), (4, 3)], [*A_FEW, (0, 0)]),
    case([*A_FEW, (2, 1)], [*A_FEW, (0, 0)]),
    case([(2, 1)], [(2, 2)], 2),
    case([(2, 2), (1, 1)], [(2, 2), (1, 0)], 2),
    case([(2, 1)], [(2, 0), (2, 0)], 2),
    case([(1, 1)], [(2, 1)], 2),
    case([(1, 1), (1, 0)], [(1, 1), (1, 1)], 1),
    case([], []),
    case([], [(0, 0)]),
    case([(4, 1)], []),
    case(MANY, MANY, 7),
    case([*MANY[:-1], (7, 7)], MANY, 7),
    case([(7, 6), *MANY[1:3], (7, 6), *MANY[4:]], MANY, 7),  # two places differ, their sum does not
    case([*MANY[:-1], (6, 6)], MANY, 7),
    case([(7, 6), *MANY[1:]], MANY, 7),
    case([*MANY[:4], (7, 4), *MANY[5:]], MANY, 7),
    case([*MANY[:-2], MANY[-1]], MANY, 7),
    case([(6, 5), *MANY[1:]], MANY, 7),
    (counts_of([(4, 2), (4, 4), (2, 2)], 4) | {right.kept_at(2): 2.0, right.ACCEPTED: 9.0}, A_FEW, 4),
]


def verdicts(learner: ModuleType) -> list[object]:
    return [learner.reconcile(dict(counts), list(own), k) for counts, own, k in FITS]


def test_counters_are_held_against_own_rounds(learner):
    """reconcile: every counter must fit, the places too; only the very last round may differ, and only as one round."""
    for (counts, own, k), given, expected, name in unlike(STEM, verdicts, learner, right, FITS):
        drafts, drafted, accepted, *kept = (int(n) for n in counts.values())
        wrong(
            f"k = {k}; the server: {drafts} drafts of {drafted} tokens, {accepted} accepted, by place {kept}; the "
            f"lab's rounds {own}: {expected!r}, yours says {given!r}{name}"
        )


# --- everything together ----------------------------------------------------------------------------------------------


def from_record(learner: ModuleType) -> list[object]:
    """Of every recorded prompt: the three acceptances and the verdict; then the four times."""
    found: list[object] = []
    for asked, counts in zip(RECORD.prompts, transcript.prompt_by_prompt(learner, RECORD), strict=True):
        numbers = [rounded(one) for one in learner.acceptance(counts, RECORD.k)]
        found.append([*numbers, learner.reconcile(counts, list(asked.own_rounds), RECORD.k)])
    return [*found, [rounded(one) for one in transcript.times(learner, RECORD)]]


@pytest.mark.whole
def test_the_recorded_servers(learner):
    """All functions together read what real servers said."""
    found = from_record(learner)
    what = [f"prompt {number}: alpha, f, tokens of a round, verdict" for number in range(len(RECORD.prompts))]
    what.append("seconds per token: plain, predicted, measured, and of the server's page")
    for words, given, expected in zip(what, found, from_record(right), strict=True):
        if given != expected:
            wrong(f"the transcript, {words}: {expected}, with yours {given}")


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_table_of_the_chapter():
    """What the command prints with the solutions."""
    blocks = re.findall(r"```text\n(.*?)```", chapter(STEM), re.DOTALL)
    assert transcript.table(right, RECORD).strip() in [block.strip() for block in blocks]


def test_one_observation_for_each_round():
    """The central point of the chapter: the histogram counts outputs of the engine, not tokens."""
    counts = transcript.counted(right, RECORD)
    n_outputs = counts[f"{transcript.LATENCY}_count"]
    assert n_outputs == counts[right.DRAFTS] == sum(len(one.own_rounds) for one in RECORD.prompts)
    plain = [right.read_counters(page) for page in RECORD.plain.pages]
    n_tokens = sum(len(one.text) - 1 for one in RECORD.prompts)
    assert right.between(*plain)[f"{transcript.LATENCY}_count"] == n_tokens > n_outputs
