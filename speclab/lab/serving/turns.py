"""Two servers on the same prompts: one request at a time in turns, then many at a time."""

import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from speclab.lab.serving import counters
from speclab.lab.serving.client import Answer, Order, percentile
from speclab.lab.serving.servers import Server
from speclab.models.prompts import Prompt
from speclab.records.samples import BASELINE, BASELINE_REPEAT, Arm
from speclab.records.serving import EngineCounts, LoadSide

WARM_UP_REQUESTS = 3  # to each server before the clock counts
ROUNDS_OF_LOAD = 2  # requests for each place, at least


@dataclass(frozen=True)
class Sent:
    """One answer, whose it is, and the arm in whose turns it was measured."""

    arm: Arm
    turns_of: Arm
    temperature: float
    index: int  # of the prompt
    answer: Answer
    counts: EngineCounts | None  # what the server counted meanwhile


def warm_up(servers: Sequence[Server], orders: Sequence[Order]) -> None:
    """A few requests to each server; what their answers are does not count."""
    for server in servers:
        with server.explained():
            for order in orders[:WARM_UP_REQUESTS]:
                server.client.ask(order)


def in_turns(
    plain: Server, other: Server, arm: Arm, orders: dict[int, Order], repeats: int, done: Callable[[], None]
) -> list[Sent]:
    """Every prompt to the plain server, to the other one, and to the plain one again, in an order that rotates.

    orders: by the prompt's index. done: called after every prompt.
    """
    turns = [(BASELINE, plain), (arm, other), (BASELINE_REPEAT, plain)]
    sent = []
    for repeat in range(repeats):
        for turn, (index, order) in enumerate(orders.items()):
            first = (turn + repeat) % len(turns)
            for which, server in turns[first:] + turns[:first]:
                answer, counts = _counted(server, order)
                sent.append(Sent(which, arm, order.sampling.temperature, index, answer, counts))
            done()
    return sent


def _counted(server: Server, order: Order) -> tuple[Answer, EngineCounts | None]:
    """One request, with the counters before and after it."""
    with server.explained():
        before = server.client.look()
        answer = server.client.ask(order)
        after = server.client.settled(before, len(answer.tokens))
    return answer, counters.between(before, after)


def orders_for(prompts: Sequence[Prompt], orders: Sequence[Order], concurrency: int) -> list[Order]:
    """What is asked under load: every prompt, again until every place had so many requests."""
    n = max(len(prompts), ROUNDS_OF_LOAD * concurrency)
    return [orders[i % len(orders)] for i in range(n)]


def under_load(server: Server, orders: Sequence[Order], concurrency: int) -> tuple[LoadSide, EngineCounts | None]:
    """All orders, `concurrency` at a time: a place whose answer has ended asks for the next one."""
    with server.explained():
        before = server.client.look()
        answers, seconds = at_once(server.client.ask, orders, concurrency)
        after = server.client.settled(before, sum(len(answer.tokens) for answer in answers))
    return side(answers, seconds), counters.between(before, after)


def side(answers: list[Answer], seconds: float) -> LoadSide:
    """A server under load, in numbers."""
    first, token = ([getattr(a, name) for a in answers] for name in ("first_seconds", "seconds_per_token"))
    return LoadSide(
        n_tokens=sum(len(answer.tokens) for answer in answers),
        seconds=seconds,
        first_p50=statistics.median(first),
        first_p95=percentile(first, 0.95),
        token_p50=statistics.median(token),
        token_p95=percentile(token, 0.95),
    )


def at_once(ask: Callable[[Order], Answer], orders: Sequence[Order], concurrency: int) -> tuple[list[Answer], float]:
    """The answers in the orders' order, and the seconds from the first request to the end of the last answer.

    What ends one request ends all of them and is raised here. The threads die with the process.
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
        for thread in threads:
            thread.join()
    finally:
        stop.set()
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(orders))], time.perf_counter() - begin
