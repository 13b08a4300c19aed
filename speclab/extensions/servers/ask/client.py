"""Requests to one OpenAI-compatible server, which nobody vouches for: what comes back is bounded in size and in time.

Nothing is sent to any other host: redirects are not followed and no proxy is asked. What goes wrong is an
EnvironmentProblem of one line, a ConnectionProblem where the server cannot be reached or has gone in the middle.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from speclab.system.errors import EnvironmentProblem, UsageProblem

CONNECT_SECONDS, PAGE_SECONDS = 5.0, 30.0  # of a page: from the request to its last byte
ANSWER_SECONDS, TOKEN_SECONDS = 120.0, 5.0  # of an answer, and for each of its tokens more
PART_BYTES, LINE_BYTES, PAGE_BYTES, ANSWER_BYTES = 2**16, 2**20, 2**23, 2**26
OK, MOST_TOKENS = 200, 2**20
DATA, DONE = b"data:", b"[DONE]"


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


class Answer(NamedTuple):
    """The text that a server sent, and its times by the client's clock."""

    text: str
    n_tokens: int  # as the server counts them
    n_first: int  # those of the first chunk with text: 1 where the server sends no ids
    first_seconds: float  # from the request to the first chunk with text
    decode_seconds: float  # from there to the last one
    ids: list[int]  # empty where none were asked for
    timings: dict[str, Any]  # llama-server's own counts of this request; empty elsewhere

    @property
    def seconds_per_token(self) -> float:
        """Return the seconds of a token after the first chunk; 0 where nothing came after it."""
        return self.decode_seconds / max(1, self.n_tokens - self.n_first)


# Requests go to the address that the user named, and nowhere else.
ONE_HOST: dict[str, Any] = {"trust_env": False, "follow_redirects": False}


