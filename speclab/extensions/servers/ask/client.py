"""Requests to one OpenAI-compatible server, which nobody vouches for: what comes back is bounded in size and in time.

Nothing is sent to any other host: redirects are not followed and no proxy is asked. What goes wrong is an
EnvironmentProblem of one line, a ConnectionProblem where the server cannot be reached or has gone in the middle.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from speclab.extensions.servers.ask.stream import Answer, Stream, message, parsed
from speclab.system.errors import EnvironmentProblem, UsageProblem

CONNECT_SECONDS, PAGE_SECONDS = 5.0, 30.0  # of a page: from the request to its last byte
ANSWER_SECONDS, TOKEN_SECONDS = 120.0, 5.0  # of an answer, and for each of its tokens more
PAGE_BYTES, ANSWER_BYTES = 2**23, 2**26
OK = 200


class ConnectionProblem(EnvironmentProblem):
    """The server cannot be reached, or has gone in the middle of an answer."""


class Refused(EnvironmentProblem):
    """The server answers that it does not do this."""


class Order(NamedTuple):
    """One greedy request. prompt: a text, or token ids for a server that takes them. chat: as a message of a user."""

    prompt: str | list[int]
    n_tokens: int
    chat: bool = True
    ids: bool = False  # whether all n_tokens are wanted, with their ids, as vLLM sends them


# What a request may end in, whatever comes back.
BROKEN = (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError)
# Requests go to the address that the user named, and nowhere else.
ONE_HOST: dict[str, Any] = {"trust_env": False, "follow_redirects": False}


class Client:
    """One server, by its address. key: an API key, sent to this server alone and never shown.

    sends_ids: whether it knows `return_token_ids`, as vLLM does. A chunk may carry several tokens.
    """

    def __init__(self, url: str, key: str | None = None):
        self.url, self.model, self.sends_ids = url, "", False
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self.settings: dict[str, Any] = {"headers": headers, **ONE_HOST}
        self._http = httpx2.Client(limits=httpx2.Limits(max_keepalive_connections=0), **self.settings)

    def page(self, path: str) -> bytes:
        """Return a page as a whole. Refused where the server has none such."""
        with self._parts("GET", path, None, PAGE_SECONDS, PAGE_BYTES) as (status, parts):
            body = b"".join(parts)
        if status != OK:
            raise Refused(f"{self.url}{path} answers {status}: {message(body)}")
        return body

    def json(self, path: str) -> Any:
        """Return a page that is JSON."""
        return parsed(self.page(path), self.url)

    def post(self, path: str, body: dict[str, Any], seconds: float) -> Any:
        """Send JSON, and return the JSON that comes back."""
        with self._parts("POST", path, body, seconds, PAGE_BYTES) as (status, parts):
            data = b"".join(parts)
        if status != OK:
            raise Refused(f"{self.url} refuses the request: {message(data)}")
        return parsed(data, self.url)

    def ask(self, order: Order) -> Answer:
        """Send one streamed request, and time what comes back."""
        seconds, stream = seconds_of(order), Stream(self.url, order.n_tokens)
        with self._parts("POST", path_of(order), self.stream_body(order), seconds, ANSWER_BYTES) as (status, parts):
            if status != OK:
                raise Refused(f"{self.url} refuses the request: {message(b''.join(parts))}")
            for part in parts:
                stream.take(part)
                if stream.ended:
                    return stream.answer()
            stream.close()
        if not stream.ended:
            raise ConnectionProblem(f"{self.url} ended its answer in the middle")
        return stream.answer()

    def body(self, order: Order) -> dict[str, Any]:
        """Return what a request says, its form of the prompt included."""
        what = {"messages": [{"role": "user", "content": order.prompt}]} if order.chat else {"prompt": order.prompt}
        greedy = {"model": self.model, "max_tokens": order.n_tokens, "temperature": 0, "seed": 0}
        ids = {"return_token_ids": True} if order.ids or self.sends_ids else {}
        return {**what, **greedy, **ids, **({"ignore_eos": True} if order.ids else {})}

    def stream_body(self, order: Order) -> dict[str, Any]:
        """Return what a streamed request says."""
        return self.body(order) | {"stream": True, "stream_options": {"include_usage": True}}

    def check_head(self, response: httpx2.Response, path: str) -> None:
        """Raise EnvironmentProblem where an answer points elsewhere, or is compressed."""
        if response.is_redirect:
            raise EnvironmentProblem(f"{self.url}{path} points to another address; give the server's own one")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise EnvironmentProblem(f"{self.url} compresses its answer although it was asked not to")

    def problem(self, error: Exception, seconds: float) -> ConnectionProblem:
        """Return one line for what went wrong on the way. seconds: the time that the request had."""
        if isinstance(error, httpx2.ReadTimeout | TimeoutError):
            return ConnectionProblem(f"{self.url} did not end its answer within {seconds:g} s")
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return ConnectionProblem(f"{self.url} does not answer: {_why(error)}; start the server, or check --url")
        return ConnectionProblem(f"{self.url} went away in the middle of an answer: {_why(error)}")

    @contextlib.contextmanager
    def _parts(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float, most: int
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Give the status of an answer and its bytes, part by part, not decompressed. seconds: for all of it."""
        watch = _Watch(seconds)
        timeout = httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        try:
            extensions = {"trace": watch.see}
            with (
                watch,
                self._http.stream(
                    method, self.url + path, json=body, timeout=timeout, extensions=extensions
                ) as response,
            ):
                self.check_head(response, path)
                yield response.status_code, _bounded(response, self.url, most)
                if watch.late:  # what was cut off may look whole
                    raise TimeoutError
        except BROKEN as error:
            raise self.problem(TimeoutError() if watch.late else error, seconds) from None


class _Watch:
    """Ends a request that takes too long, however slowly its bytes come: no single wait for a byte is too long then."""

    def __init__(self, seconds: float):
        self.late = False
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def see(self, event: str, info: dict[str, Any]) -> None:
        """Remember the connection of the request."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
            if self.late:  # the time was over before there was a connection
                self._end()

    def _end(self) -> None:
        self.late = True
        if self._socket:
            with contextlib.suppress(OSError):  # it may have ended by itself
                self._socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *stop: object) -> None:
        self._timer.cancel()


def _bounded(response: httpx2.Response, url: str, most: int) -> Iterator[bytes]:
    """Yield the bytes of an answer as they come, as long as they are not too many."""
    n_bytes = 0
    for part in response.iter_raw():
        n_bytes += len(part)
        check_size(n_bytes, url, most)
        yield part


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
