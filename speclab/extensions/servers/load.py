"""So many users at a time ask a server, or two in turns: up to which load does speculation pay?

Each user sends the next request when the last one has ended (a closed loop): so many requests are in flight by
construction, however slow the server is. A window begins when each user has one answer.

tokens a second     tokens of the window over its length. A request's tokens lie evenly between its first and last
of a user           (tokens - 1) / (last - first) over the window's requests, without the wait for the first token
offered             requests in flight at a time, on average, beside the users who were to have one each: from their
                    sending until the server says that they are whole, which may be a pass after the last token
"""

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx2

from speclab.extensions.servers import counters
from speclab.extensions.servers.client import Order, Prompt, Server
from speclab.extensions.servers.counters import Look
from speclab.extensions.servers.diagnose import compact, labelled, of_pages
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note, progress, say

LOOK_SECONDS = 0.5  # between two looks at the counters
WARM_UP_SECONDS = 120.0  # until each user has one answer, at most
LEAST_ANSWERS = 3  # whole answers of each user in a window
LONGEST = 8  # times the seconds that are asked for: what a window may last, until it holds so many answers
PASSES = 2  # the plain server first, then the other one
SHORTEST = 0.6  # an answer's length, of the longest: answers of one length would end and start in waves
STRIDE, LENGTHS = 7, 16  # no common factor: neighbours differ much
# What makes a measurement worthless, each with its limit.
LEAST_ACHIEVED = 0.95  # requests in flight, as a share of the users
FARTHEST_APART = 1.1  # the larger of two passes over the smaller one
MOST_CACHED = 0.25  # tokens of prompts that were not read again, since the server had them
MOST_WAITING = 0.1  # requests in the server's queue, as a share of the users
LONGEST_WAIT = 0.5  # seconds to the first token, as a share of a request's; where no counter tells the queue
PAYS, LOSES, UNCLEAR = "pays", "does not pay", "unclear"
READ = (
    "tok/s: of all users together, their waits for a first token included; a user: of one of them, from its first "
    "token on; speedup: tok/s over plain tok/s"
)

Work = Iterator[tuple[str, int]]  # prompts without end, each with the most tokens of its answer


class Request(NamedTuple):
    """One answered request: seconds of one clock, and tokens. ended: the server has said that the answer is whole.
    n_cached: tokens of the prompt from the server's prefix cache. user: who asked, counted from 0."""

    sent: float
    first: float
    last: float
    ended: float
    n_tokens: int
    n_prompt: int
    n_cached: int
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

    @property
    def n_whole(self) -> int:
        """Return how many requests were sent and answered within it, those of the user who has the fewest."""
        whole = [one.user for one in self.requests if self.begin <= one.sent and one.ended <= self.end]
        return min(map(whole.count, range(self.n_users)))


# --- users ------------------------------------------------------------------------------------------------------------


def work(prompts: Sequence[Prompt], n_tokens: int, first: int, alter: bool) -> Work:
    """Yield what is asked, from this number on. alter: the number stands before the text, so that no two requests are
    the same, and no prefix cache holds one. Prompts that somebody gives are asked as they are."""
    for number in itertools.count(first):
        text = prompts[number % len(prompts)].text
        share = SHORTEST + (1 - SHORTEST) * (number * STRIDE % LENGTHS) / (LENGTHS - 1)
        yield f"{number}. {text}" if alter else text, max(2, round(share * n_tokens))


def ask(server: Server, n_users: int, orders: Work, seconds: float, chat: bool) -> Window:
    """Ask with so many users at a time. The window lasts `seconds`, and longer where it holds too few whole answers by
    then: until it holds LEAST_ANSWERS of each user, at most LONGEST times as long. EnvironmentProblem where a request
    fails: its user would wait for nothing, and the load would be another one."""
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
            last = first + found.decode_seconds
            first = sent if found.hides_tokens else first  # they lie somewhere before the first one that was seen
            counts = found.n_tokens, found.n_prompt, found.n_cached
            window.requests.append(Request(sent, first, last, ended, *counts, place))
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
        lasted, enough = window.end - window.begin, window.n_whole >= LEAST_ANSWERS
        left = (seconds if enough or lasted < seconds else LONGEST * seconds) - lasted
        if left <= 0:
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
        wrong=_wrong(window, inside),
    )


