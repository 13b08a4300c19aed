"""So many users at a time ask one server: each sends its next request when the last one has ended (a closed loop).

Closed, since so many requests are in flight by construction, however slow the server is. Every request is bounded as
those of `ask/client.py` are: in time, in size, and to one host.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from speclab.extensions.servers import counters
from speclab.extensions.servers.ask.client import (
    ANSWER_BYTES,
    BROKEN,
    CONNECT_SECONDS,
    OK,
    PAGE_BYTES,
    PAGE_SECONDS,
    Client,
    ConnectionProblem,
    Order,
    Refused,
    check_size,
    path_of,
    seconds_of,
)
from speclab.extensions.servers.ask.engines import Server
from speclab.extensions.servers.ask.stream import Stream, message
from speclab.extensions.servers.counters import Look
from speclab.system.errors import EnvironmentProblem

LOOK_SECONDS = 0.5  # between two looks at the counters
MOST_FAILURES = 5  # of one window; the next one ends it
WARM_UP_SECONDS = 120.0  # until each user has one answer, at most


@dataclass(frozen=True)
class Request:
    """One answered request: seconds of one clock, and tokens."""

    sent: float
    first: float  # its first token
    last: float
    n_tokens: int
    n_prompt: int
    n_cached: int  # tokens of the prompt that came from the server's prefix cache
    prompt: str


@dataclass
class Window:
    """What so many users got from one server while all of them were asking."""

    n_users: int
    begin: float = 0.0
    end: float = 0.0
    requests: list[Request] = field(default_factory=list)  # those that ended before, too, and after
    looks: list[Look] = field(default_factory=list)  # at the counters, within the window
    n_failed: int = 0


class Users:
    """The users of one server."""

    def __init__(self, server: Server, chat: bool):
        self._server, self._client, self._chat = server, server.client, chat

    def ask(self, n_users: int, work: Iterator[tuple[str, int]], seconds: float) -> Window:
        """Ask with so many users at a time. work: prompts, each with the most tokens of its answer; it never ends.

        The window begins when each user has got one answer, and lasts `seconds`. EnvironmentProblem where more than
        MOST_FAILURES requests fail, or a user's first one.
        """
        return asyncio.run(self._ask(n_users, work, seconds))

    async def _ask(self, n_users: int, work: Iterator[tuple[str, int]], seconds: float) -> Window:
        window, warm = Window(n_users), [asyncio.Event() for _ in range(n_users)]
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx2.AsyncClient(limits=limits, **self._client.settings) as http:
            over = asyncio.Event()
            users = [asyncio.create_task(self._user(http, window, work, place, warm, over)) for place in range(n_users)]
            try:
                await _first_of(users, asyncio.gather(*[event.wait() for event in warm]), WARM_UP_SECONDS)
                window.begin = time.perf_counter()
                await _first_of(users, self._looks(http, window, seconds), seconds + PAGE_SECONDS)
                window.end = time.perf_counter()
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
                window.requests.append(await self._request(http, Order(prompt, n_tokens, self._chat)))
            except EnvironmentProblem:
                window.n_failed += 1
                if not warm[place].is_set() or window.n_failed > MOST_FAILURES:
                    raise
            warm[place].set()

    async def _request(self, http: httpx2.AsyncClient, order: Order) -> Request:
        stream, begin, path = Stream(self._client.url, order.n_tokens), time.perf_counter(), path_of(order)
        body = self._client.stream_body(order)
        await _sent(http, self._client, "POST", path, body, seconds_of(order), ANSWER_BYTES, stream.take)
        stream.close()
        if not stream.ended:
            raise ConnectionProblem(f"{self._client.url} ended its answer in the middle")
        answer = stream.answer()
        first = begin + answer.first_seconds
        last = first + answer.decode_seconds
        return Request(begin, first, last, answer.n_tokens, answer.n_prompt, answer.n_cached, str(order.prompt))

    async def _looks(self, http: httpx2.AsyncClient, window: Window, seconds: float) -> None:
        """Look at the counters until the window is over."""
        end = window.begin + seconds
        while time.perf_counter() < end:
            if self._server.has_page:
                window.looks.append(await self._look(http))
            await asyncio.sleep(min(LOOK_SECONDS, max(0.0, end - time.perf_counter())))
        if self._server.has_page:
            window.looks.append(await self._look(http))

    async def _look(self, http: httpx2.AsyncClient) -> Look:
        parts: list[bytes] = []
        await _sent(http, self._client, "GET", "/metrics", None, PAGE_SECONDS, PAGE_BYTES, parts.append)
        return counters.read(b"".join(parts).decode(errors="replace"))


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


async def _sent(
    http: httpx2.AsyncClient,
    client: Client,
    method: str,
    path: str,
    body: dict[str, Any] | None,
    seconds: float,
    most: int,
    take: Callable[[bytes], None],
) -> None:
    """Send a request, and give every part of its answer to `take`."""
    n_bytes, data = 0, b""
    try:
        async with (
            asyncio.timeout(seconds),
            http.stream(
                method, client.url + path, json=body, timeout=httpx2.Timeout(seconds, connect=CONNECT_SECONDS)
            ) as response,
        ):
            client.check_head(response, path)
            async for part in response.aiter_raw():
                n_bytes += len(part)
                check_size(n_bytes, client.url, most)
                if response.status_code == OK:
                    take(part)
                else:
                    data += part[: PAGE_BYTES - len(data)]
    except BROKEN as error:
        raise client.problem(error, seconds) from None
    if response.status_code != OK:
        raise Refused(f"{client.url} refuses the request: {message(data)}")
