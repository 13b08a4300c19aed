"""So many users at a time ask one server: each sends its next request when the last one has ended (a closed loop).

Closed, since so many requests are in flight by construction, however slow the server is.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from speclab.extensions.servers import counters
from speclab.extensions.servers.ask.client import PAGE_SECONDS, ConnectionProblem, Order
from speclab.extensions.servers.ask.engines import Server
from speclab.extensions.servers.counters import Look
from speclab.system.errors import EnvironmentProblem

LOOK_SECONDS = 0.5  # between two looks at the counters
MOST_FAILURES = 5  # of one window; the next one ends it
WARM_UP_SECONDS = 120.0  # until each user has one answer, at most
LEAST_ANSWERS = 3  # whole answers of each user in a window
LONGEST = 8  # times the seconds that are asked for: what a window may last, until it holds so many answers


@dataclass(frozen=True)
class Request:
    """One answered request: seconds of one clock, and tokens."""

    sent: float
    first: float  # its first token
    last: float
    ended: float  # the server has said that the answer is whole
    n_tokens: int
    n_prompt: int
    n_cached: int  # tokens of the prompt that came from the server's prefix cache
    prompt: str
    user: int  # who asked, counted from 0


@dataclass
class Window:
    """What so many users got from one server while all of them were asking."""

    n_users: int
    begin: float = 0.0
    end: float = 0.0
    requests: list[Request] = field(default_factory=list)  # those that ended before, too, and after
    looks: list[Look] = field(default_factory=list)  # at the counters, within the window
    n_failed: int = 0

    @property
    def n_whole(self) -> int:
        """Return how many requests were sent and answered within it, those of the user who has the fewest."""
        whole = [one.user for one in self.requests if self.begin <= one.sent and one.ended <= self.end]
        return min(map(whole.count, range(self.n_users)))


class Users:
    """The users of one server."""

    def __init__(self, server: Server, chat: bool):
        self._server, self._chat = server, chat

    def ask(self, n_users: int, work: Iterator[tuple[str, int]], seconds: float) -> Window:
        """Ask with so many users at a time. work: prompts, each with the most tokens of its answer; it never ends.

        The window begins when each user has got one answer. It lasts `seconds`, and longer where it holds too few whole
        answers by then: until it holds LEAST_ANSWERS of each user, at most LONGEST times as long. EnvironmentProblem
        where more than MOST_FAILURES requests fail, or a user's first one.
        """
        return asyncio.run(self._ask(n_users, work, seconds))

    async def _ask(self, n_users: int, work: Iterator[tuple[str, int]], seconds: float) -> Window:
        window, warm = Window(n_users), [asyncio.Event() for _ in range(n_users)]
        async with self._server.client.opened() as http:
            over = asyncio.Event()
            users = [asyncio.create_task(self._user(http, window, work, place, warm, over)) for place in range(n_users)]
            try:
                await _first_of(users, asyncio.gather(*[event.wait() for event in warm]), WARM_UP_SECONDS)
                await _first_of(users, self._looks(http, window, seconds), LONGEST * seconds + PAGE_SECONDS)
                over.set()
                await asyncio.gather(*users)  # the window's last tokens belong to requests that end after it
            finally:
                for user in users:
                    user.cancel()
                await asyncio.gather(*users, return_exceptions=True)
        return window

    async def _user(
        self,
        http: httpx2.AsyncClient,
        window: Window,
        work: Iterator[tuple[str, int]],
        place: int,
        warm: list[asyncio.Event],
        over: asyncio.Event,
    ) -> None:
        """Ask until the window is over."""
        while not over.is_set():
            prompt, n_tokens = next(work)
            if not warm[place].is_set():  # first answers of different lengths: no waves of users in step
                n_tokens = max(1, n_tokens * (place + 1) // len(warm))
            try:
                window.requests.append(await self._request(http, prompt, n_tokens, place))
            except EnvironmentProblem:
                window.n_failed += 1
                if not warm[place].is_set() or window.n_failed > MOST_FAILURES:
                    raise
            warm[place].set()

    async def _request(self, http: httpx2.AsyncClient, prompt: str, n_tokens: int, user: int) -> Request:
        sent = time.perf_counter()
        answer = await self._server.client.answered(http, Order(prompt, n_tokens, self._chat))
        first, ended = sent + answer.first_seconds, sent + answer.whole_seconds
        last = first + answer.decode_seconds
        first = sent if answer.hides_tokens else first  # they lie somewhere before the first one that was seen
        return Request(sent, first, last, ended, answer.n_tokens, answer.n_prompt, answer.n_cached, prompt, user)

    async def _looks(self, http: httpx2.AsyncClient, window: Window, seconds: float) -> None:
        """Look at the counters until the window is over. It is not ended by an answer but at a look, so that it does
        not end where many tokens have just come."""
        window.begin = time.perf_counter()
        while True:
            if self._server.has_page:
                page = await self._server.client.got(http, "/metrics")
                window.looks.append(counters.read(page.decode(errors="replace")))
            window.end = time.perf_counter()
            lasted, enough = window.end - window.begin, window.n_whole >= LEAST_ANSWERS
            left = (seconds if enough or lasted < seconds else LONGEST * seconds) - lasted
            if left <= 0:
                return
            await asyncio.sleep(min(LOOK_SECONDS, left))


async def _first_of(users: list[asyncio.Task], what: Any, seconds: float) -> None:
    """Wait for `what`, at most so long; where a user has failed before, raise its problem."""
    task = asyncio.ensure_future(what)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wait([task, *users], return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        raise ConnectionProblem(
            f"not every user got an answer within {seconds:g} s; ask with fewer users at a time: --load 1,2"
        ) from None
    finally:
        if not task.done():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
    for user in users:
        if user.done():
            user.result()
    task.result()