def _wrong(window: Window, inside: Sequence[Request]) -> dict[str, str]:
    n, length, whole, found = window.n_users, window.end - window.begin, window.n_whole, dict[str, str]()
    in_flight = sum(min(one.ended, window.end) - max(one.sent, window.begin) for one in inside) / length
    cached = sum(one.n_cached for one in inside) / max(1, sum(one.n_prompt for one in inside))
    waits = sum(one.first - one.sent for one in inside) / sum(one.ended - one.sent for one in inside)
    queue = [one.n_waiting for one in window.looks if one.n_waiting is not None]
    waiting = sum(queue) / len(queue) / n if queue else None
    if in_flight < LEAST_ACHIEVED * n:
        were = f"{n} requests at a time were offered, and {in_flight:.1f} were in flight"
        found["offered"] = f"{were}: run the client elsewhere"
    if whole < LEAST_ANSWERS:
        longer = f"--load-seconds {max(2, round(length * LEAST_ANSWERS / max(whole, 1) * 1.3)):d}"
        has = f"some user has {whole} whole answers in the window of {length:.0f} s"
        found["window"] = f"{has}, and {LEAST_ANSWERS} of each are wanted: {longer}"
    if cached > MOST_CACHED:
        found["cache"] = f"{cached:.0%} of the prompts' tokens came from a prefix cache: switch it off, or say so"
    if waits > LONGEST_WAIT if waiting is None else waiting > MOST_WAITING:
        time_ = f"{waits:.0%} of the requests' time was"
        were = time_ if waiting is None else f"{waiting * n:.1f} of {n} requests were"
        found["queue"] = f"{were} waiting in the server: let it answer more at a time, or ask with fewer users"
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
        """Return every check that fails in some window, and whether passes agree."""
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


def stops_paying(levels: Sequence[Level]) -> tuple[Level | None, Level | None]:
    """Return the last load at which it pays, and the first one behind it at which it does not; None: none."""
    last = max((place for place, level in enumerate(levels) if level.verdict == PAYS), default=-1)
    behind = next((level for level in levels[last + 1 :] if level.verdict == LOSES), None)
    return (levels[last] if last >= 0 else None), behind


# --- the command ------------------------------------------------------------------------------------------------------


def show(
    args: argparse.Namespace, speculative: Server, plain: Server | None, prompts: Sequence[Prompt], about: list[str]
) -> int:
    """Measure and print. about: lines on the servers.  -> exit code: 1 where a check fails, and that of the problem
    that has ended it before the last load. After Ctrl-C it is that of the finished loads, as in a comparison."""
    windows = len(args.load) * PASSES * (2 if plain else 1)
    longest = f"up to {LONGEST * args.load_seconds:g} s where answers take long"
    note(f"  {windows} windows of {args.load_seconds:g} s, {longest}, and a warm-up before each")

    def one(server: Server, n_users: int, first: int) -> Window:
        orders = work(prompts, args.max_new_tokens, first, alter=args.texts is None)
        return ask(server, n_users, orders, args.load_seconds, not args.raw)

    levels, stop = measure(speculative, plain, args.load, one)
    say("\n".join([*lines(levels), "", *about]))
    if isinstance(stop, EnvironmentProblem):  # a line has said which loads are lost
        return stop.exit_code
    return int(any(level.wrong for level in levels))


def measure(
    speculative: Server, plain: Server | None, loads: Sequence[int], one: Callable[[Server, int, int], Window]
) -> tuple[list[Level], BaseException | None]:
    """Return every load, in turns: two passes, the plain server first in one and the other one first in the other.

    one: asks a server with so many users, from a number on; both get the same in one pass. What fails after the first
    whole load ends the list and is noted, and so does Ctrl-C; it is returned beside the list.
    """
    levels, numbers = list[Level](), itertools.count(0, 10_000)  # every pass its own numbers
    servers = [server for server in (plain, speculative) if server]
    with progress(len(loads) * PASSES * len(servers), "window", "under load") as bar:
        for n_users in loads:
            sides: dict[Server | None, list[Side]] = {speculative: [], plain: []}
            try:
                for turn in range(PASSES):
                    first = next(numbers)
                    for server in servers if turn % 2 == 0 else servers[::-1]:
                        sides[server].append(side(one(server, n_users, first)))
                        bar.update()
            except (EnvironmentProblem, KeyboardInterrupt) as problem:
                if not levels:
                    raise
                lost = ", ".join(str(n) for n in loads[len(levels) :])
                why = str(problem) or "stopped"
                note(f"  only up to {levels[-1].n_users} users are counted, and these loads are lost, {lost}: {why}")
                return levels, problem
            levels.append(Level(n_users, sides[speculative], sides[plain]))
    return levels, None