class Client:
    """One server, by its address. key: an API key, sent to this server alone and never shown.

    sends_ids: whether it knows `return_token_ids`, as vLLM does. A chunk may carry several tokens.
    """

    def __init__(self, url: str, key: str | None = None):
        self.url, self.model, self.sends_ids = url, "", False
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._http = httpx2.Client(headers=headers, limits=httpx2.Limits(max_keepalive_connections=0), **ONE_HOST)

    def page(self, path: str) -> bytes:
        """Return a page as a whole. Refused where the server has none such."""
        with self._parts("GET", path, None, PAGE_SECONDS, PAGE_BYTES) as (status, parts):
            body = b"".join(parts)
        if status != OK:
            raise Refused(f"{self.url}{path} answers {status}: {message(body)}")
        return body

    def json(self, path: str) -> Any:
        """Return a page that is JSON."""
        return _parsed(self.page(path), self.url)

    def post(self, path: str, body: dict[str, Any], seconds: float) -> Any:
        """Send JSON, and return the JSON that comes back."""
        with self._parts("POST", path, body, seconds, PAGE_BYTES) as (status, parts):
            data = b"".join(parts)
        if status != OK:
            raise Refused(f"{self.url} refuses the request: {message(data)}")
        return _parsed(data, self.url)

    def ask(self, order: Order) -> Answer:
        """Send one streamed request, and time what comes back."""
        begin = first = last = time.perf_counter()
        pieces: list[str] = []
        ids: list[int] = []
        n_counted, n_first, timings = 0, 1, {}
        for chunk in self._chunks(order):
            now = time.perf_counter()
            text, new_ids = _content(chunk)
            if text or new_ids:
                if not pieces:
                    first, n_first = now, max(1, len(new_ids))
                last = now
                pieces.append(text)
                ids += new_ids
            n_counted = _usage(chunk) or n_counted
            if isinstance(chunk.get("timings"), dict):
                timings = chunk["timings"]
            if max(len(pieces), len(ids)) > order.n_tokens + 1:
                raise EnvironmentProblem(f"{self.url} sends more than the {order.n_tokens} tokens that were asked for")
        n_tokens = n_counted or len(ids) or len(pieces)
        if not pieces or not 0 < n_tokens <= order.n_tokens:
            raise EnvironmentProblem(f"{self.url} sent {n_tokens} tokens where 1 to {order.n_tokens} were asked for")
        if n_tokens > 1 and last <= first:
            raise EnvironmentProblem(
                f"{self.url} sent all {n_tokens} tokens at one moment, so that decoding cannot be timed; have no proxy "
                "in between that collects chunks"
            )
        return Answer("".join(pieces), n_tokens, n_first, first - begin, last - first, ids, timings)

    def body(self, order: Order) -> dict[str, Any]:
        """Return what a request says, its form of the prompt included."""
        what = {"messages": [{"role": "user", "content": order.prompt}]} if order.chat else {"prompt": order.prompt}
        greedy = {"model": self.model, "max_tokens": order.n_tokens, "temperature": 0, "seed": 0}
        ids = {"return_token_ids": True} if order.ids or self.sends_ids else {}
        return {**what, **greedy, **ids, **({"ignore_eos": True} if order.ids else {})}

    def _chunks(self, order: Order) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream, until it says that it has ended."""
        body = self.body(order) | {"stream": True, "stream_options": {"include_usage": True}}
        seconds = ANSWER_SECONDS + TOKEN_SECONDS * order.n_tokens
        with self._parts("POST", path_of(order), body, seconds, ANSWER_BYTES) as (status, parts):
            if status != OK:
                raise Refused(f"{self.url} refuses the request: {message(b''.join(parts))}")
            for line in _lines(parts, self.url):
                if not line.startswith(DATA):
                    continue
                data = line[len(DATA) :].strip()
                if data == DONE:
                    return
                chunk = _parsed(data, self.url)
                if not isinstance(chunk, dict):
                    raise EnvironmentProblem(f"{self.url} sends an event that is no object: {data[:60]!r}")
                if "error" in chunk:
                    raise EnvironmentProblem(f"{self.url} ends its answer: {message(data)}")
                yield chunk
        raise ConnectionProblem(f"{self.url} ended its answer in the middle")

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
                if response.is_redirect:
                    raise EnvironmentProblem(f"{self.url}{path} points to another address; give the server's own one")
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise EnvironmentProblem(f"{self.url} compresses its answer although it was asked not to")
                yield response.status_code, _bounded(response, self.url, most)
                if watch.late:  # what was cut off may look whole
                    raise TimeoutError
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            if watch.late or isinstance(error, httpx2.ReadTimeout | TimeoutError):
                raise ConnectionProblem(f"{self.url} did not end its answer within {seconds:g} s") from None
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                raise ConnectionProblem(
                    f"{self.url} does not answer: {_why(error)}; start the server, or check --url"
                ) from None
            raise ConnectionProblem(f"{self.url} went away in the middle of an answer: {_why(error)}") from None


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
        if n_bytes > most:
            raise EnvironmentProblem(f"{url} sends more than {most // 2**20} MiB")
        yield part


def _lines(parts: Iterator[bytes], url: str) -> Iterator[bytes]:
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        if max(map(len, (*lines, rest))) > LINE_BYTES:
            raise EnvironmentProblem(f"{url} sends a line of more than {LINE_BYTES // 2**20} MiB")
        yield from lines
    if rest:
        yield rest


def path_of(order: Order) -> str:
    """Return the page that takes such a request."""
    return "/v1/chat/completions" if order.chat else "/v1/completions"


def _content(chunk: dict[str, Any]) -> tuple[str, list[int]]:
    """Return the text of an event, thoughts included, and its token ids; nothing where it has none."""
    try:
        choice = chunk["choices"][0]
        said = choice.get("delta", choice)
        text = "".join(said.get(name) or "" for name in ("reasoning_content", "reasoning", "content", "text"))
        ids = choice.get("token_ids") or []
    except (LookupError, TypeError, AttributeError):
        return "", []
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**31 for one in ids):
        raise EnvironmentProblem("the server sends token ids that are no ids")
    return text, ids


def _usage(chunk: dict[str, Any]) -> int:
    """Return how many tokens the server says that it has made; 0 where the event does not say it."""
    usage = chunk.get("usage")
    count = usage.get("completion_tokens") if isinstance(usage, dict) else 0
    return count if type(count) is int and 0 < count < MOST_TOKENS else 0


def _parsed(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise EnvironmentProblem(f"{url} sends what is no JSON: {data[:60]!r}") from None


def message(data: bytes) -> str:
    """Return what a server's error says, in at most 200 characters."""
    try:
        error = json.loads(data)
        error = error.get("error", error)
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        text = data[:2000].decode(errors="replace")
    return " ".join(text[:2000].split())[:200] or "no reason given"


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
