"""Requests to one OpenAI-compatible server, which nobody vouches for: what comes back is bounded in size and in time.

Nothing is sent to any other host: redirects are not followed and no proxy is asked. What goes wrong is an
EnvironmentProblem of one line, a ConnectionProblem where the server cannot be reached or has gone in the middle.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from speclab.extensions.servers.ask.stream import Answer, Stream, message, parsed
from speclab.system.errors import EnvironmentProblem, UsageProblem

CONNECT_SECONDS, PAGE_SECONDS = 5.0, 30.0  # of a page: from the request to its last byte
ANSWER_SECONDS, TOKEN_SECONDS = 120.0, 5.0  # of an answer, and for each of its tokens more
PAGE_BYTES, ANSWER_BYTES = 2**23, 2**26
OK, BUSY, FAILED = 200, (408, 425, 429), 500  # BUSY, and from FAILED on: the same request may be answered later


class ConnectionProblem(EnvironmentProblem):
    """The server cannot be reached, or has gone in the middle of an answer."""


class Refused(EnvironmentProblem):
    """The server answers that it does not do this."""


class Order(NamedTuple):
    """One request, greedy but for its temperature. prompt: a text, or token ids for a server that takes them. chat: as
    a message of a user."""

    prompt: str | list[int]
    n_tokens: int
    chat: bool = True
    ids: bool = False  # whether all n_tokens are wanted, with their ids, as vLLM sends them
    temperature: float = 0.0


# What a request may end in, whatever comes back.
BROKEN = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError)
# A server's own defaults would change the text: those that every server knows are sent, at the values of no effect.
NEUTRAL: dict[str, Any] = {"top_p": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
# Requests go to the address that the user named, and nowhere else.
ONE_HOST: dict[str, Any] = {"trust_env": False, "follow_redirects": False}


class Client:
    """One server, by its address. key: an API key, sent to this server alone and never shown.

    wishes: what else its engine understands in a request.

    `page`, `json`, `post` and `ask` send one request and wait for its end, in an event loop of its own; where a loop
    runs already, as in a notebook, they raise RuntimeError. `got` and `answered` take what `opened` gives, so that
    several requests are under way at a time.
    """

    def __init__(self, url: str, key: str | None = None):
        self.url, self.model, self.wishes = url, "", dict[str, Any]()
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        trusted = httpx2.create_ssl_context(trust_env=False)  # made once: it reads a file
        self._settings: dict[str, Any] = {"headers": headers, "limits": limits, "verify": trusted, **ONE_HOST}

    def page(self, path: str) -> bytes:
        """Return a page as a whole. Refused where the server has none such."""
        return self._alone(lambda http: self.got(http, path))

    def json(self, path: str) -> Any:
        """Return a page that is JSON."""
        return parsed(self.page(path), self.url)

    def post(self, path: str, body: dict[str, Any], seconds: float) -> Any:
        """Send JSON, and return the JSON that comes back."""
        parts: list[bytes] = []
        self._alone(lambda http: self._send(http, "POST", path, body, seconds, PAGE_BYTES, parts.append))
        return parsed(b"".join(parts), self.url)

    def ask(self, order: Order) -> Answer:
        """Send one streamed request, and time what comes back."""
        return self._alone(lambda http: self.answered(http, order))

    def opened(self) -> httpx2.AsyncClient:
        """Return what requests of one event loop are sent with."""
        return httpx2.AsyncClient(**self._settings)

    async def got(self, http: httpx2.AsyncClient, path: str) -> bytes:
        """Return a page as a whole. Refused where the server has none such."""
        parts: list[bytes] = []
        await self._send(http, "GET", path, None, PAGE_SECONDS, PAGE_BYTES, parts.append)
        return b"".join(parts)

    async def answered(self, http: httpx2.AsyncClient, order: Order) -> Answer:
        """Send one streamed request, and time what comes back."""
        stream, body = Stream(self.url, order.n_tokens), self.body(order)
        body |= {"stream": True, "stream_options": {"include_usage": True}}

        def take(part: bytes) -> bool:
            stream.take(part)
            return stream.ended

        try:
            await self._send(http, "POST", path_of(order), body, seconds_of(order), ANSWER_BYTES, take)
        except Refused as problem:
            without = order.chat and "template" in str(problem)  # vLLM's words where the model has none
            raise Refused(f"{str(problem).rstrip('.')}; add --raw" if without else str(problem)) from None
        stream.close()
        if not stream.ended:
            raise ConnectionProblem(f"{self.url} ended its answer in the middle")
        return stream.answer()

    def body(self, order: Order) -> dict[str, Any]:
        """Return what a request says, its form of the prompt included."""
        what = {"messages": [{"role": "user", "content": order.prompt}]} if order.chat else {"prompt": order.prompt}
        how = {"model": self.model, "max_tokens": order.n_tokens, "temperature": order.temperature}
        how |= {} if order.temperature else {"seed": 0}
        ids = {"return_token_ids": True, "ignore_eos": True} if order.ids else {}
        return {**what, **how, **NEUTRAL, **self.wishes, **ids}

    def _alone(self, send: Callable[[httpx2.AsyncClient], Awaitable[Any]]) -> Any:
        async def alone() -> Any:
            async with self.opened() as http:
                return await send(http)

        return asyncio.run(alone())

    async def _send(
        self,
        http: httpx2.AsyncClient,
        method: str,
        path: str,
        body: dict[str, Any] | None,
        seconds: float,
        most: int,
        take: Callable[[bytes], bool | None],
    ) -> None:
        """Send a request, and give every part of its answer to `take`, not decompressed, until that returns True.

        seconds: for all of it, however slowly its bytes come. most: bytes.
        """
        n_bytes, reason = 0, b""
        timeout = httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        try:
            async with (
                asyncio.timeout(seconds),
                http.stream(method, self.url + path, json=body, timeout=timeout) as response,
                aclosing(response.aiter_raw()) as parts,
            ):
                self._check_head(response, path)
                async for part in parts:
                    n_bytes += len(part)
                    check_size(n_bytes, self.url, most)
                    if response.status_code != OK:
                        reason += part[: PAGE_BYTES - len(reason)]
                    elif take(part):
                        return
        except BROKEN as error:
            raise self._problem(error, seconds) from None
        if response.status_code != OK:
            again = "; try again later" if response.status_code in BUSY or response.status_code >= FAILED else ""
            said = f"{self.url}{path} answers {response.status_code}: {message(reason).rstrip('.')}{again}"
            raise Refused(said)

    def _check_head(self, response: httpx2.Response, path: str) -> None:
        """Raise EnvironmentProblem where an answer points elsewhere, or is compressed."""
        if response.is_redirect:
            raise EnvironmentProblem(f"{self.url}{path} points to another address; give the server's own one")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise EnvironmentProblem(f"{self.url} compresses its answer although it was asked not to")

    def _problem(self, error: Exception, seconds: float) -> ConnectionProblem:
        """Return one line for what went wrong on the way. seconds: the time that the request had."""
        if isinstance(error, httpx2.ReadTimeout | TimeoutError):
            return ConnectionProblem(f"{self.url} did not end its answer within {seconds:g} s")
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ConnectionProblem(f"{self.url} does not answer: {_why(error)}; start it, or check the address")
        return ConnectionProblem(f"{self.url} went away in the middle of an answer: {_why(error)}")


def check_size(n_bytes: int, url: str, most: int) -> None:
    """Raise EnvironmentProblem where an answer has more than `most` bytes."""
    if n_bytes > most:
        raise EnvironmentProblem(f"{url} sends more than {most // 2**20} MiB")


def path_of(order: Order) -> str:
    """Return the page that takes such a request."""
    return "/v1/chat/completions" if order.chat else "/v1/completions"


def seconds_of(order: Order) -> float:
    """Return the longest time that an answer may take."""
    return ANSWER_SECONDS + TOKEN_SECONDS * order.n_tokens


def check_url(url: str) -> str:
    """Return the address without what follows the port and path. UsageProblem where it is none."""
    try:
        place = urlsplit(url)
        (place.hostname or "").encode("idna").decode()
        place.path.encode("ascii")
        good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
        good = good and place.username is None and not set(url) & set(" \t\r\n\x00?#")
    except ValueError:
        good = False
    if not good:
        raise UsageProblem(f"{url[:200]} is no address of a server; give one such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _why(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