def lines(levels: Sequence[Level]) -> list[str]:
    """Return the screen: the answer, the next thing to try, a table, and what fails. An answer whose checks fail says
    so."""
    wrong = list[str]()
    for name in (names := sorted({name for level in levels for name in level.wrong})):
        found = [level for level in levels if name in level.wrong]
        where = ", ".join(str(level.n_users) for level in found)
        wrong.append(labelled(name, f"at {where} user{'s' * (where != '1')}: {found[-1].wrong[name]}"))
    doubt = f" (not before these are mended: {', '.join(names)})" if names else ""
    first = [labelled("ANSWER", answer(levels) + doubt), labelled("try", advice(levels)), ""]
    return [*first, _table(levels), labelled("read", READ), *([""] if wrong else []), *wrong]


def _table(levels: Sequence[Level]) -> str:
    def mean(sides: Sequence[Side], name: str, digits: int = 1) -> str:
        return f"{sum(getattr(one, name) for one in sides) / len(sides):.{digits}f}"

    columns: dict[str, list[str]] = {"users": [str(level.n_users) for level in levels]}
    if levels[0].plain:
        columns["plain tok/s"] = [mean(level.plain, "together") for level in levels]
        columns["a user"] = [mean(level.plain, "of_user") for level in levels]
    columns["tok/s"] = [mean(level.speculative, "together") for level in levels]
    columns[" a user"] = [mean(level.speculative, "of_user") for level in levels]
    if all(one.tokens_per_round for level in levels for one in level.speculative):
        columns["tok/rnd"] = [mean(level.speculative, "tokens_per_round", 2) for level in levels]
    if levels[0].plain:
        columns["speedup"] = [f"{level.speedup:.2f}x" for level in levels]
        columns["passes"] = [f"{min(level.speedups):.2f} to {max(level.speedups):.2f}" for level in levels]
        columns["verdict"] = [level.verdict for level in levels]
    columns["checks"] = [" ".join(level.wrong) or "fine" for level in levels]
    return compact(columns, n_words=0)


def answer(levels: Sequence[Level]) -> str:
    last, behind = stops_paying(levels)
    if not levels[0].plain:
        return "not known: that takes the same model on a server without speculation"
    if last is None and behind is None:
        return "not known: the passes do not agree"
    if last is None:
        return f"it pays at no load that was asked; at {_users(levels[0])} it makes {levels[0].speedup:.2f}x"
    pays = f"{last.speedup:.2f}x at {_users(last)}"
    if behind is None:
        more = "" if levels[-1] is last else "; behind that it is unclear"
        return f"it pays up to the largest load at which it is clear, {pays}{more}"
    fails = f"{behind.speedup:.2f}x at {behind.n_users}"
    return f"it stops paying between {last.n_users} and {_users(behind)}: {pays}, {fails}"


def advice(levels: Sequence[Level]) -> str:
    last, behind = stops_paying(levels)
    if not levels[0].plain:
        return "start the same model without its draft, and add --plain-url URL"
    if last and behind:  # a switch inside the server may cost more than it saves, as docs/serving.md measures
        return f"a server without a draft where more than {last.n_users} requests come at a time, or a shorter k"
    if last:
        return f"more users: --load {2 * levels[-1].n_users},{4 * levels[-1].n_users}"
    if behind:
        return "the same command without --load: its answer says whether a round costs too much, or brings too little"
    return "longer windows on a quieter machine: --load-seconds 60"


def _users(level: Level) -> str:
    return f"{level.n_users} user{'s' * (level.n_users > 1)}"
