"""The checks of exercise 0: a fake machine whose clock moves only when somebody waits for its work."""

from collections.abc import Iterator

import pytest

from exercises.guard import place

PREFILL, STEP = 4.0, 0.25  # seconds; sums of these are exact in binary


class Machine:
    """A device that queues work, and a clock that stands still until the queue has been waited for."""

    def __init__(self, n_tokens: int = 9, prefill: float = PREFILL, slow_runs: int = 0):
        self.n_tokens, self.prefill, self.slow_runs = n_tokens, prefill, slow_runs
        self.now = self.queued = 0.0
        self.started = self.finished = 0
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

    def timed_by(self, learner, n_warm_up: int = 0) -> tuple[float, float, int]:
        return learner.time_decoding(self.decode, self.clock, self.synchronize, n_warm_up)


def rate_of(learner, n_tokens: int, seconds: float) -> float:
    """The learner's rate; a division by zero is said in words."""
    try:
        return learner.tokens_per_second(n_tokens, seconds)
    except ZeroDivisionError as error:
        asked = f"tokens_per_second({n_tokens}, {seconds})"
        why = "no time has passed" if seconds == 0 else "none of the tokens was decoded"
        pytest.fail(f"{asked} divides by zero: {why}, so there is nothing to rate; return 0.0{place(error)}", False)


def test_the_first_token_ends_the_prefill(learner):
    """Nine tokens: a prefill of 4 s and eight decode steps of 0.25 s."""
    machine = Machine()
    prefill, decode, n_tokens = machine.timed_by(learner)
    assert n_tokens == 9, f"the decoding yielded 9 tokens, you returned {n_tokens}"
    if decode == PREFILL + 8 * STEP:
        pytest.fail("your decode seconds contain the prefill: start them when the first token is there", pytrace=False)
    if prefill == 0.0:
        why = "read the clock before you ask for the first token, or you did not wait for the device before reading it"
        if "synchronize" not in machine.calls:
            why = "you never waited for the device, and without that the clock says nothing"
        pytest.fail(f"your prefill took no time: {why}", pytrace=False)
    assert (prefill, decode) == (PREFILL, 8 * STEP), (
        f"expected 4.0 s of prefill and 2.0 s of decoding, you got {prefill} and {decode}"
    )


def test_waits_for_the_device_before_every_reading(learner):
    """The device works on while the host runs ahead: a clock read without waiting tells nothing."""
    machine = Machine()
    machine.timed_by(learner)
    readings = [i for i, call in enumerate(machine.calls) if call == "clock"]
    assert readings, "you never read `clock`"
    bare = sum(i == 0 or machine.calls[i - 1] != "synchronize" for i in readings)
    assert bare == 0, f"{bare} of your {len(readings)} clock readings come without synchronize() right before them"


def test_does_not_wait_after_every_token(learner):
    """Three readings in the timed run, and no wait beside them."""
    machine = Machine(n_tokens=50)
    machine.timed_by(learner)
    n_clock, n_waits = machine.calls.count("clock"), machine.calls.count("synchronize")
    assert n_clock == 3, f"you read the clock {n_clock} times for 50 tokens; three readings are enough"
    assert n_waits >= 3, (
        f"you waited for the device {n_waits} times: each of the three readings needs a synchronize() right before it"
    )
    assert n_waits == 3, (
        f"you waited for the device {n_waits} times for 50 tokens; a wait that belongs to no reading slows the run"
    )


