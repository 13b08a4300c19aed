"""So many users at a time ask a server, or two in turns: up to which load does speculation pay?

Each user sends the next request when the last one has ended (a closed loop): so many requests are in flight by
construction, however slow the server is. A window begins when each user has one answer. A request's tokens lie evenly
between its first and last one.
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx2

from speclab.extensions.servers import counters
from speclab.extensions.servers.client import Order, Prompt, Server
from speclab.extensions.servers.counters import Look
from speclab.extensions.servers.diagnose import labelled, of_pages
from speclab.present.tables import Cell, interval, speedup, table
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note, progress, say

LOOK_SECONDS = 0.5  # between two looks at the counters
WARM_UP_SECONDS = 120.0  # until each user has one answer, at most
PASSES = 2  # the plain server first, then the other one
SHORTEST = 0.6  # an answer's length, of the longest: answers of one length would end and start in waves
STRIDE, LENGTHS = 7, 16  # no common factor: neighbours differ much
# What makes a measurement worthless, each with its limit.
LEAST_ACHIEVED = 0.95  # requests in flight, as a share of the users
LEAST_ANSWERS = 3  # whole answers of each user in a window
FARTHEST_APART = 1.1  # the larger of two passes over the smaller one
MOST_WAITING = 0.1  # requests in the server's queue, as a share of the users
PAYS, LOSES, UNCLEAR = "pays", "does not pay", "unclear"
READ = (
    "tok/s: of all users together, their waits for a first token included; a user: of one of them, from its first "
    "token on; speedup: tok/s over plain tok/s"
)

Work = Iterator[tuple[str, int]]  # prompts without end, each with the most tokens of its answer


class Request(NamedTuple):
    """One answered request, in seconds of one clock. ended: the server has said that the answer is whole, perhaps a
    pass after the last token. user: who asked, counted from 0."""

    sent: float
    first: float
    last: float
    ended: float
    n_tokens: int
    user: int


@dataclass
class Window:
    """What so many users got from one server while all of them were asking. requests: those that ended before, too, and
    after. looks: at the counters, within it."""

    n_users: int
    begin: float = 0.0
    end: float = 0.0
    requests: list[Request] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)


# --- users ------------------------------------------------------------------------------------------------------------


def work(prompts: Sequence[Prompt], n_tokens: int, first: int) -> Work:
    """Yield what is asked, from this number on. The number stands before the text, so that no two requests are the
    same, and no prefix cache holds one."""
    for number in itertools.count(first):
        share = SHORTEST + (1 - SHORTEST) * (number * STRIDE % LENGTHS) / (LENGTHS - 1)
        yield f"{number}. {prompts[number % len(prompts)].text}", max(2, round(share * n_tokens))


def ask(server: Server, n_users: int, orders: Work, seconds: float, chat: bool) -> Window:
    """Ask with so many users at a time. EnvironmentProblem where a request fails: its user would wait for nothing, and
    the load would be another one."""
    return asyncio.run(_window(server, n_users, orders, seconds, chat))


async def _window(server: Server, n_users: int, orders: Work, seconds: float, chat: bool) -> Window:
    window, warm, over = Window(n_users), [asyncio.Event() for _ in range(n_users)], asyncio.Event()

    async def user(place: int) -> None:
        while not over.is_set():
            prompt, n_tokens = next(orders)
            if not warm[place].is_set():  # first answers of different lengths: no waves of users in step
                n_tokens = max(1, n_tokens * (place + 1) // n_users)
            sent = time.perf_counter()
            found = await server.answered(http, Order(prompt, n_tokens, chat))
            first, ended = sent + found.first_seconds, sent + found.whole_seconds
            window.requests.append(Request(sent, first, first + found.decode_seconds, ended, found.n_tokens, place))
            warm[place].set()

    try:
        async with server.opened() as http, asyncio.TaskGroup() as group:
            for place in range(n_users):
                group.create_task(user(place))
            try:
                async with asyncio.timeout(WARM_UP_SECONDS):
                    await asyncio.gather(*[event.wait() for event in warm])
            except TimeoutError:
                why = f"not every user got an answer within {WARM_UP_SECONDS:g} s"
                raise EnvironmentProblem(f"{why}; ask with fewer users at a time: --load 1,2") from None
            await _watch(server, http, window, seconds)
            over.set()  # the window's last tokens belong to requests that end after it: the group waits for them
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None
    return window


async def _watch(server: Server, http: httpx2.AsyncClient, window: Window, seconds: float) -> None:
    """Look at the counters until the window is over. It is not ended by an answer but at a look, so that it does not
    end where many tokens have just come."""
    window.begin = time.perf_counter()
    while True:
        if server.has_page:
            page = await server.got(http, "/metrics")
            window.looks.append(counters.read(page.decode(errors="replace")))
        window.end = time.perf_counter()
        if (left := window.begin + seconds - window.end) <= 0:
            return
        await asyncio.sleep(min(LOOK_SECONDS, left))


# --- what a window says -----------------------------------------------------------------------------------------------


class Side(NamedTuple):
    """One server at one load, in one pass: tokens a second of all users, and of one of them. wrong: every check that
    fails, with its number and what to do."""

    together: float
    of_user: float
    tokens_per_round: float | None
    wrong: dict[str, str]


def side(window: Window) -> Side:
    """Return what one window says. EnvironmentProblem where not one request was answered in it."""
    inside = [one for one in window.requests if one.first < window.end and one.last > window.begin]
    decoding = sum(one.last - one.first for one in inside)
    if not inside or decoding <= 0:
        raise EnvironmentProblem("the server sent no token within the window; give a longer one: --load-seconds 60")
    tokens = 0.0
    for one in inside:
        part = min(one.last, window.end) - max(one.first, window.begin)
        tokens += one.n_tokens * (part / (one.last - one.first) if one.last > one.first else 1.0)
    found = counters.between(window.looks[0], window.looks[-1]) if len(window.looks) > 1 else None
    return Side(
        together=tokens / (window.end - window.begin),
        of_user=sum(one.n_tokens - 1 for one in inside) / decoding,
        tokens_per_round=of_pages(found, None, None, 0).tokens_per_round if found and found.speculation else None,
        wrong=_wrong(window),
    )


def _wrong(window: Window) -> dict[str, str]:
    n, length, found = window.n_users, window.end - window.begin, dict[str, str]()
    # of all requests: one may wait for its first token when the window ends
    at_once = sum(max(0, min(one.ended, window.end) - max(one.sent, window.begin)) for one in window.requests) / length
    users = [one.user for one in window.requests if window.begin <= one.sent and one.ended <= window.end]
    whole, queue = min(map(users.count, range(n))), [one.n_waiting for one in window.looks if one.n_waiting is not None]
    if at_once < LEAST_ACHIEVED * n:
        were = f"{n} requests at a time were offered, and {at_once:.1f} were in flight"
        found["offered"] = f"{were}: run the client elsewhere"
    if whole < LEAST_ANSWERS:
        longer = f"--load-seconds {max(2, round(length * LEAST_ANSWERS / max(whole, 1) * 1.3)):d}"
        has = f"some user has {whole} whole answers in the window of {length:.0f} s"
        found["window"] = f"{has}, and {LEAST_ANSWERS} of each are wanted: {longer}"
    if queue and sum(queue) / len(queue) > MOST_WAITING * n:
        were = f"{sum(queue) / len(queue):.1f} of {n} requests were waiting in the server"
        found["queue"] = f"{were}: let it answer more at a time, or ask with fewer users"
    return found


class Level(NamedTuple):
    """So many users at a time: every pass of the server that speculates, and of the plain one where there is one."""

    n_users: int
    speculative: list[Side]
    plain: list[Side]

    @property
    def speedups(self) -> list[float]:  # pass by pass
        return [one.together / other.together for one, other in zip(self.speculative, self.plain, strict=False)]

    @property
    def speedup(self) -> float:  # of all passes together
        return sum(one.together for one in self.speculative) / sum(one.together for one in self.plain)

    @property
    def apart(self) -> float:
        """Return how far two passes of one server are apart: the larger over the smaller, of the worse server."""
        rates = [[one.together for one in sides] for sides in (self.speculative, self.plain) if sides]
        return max(max(some) / min(some) if min(some) > 0 else 1.0 for some in rates)

    @property
    def wrong(self) -> dict[str, str]:
        found = {name: says for one in (*self.speculative, *self.plain) for name, says in one.wrong.items()}
        if self.apart > FARTHEST_APART:
            apart = f"two passes of one server are {self.apart:.2f} apart (the larger over the smaller)"
            found["repeats"] = f"{apart}: a quieter machine"
        return found

    @property
    def verdict(self) -> str:
        """Return whether speculation pays; unclear where passes do not agree, or where the gain is no larger than the
        distance between two passes of one server."""
        speedups = self.speedups
        if speedups and min(speedups) > 1:
            return PAYS if self.speedup > self.apart else UNCLEAR
        return LOSES if speedups and max(speedups) < 1 else UNCLEAR


# --- the command ------------------------------------------------------------------------------------------------------


def show(
    args: argparse.Namespace, speculative: Server, plain: Server | None, prompts: Sequence[Prompt], about: list[str]
) -> int:
    """Measure every load in turns, and print: two passes, the plain server first in one and the other one first in the
    other. about: lines on the servers.  -> exit code: 1 where a check fails, and that of the problem that has ended it
    after the first load, as Ctrl-C may, too."""
    levels, stop, numbers = list[Level](), None, itertools.count(0, 10_000)  # every pass its own numbers
    servers = [server for server in (plain, speculative) if server]
    with progress(len(args.load) * PASSES * len(servers), "window", "under load") as bar:
        try:
            for n_users in args.load:
                sides: dict[Server | None, list[Side]] = {speculative: [], plain: []}
                for turn in range(PASSES):  # both servers get the same in one pass
                    first = next(numbers)
                    for server in servers if turn % 2 == 0 else servers[::-1]:
                        asked = work(prompts, args.max_new_tokens, first)
                        sides[server].append(side(ask(server, n_users, asked, args.load_seconds, not args.raw)))
                        bar.update()
                levels.append(Level(n_users, sides[speculative], sides[plain]))
        except (EnvironmentProblem, KeyboardInterrupt) as problem:
            if not levels:
                raise
            stop, lost = problem, ", ".join(map(str, args.load[len(levels) :]))
            note(f"  these loads are lost, {lost}: {str(problem) or 'stopped'}")
    say("\n".join([*lines(levels), "", *about]))
    return stop.exit_code if isinstance(stop, EnvironmentProblem) else int(any(level.wrong for level in levels))


def lines(levels: Sequence[Level]) -> list[str]:
    """Return the screen: the answer, the next thing to try, a table, and what fails. An answer whose checks fail says
    so."""
    wrong = list[str]()
    for name in (names := sorted({name for level in levels for name in level.wrong})):
        found = [level for level in levels if name in level.wrong]
        where = ", ".join(str(level.n_users) for level in found)
        wrong.append(labelled(name, f"with {where} at a time: {found[-1].wrong[name]}"))
    doubt = f" (not before these are mended: {', '.join(names)})" if names else ""
    said, then = answer(levels)
    first = [labelled("ANSWER", said + doubt), labelled("try", then), ""]
    return [*first, _table(levels), labelled("read", READ), *([""] if wrong else []), *wrong]


def _table(levels: Sequence[Level]) -> str:
    def mean(sides: Sequence[Side], name: str, digits: int = 1) -> str:
        return f"{sum(getattr(one, name) for one in sides) / len(sides):.{digits}f}"

    both, cells = bool(levels[0].plain), dict[str, Cell](users=lambda level: str(level.n_users))
    if both:
        cells["plain tok/s"] = lambda level: mean(level.plain, "together")
        cells["a user"] = lambda level: mean(level.plain, "of_user")
    cells["tok/s"] = lambda level: mean(level.speculative, "together")
    cells[" a user"] = lambda level: mean(level.speculative, "of_user")
    if all(one.tokens_per_round for level in levels for one in level.speculative):
        cells["tok/rnd"] = lambda level: mean(level.speculative, "tokens_per_round", 2)
    if both:
        cells["speedup"] = lambda level: speedup(level.speedup)
        cells["passes"] = lambda level: interval(min(level.speedups), max(level.speedups))
        cells["verdict"] = lambda level: level.verdict
    cells["checks"] = lambda level: " ".join(level.wrong) or "fine"
    return table([[cell(level) for cell in cells.values()] for level in levels], list(cells), n_words=0)


def answer(levels: Sequence[Level]) -> tuple[str, str]:
    """Return the answer, from the last load at which it pays and the first one behind it at which it does not, and what
    to try next."""
    at = max((place for place, level in enumerate(levels) if level.verdict == PAYS), default=-1)
    last = levels[at] if at >= 0 else None
    behind = next((level for level in levels[at + 1 :] if level.verdict == LOSES), None)
    if not levels[0].plain:
        why = "not known: that takes the same model on a server without speculation"
        return why, "start the same model without its draft, and add --plain-url URL"
    if last and behind:  # a switch inside the server may cost more than it saves, as docs/serving.md measures
        pays = f"{last.speedup:.2f}x at {last.n_users}, {behind.speedup:.2f}x at {behind.n_users}"
        then = f"a server without a draft where more than {last.n_users} requests come at a time, or a shorter k"
        return f"it stops paying between {last.n_users} and {behind.n_users} users: {pays}", then
    if last:
        more = "" if levels[-1] is last else "; behind that it is unclear"
        pays = f"{last.speedup:.2f}x with {last.n_users} users at a time{more}"
        then = f"more users: --load {2 * levels[-1].n_users},{4 * levels[-1].n_users}"
        return f"it pays up to the largest load at which it is clear, {pays}", then
    if behind:
        then = "the same command without --load: its answer says whether a round costs too much, or brings too little"
        makes = f"with {levels[0].n_users} at a time it makes {levels[0].speedup:.2f}x"
        return f"it pays at no load that was asked; {makes}", then
    return "not known: the passes do not agree", "longer windows on a quieter machine: --load-seconds 60"
