"""The checks of exercise 0: a fake machine whose clock moves only when somebody waits for its work."""

from collections.abc import Iterator
from types import ModuleType

from exercises.guard import place
from tests.exercises.answers import asked

PREFILL, STEP = 4.0, 0.25  # seconds; sums of these are exact in binary


class Machine:
    """A device that queues work, and a clock that stands still until the queue has been waited for."""

    def __init__(self, n_tokens: int = 9, prefill: float = PREFILL, slow_runs: int = 0, now: float = 0.0):
        self.n_tokens, self.prefill, self.slow_runs, self.now = n_tokens, prefill, slow_runs, now
        self.queued, self.started, self.finished = 0.0, 0, 0
        self.calls: list[str] = []

    def decode(self) -> Iterator[int]:
        self.calls.append("decode")
        return self._tokens()

    def _tokens(self) -> Iterator[int]:
        self.started += 1
        cold = 100.0 if self.started <= self.slow_runs else 0.0
        for i in range(self.n_tokens):
            self.queued += (self.prefill if i == 0 else STEP) + cold
            yield 7
        self.queued += cold
        self.finished += 1

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.now, self.queued = self.now + self.queued, 0.0

    def clock(self) -> float:
        self.calls.append("clock")
        return self.now

    def timed_by(self, learner: ModuleType, n_warm_up: int = 0) -> tuple[float, float, int]:
        return learner.time_decoding(self.decode, self.clock, self.synchronize, n_warm_up)


TIMES = "{}: seconds of the prefill, seconds of the decoding, tokens"  # of what it is, and a machine


def timed(one: ModuleType, what: str, machine: dict) -> tuple[float, float, int]:
    return Machine(**machine).timed_by(one)


@asked([("a prefill of 4 s and 8 steps of 0.25 s", {})], TIMES, [(PREFILL, 8 * STEP, 9)])
def test_the_first_token_ends_the_prefill(one, *case):
    """time_decoding: the first token ends the prefill, and what comes after it is decoding."""
    return timed(one, *case)


WAITED = {"readings of the clock": 3, "waits for the device": 3, "readings without synchronize() right before them": 0}


@asked([(9,), (50,)], "{} tokens", [WAITED] * 2)
def test_waits_for_the_device_before_every_reading_and_at_no_other_time(one, n_tokens):
    """time_decoding: the device works on while the host runs ahead, so a clock read without waiting tells nothing; any
    other wait slows the run."""
    machine = Machine(n_tokens)
    machine.timed_by(one)
    before = [machine.calls[i - 1] for i, call in enumerate(machine.calls) if call == "clock"]
    bare = sum(call != "synchronize" for call in before)
    return dict(zip(WAITED, (len(before), machine.calls.count("synchronize"), bare), strict=True))


WARMED = {"calls of decode()": 3, "runs that began": 3, "runs that went to their end": 3, "early readings": 0}


@asked([()], "2 warm-up runs and a timed one", [WARMED | {"times": (PREFILL, 8 * STEP, 9)}])
def test_warm_up_runs_are_run_and_not_timed(one):
    """time_decoding: warm-up runs are used up to their ends, and the clock is read after them."""
    machine = Machine(slow_runs=2)
    times = machine.timed_by(one, n_warm_up=2)
    calls = [i for i, call in enumerate(machine.calls) if call == "decode"]
    early = machine.calls[: calls[min(1, len(calls) - 1)]].count("clock")
    return dict(zip(WARMED, (len(calls), machine.started, machine.finished, early), strict=True)) | {"times": times}


ENDS = [("one token", {"n_tokens": 1}), ("no token, 100 s of work", {"n_tokens": 0, "slow_runs": 1})]


@asked(ENDS, TIMES, [(PREFILL, 0.0, 1), (100.0, 0.0, 0)])
def test_a_decoding_may_end_at_once(one, *case):
    """time_decoding: one token has no decode step after it; no token at all is prefill only."""
    return timed(one, *case)


ZEROS = [("a prefill of no time", {"prefill": 0.0}), ("0.0 at the first token", {"now": -PREFILL})]


@asked(ZEROS, TIMES, [(0.0, 8 * STEP, 9), (PREFILL, 8 * STEP, 9)])
def test_a_reading_of_zero_is_a_reading(one, *case):
    """time_decoding: 0.0 is a reading like any other, and `not` takes it for none: count the tokens."""
    return timed(one, *case)


RATE = "tokens_per_second({}, {})"


def rate_of(one: ModuleType, n_tokens: int, seconds: float) -> object:
    """The learner's rate; a division by zero is said in words."""
    try:
        return one.tokens_per_second(n_tokens, seconds)
    except ZeroDivisionError as error:
        return f"a division by zero{place(error)}"


@asked([(9, 2.0), (4, 2.0), (2, 4.0), (2, 0.5), (3, 0.25)], RATE, [4.0, 1.5, 0.25, 2.0, 8.0])
def test_the_rate_leaves_the_first_token_out(one, *case):
    """tokens_per_second: the first token's seconds are in the prefill, so it is not rated; a rate has a fraction."""
    return rate_of(one, *case)


@asked([(1, 0.5), (0, 0.0), (1, 0.0), (0, 1.0), (5, 0.0)], RATE, [0.0] * 5)
def test_nothing_to_rate_is_zero(one, *case):
    """tokens_per_second: where no token was decoded or no time has passed, there is nothing to rate; return 0.0."""
    return rate_of(one, *case)