def test_warm_up_runs_are_run_and_not_timed(learner):
    """Two runs on a cold machine, used up to their ends, before the one that is timed."""
    machine = Machine(slow_runs=2)
    found = machine.timed_by(learner, n_warm_up=2)
    called = machine.calls.count("decode")
    assert called == 3, f"2 warm-up runs and a timed one make 3 calls of decode(), you made {called}"
    assert machine.started == 3, (
        "your warm-up calls decode() and takes no tokens from it: an iterator does nothing until it is asked"
    )
    assert machine.finished == 3, f"only {machine.finished} of 3 runs went to their end: use up the warm-up runs too"
    assert "clock" not in machine.calls[: [i for i, c in enumerate(machine.calls) if c == "decode"][1]], (
        "you read the clock before the warm-up was over"
    )
    why = "warm-up work must not reach the timed seconds"
    if found[0] == 0:
        why = "a prefill of no time was read off a clock that nobody had waited for"
    assert found == (PREFILL, 8 * STEP, 9), f"expected (4.0, 2.0, 9), you got {found}: {why}"


def test_a_decoding_may_end_at_once(learner):
    """One token has no decode step after it; no token at all is prefill only."""
    found = Machine(n_tokens=1).timed_by(learner)
    assert found == (PREFILL, 0.0, 1), f"one token: expected (4.0, 0.0, 1), you got {found}"
    found = Machine(n_tokens=0, slow_runs=1).timed_by(learner)
    why = ": without a token nothing is decoded, and all of the seconds are prefill" if found[1:] == (100.0, 0) else ""
    assert found == (100.0, 0.0, 0), f"no token, 100 s of work: expected (100.0, 0.0, 0), you got {found}{why}"


def test_a_reading_of_zero_is_a_reading(learner):
    """A clock may show 0.0, and a prefill may take less than one tick of it: neither means "not read yet"."""
    for start, prefill, what in ((0.0, 0.0, "a prefill of no time"), (-PREFILL, PREFILL, "0.0 at the first token")):
        machine = Machine(prefill=prefill)
        machine.now = start
        found = machine.timed_by(learner)
        right = (prefill, 8 * STEP, 9)
        assert found == right, (
            f"a clock that shows {what}: expected {right}, you got {found}; 0.0 is a reading like any other, and `not` "
            "takes it for none: count the tokens, or begin with None and ask `is None`"
        )


def test_the_rate_leaves_the_first_token_out(learner):
    """Nine tokens, two seconds of decoding: four per second."""
    rate = rate_of(learner, 9, 2.0)
    assert rate != 4.5, "you got 4.5: that counts the first token too, whose seconds are in the prefill"
    assert rate != 0.25, "you got 0.25: that is seconds per token"
    assert rate == 4.0, f"8 tokens came in 2 s of decoding: expected 4.0, you got {rate}"
    for n_tokens, seconds in ((4, 2.0), (2, 4.0), (2, 0.5), (3, 0.25)):
        rate, right = rate_of(learner, n_tokens, seconds), (n_tokens - 1) / seconds
        why = ""
        if rate == right // 1:
            why = "; a rate has a fraction: / divides, // and int() cut the fraction off"
        elif rate == 0:
            why = "; one decoded token and less than a second are enough for a rate"
        assert rate == right, f"{n_tokens - 1} decoded in {seconds} s: expected {right}, you got {rate}{why}"


def test_nothing_to_rate_is_zero(learner):
    """No decoded token, or no time: 0.0 and no error."""
    for n_tokens, seconds in ((1, 0.5), (0, 0.0), (1, 0.0), (0, 1.0), (5, 0.0)):
        rate = rate_of(learner, n_tokens, seconds)
        assert rate == 0.0, f"tokens_per_second({n_tokens}, {seconds}): nothing to rate, expected 0.0, you got {rate}"


def test_a_longer_prompt_does_not_change_the_rate(learner):
    """The prompt's tokens are read in one pass. They are not generated, and the rate must not see them."""
    rates = []
    for prefill in (PREFILL, 100 * PREFILL):
        _, seconds, n_tokens = Machine(prefill=prefill).timed_by(learner)
        rates.append(rate_of(learner, n_tokens, seconds))
    assert rates[0] == rates[1], f"a prompt 100 times as long moved your rate from {rates[0]:.2f} to {rates[1]:.2f}"
    assert rates[0] == 4.0, f"both machines decode 4 tokens per second, you got {rates[0]}"
