"""Two servers under load: many requests at a time, both orders of the servers, and how many answers came in time."""

import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from speclab.core.clock import old_objects_frozen
from speclab.extensions.servers import counters
from speclab.extensions.servers.client import Answer, Order
from speclab.extensions.servers.server_record import EngineCounts, Limits, LoadSide
from speclab.extensions.servers.servers import Server, wait_until_idle
from speclab.records.rows import Verdict

ROUNDS_OF_LOAD = 2  # requests for each place, at least
LOOK_SECONDS = 0.05  # between two looks whether a request has failed
END_SECONDS = 10.0  # that requests have to end after one has failed
FIRST_TIMES, TOKEN_TIMES = 4, 2  # the plain server's own medians that are good enough, where no limits are given


class Pass(NamedTuple):
    """One pass over the requests of a level."""

    answers: list[Answer]
    seconds: float  # from the first request to the last token of all
    counts: EngineCounts | None

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return sum(len(answer.tokens) for answer in self.answers) / self.seconds


class Level(NamedTuple):
    """What two servers did with the same requests: as many passes of each, pair by pair."""

    plain: list[Pass]
    other: list[Pass]

    @property
    def speedups(self) -> list[float]:
        """Of every pair."""
        return [other.rate / plain.rate for plain, other in zip(self.plain, self.other, strict=True)]

    @property
    def speedup(self) -> float:
        """Of all passes together."""
        plain, other = (sum(one.seconds for one in side) for side in self)
        return plain / other

    @property
    def verdict(self) -> Verdict:
        """Unclear where some pass was not faster and some was not slower."""
        return "faster" if min(self.speedups) > 1 else "slower" if max(self.speedups) < 1 else "unclear"


def asked(n_prompts: int, concurrency: int) -> list[int]:
    """Which prompts are asked under load: every one, again until every place had so many requests.

    >>> asked(3, 2), asked(2, 2)
    ([0, 1, 2, 0], [0, 1, 0, 1])
    """
    return [i % n_prompts for i in range(max(n_prompts, ROUNDS_OF_LOAD * concurrency))]


def level(plain: Server, other: Server, orders: Sequence[Order], concurrency: int) -> Level:
    """A pass of each server that does not count, then one of each with the plain server first, then the other first."""
    for server in (plain, other):
        under_load(server, orders, concurrency)
    first = under_load(plain, orders, concurrency), under_load(other, orders, concurrency)
    second = under_load(other, orders, concurrency), under_load(plain, orders, concurrency)
    return Level([first[0], second[1]], [first[1], second[0]])


def under_load(server: Server, orders: Sequence[Order], concurrency: int) -> Pass:
    """All orders, `concurrency` at a time: a place whose answer has ended asks for the next one."""
    wait_until_idle()
    with server.explained():
        before = server.client.look()
        answers, seconds = at_once(server.client.ask, orders, concurrency, server.client.abort)
        after = server.client.settled(before, sum(len(answer.tokens) for answer in answers))
    return Pass(answers, seconds, counters.between(before, after))


def side(passes: Sequence[Pass], limits: Limits, own_texts: Sequence[list[int]] | None) -> LoadSide:
    """A server under load, in numbers. own_texts: the lab's, of every request; None when sampled."""
    answers = [answer for one in passes for answer in one.answers]
    first, token = ([getattr(a, name) for a in answers] for name in ("first_seconds", "seconds_per_token"))
    same = None
    if own_texts is not None:
        same = sum(a.tokens == own for one in passes for a, own in zip(one.answers, own_texts, strict=True))
    return LoadSide(
        n_tokens=sum(len(answer.tokens) for answer in answers),
        n_same=same,
        n_good=sum(one <= limits.first and other <= limits.token for one, other in zip(first, token, strict=True)),
        seconds=sum(one.seconds for one in passes),
        first_p50=statistics.median(first),
        first_p95=_p95(first),
        token_p50=statistics.median(token),
        token_p95=_p95(token),
    )


def usual_limits(alone: Sequence[Answer]) -> Limits:
    """Multiples of the medians of a server that was asked one request at a time."""
    return Limits(
        first=FIRST_TIMES * statistics.median(answer.first_seconds for answer in alone),
        token=TOKEN_TIMES * statistics.median(answer.seconds_per_token for answer in alone),
        given=False,
    )


def _p95(values: Sequence[float]) -> float:
    """The smallest value that at least 95 % of them do not exceed."""
    return float(np.quantile(values, 0.95, method="inverted_cdf"))


@old_objects_frozen()
def at_once(
    ask: Callable[[Order], Answer], orders: Sequence[Order], concurrency: int, abort: Callable[[], None]
) -> tuple[list[Answer], float]:
    """The answers in the orders' order, and the seconds from the first request to the end of the last answer.

    What ends one request is raised here after it has ended all of them: `abort` shuts those that wait for an answer.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(orders)):
        waiting.put(number)
    answers: dict[int, Answer] = {}
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            try:
                number = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answers[number] = ask(orders[number])
            except BaseException as failure:
                failures.append(failure)
                stop.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(concurrency, len(orders)))]
    begin = time.perf_counter()
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and not stop.is_set():
            _join(threads, LOOK_SECONDS)
        seconds = time.perf_counter() - begin
    finally:
        stop.set()
        end = time.monotonic() + END_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < end:
            abort()  # again and again: a thread may have been about to send its request
            _join(threads, LOOK_SECONDS)
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(orders))], seconds


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Wait until the first thread that still runs has ended, at most so long."""
    for thread in threads:
        if thread.is_alive():
            thread.join(seconds)
            return
