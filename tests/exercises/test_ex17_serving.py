"""Checks of exercise 17: a page of counters, what it says, a prediction, a stream, and the lab's rounds.

The last check and the numbers of the page come from a recorded transcript (exercises/transcript.py).
"""

import contextlib
import random
import re
from collections.abc import Callable

from exercises import transcript
from solutions import ex17_serving as right
from tests.exercises.answers import asked, chapter, simplest

STEM = "ex17_serving"
RECORD = transcript.load()


def rounded(number: object) -> object:
    """For comparing: nine digits are enough, and NaN is a word, since it equals no number."""
    short = None if number is None else float(f"{float(number):.9g}")
    return short if short == short else "nan"


def or_error(call: Callable[..., object], *args: object) -> object:
    """What it gives, or the name of what was raised; only a ValueError is ever asked for."""
    try:
        return call(*args)
    except (ValueError, ZeroDivisionError, KeyError) as error:
        return type(error).__name__


def series(found: dict[str, float]) -> dict[str, object]:
    """What read_counters and between give."""
    return {name: rounded(value) for name, value in found.items()}


def numbers(found: object, *what: str) -> object:
    """As many numbers as there are names in `what`, or the name of what was raised."""
    return found if isinstance(found, str) else dict(zip(what, map(rounded, found), strict=True))


def line(name: str, value: object, **labels: str) -> str:
    """Of a page; every value but that of a server without labels has an engine and a model."""
    shown = ",".join(f'{key}="{x}"' for key, x in ({"engine": "0", "model_name": "m"} | labels).items())
    return f"{name}{f'{{{shown}}}' if labels else ''} {value}\n"


def typed(name: str, kind: str, *lines: str | tuple[object, dict[str, str]]) -> str:
    """A series. Of lines that are pairs, a value and labels, the name is the series' own."""
    whole = (one if isinstance(one, str) else line(name, one[0], **one[1]) for one in lines)
    return f"# TYPE {name} {kind}\n" + "".join(whole)


MANY = {"a": "1", "b": "x y", "c": "", "d": "0", "e": "5", "f": "6"}
WAITS = [line("wait_s_bucket", n, le=le) for n, le in ((3.0, "0.5"), (4.0, "+Inf"))]
HITS = [(3.0, {"zone": "b", "area": "a"}), "# another one\n", (4.0, {"zone": "b", "engine": "1", "area": "a"})]
ODD = [{"why": "the end, or a stop"}, {"why": "{}"}, {"model_name": "m}", "why": "x"}, {"engine_kind": "a", "why": ""}]
PLACES = [(i + 2.0, {"engine": str(i % 2), "position": str(i // 2)}) for i in range(4)]
ONE = {"engine": "0"}
GAUGES = [("waiting", "gauge", 4.0), ("n_total", "counter", 2.0), ("n_created", "gauge", 1.7e9)]
PAGES = {
    "two engines": typed("n_total", "counter", (2.0, ONE), (3.0, {"engine": "1"})),
    "places of a draft": typed("kept_total", "counter", *PLACES),
    "a histogram": typed("wait_s", "histogram", *WAITS, line("wait_s_count", 4.0), line("wait_s_sum", 1.75, **ONE)),
    "gauges": "".join(typed(name, kind, (n, ONE)) for name, kind, n in GAUGES) + typed("busy", "gauge", (1.0, {})),
    "few labels": line("early_total", 3.0) + typed("n_total", "counter", ("1.5e+06", {}), "\n# a remark\n"),
    "remarks between the lines": typed(
        "hits", "counter", "# HELP hits How often, no _total in it.\n# a remark\n", *HITS
    )
    + typed("waiting", "gauge", "# a remark\n", (5.0, {})),
    "odd values of labels": typed(
        "n_total", "counter", *((i + 1.0, {"model_name": "my {small}, one"} | x) for i, x in enumerate(ODD))
    ),
    "names that do not say the kind": typed("kept", "counter", (3.0, {})) + typed("made_created", "counter", (4.0, {})),
    "other kinds": "".join(typed(kind, kind, (1.0, {})) for kind in ("summary", "untyped", "unknown", "info")),
    "odd numbers": typed(
        "n", "counter", *((x, {"at": str(i)}) for i, x in enumerate(("+Inf", "NaN", "-2.5e-01", "inf")))
    ),
    "eight engines": typed("n", "counter", *((e / 8, MANY | {"engine": str(e)}) for e in range(8))),
    "an empty page": "",
}


@asked(list(PAGES.items()), "{0}")
def test_a_page_is_read(one, what, page):
    """read_counters: counters and histograms are read, by the labels that say what is counted, summed over engines."""
    with contextlib.suppress(OverflowError):  # int() of +Inf: other pages tell what is wrong with it
        return series(one.read_counters(page))


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
    return found if isinstance(found, str) else series(found)


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


COSTS = [(0.5, 4, 0.125, 1.25, 0.25, 2.0), (1.0, 0, 0.5, 1.0, 0.05, 1.0), (0.01234, 7, 0.0567, 1.2345, 0.0678, 3.4567)]


COST = "plain {} s, k = {}; in plain tokens: draft {}, verify {}, overhead {}; {} tokens of a round: s per token"


@asked(COSTS, COST)
def test_the_time_per_token_is_predicted(one, *case):
    """predict: a token takes the seconds of a round, over its tokens."""
    return rounded(one.predict(*case))


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
    """read_counters, between, acceptance, predict, from_stream, reconcile: all together read what real
    servers said."""
    if number == len(RECORD.prompts):
        return [rounded(seconds) for seconds in transcript.times(one, RECORD)]
    own, counts = RECORD.prompts[number].own_rounds, transcript.prompt_by_prompt(one, RECORD)[number]
    return [*map(rounded, one.acceptance(counts, RECORD.k)), one.reconcile(counts, list(own), RECORD.k)]


def test_the_table_of_the_chapter():
    """What the command prints with the solutions."""
    blocks = re.findall(r"```text\n(.*?)```", chapter(STEM), re.DOTALL)
    assert transcript.table(right, RECORD).strip() in [block.strip() for block in blocks]
