"""Requests to an OpenAI-compatible server that streams token ids, as vLLM does. Standard library only.

A streamed chunk may carry the tokens of several rounds, so tokens are counted by their ids, and the time between two
chunks is not the time of a token.
"""

import http.client
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from speclab.core.sampling import Sampling
from speclab.lab.serving import counters
from speclab.system.errors import EnvironmentProblem, UsageProblem

SILENT_SECONDS = 120.0  # without a byte from the server, after which it counts as hanging
SETTLE_LOOKS, SETTLE_SECONDS = 100, 0.02  # looks at /metrics until it has counted a request, and the pause after each
DATA, DONE = b"data:", b"[DONE]"


class ConnectionProblem(EnvironmentProblem):
    """The server cannot be reached, or has gone in the middle of an answer."""


class Order(NamedTuple):
    """What is asked of a server: so many new tokens after these."""

    prompt: list[int]
    n_tokens: int
    sampling: Sampling
    seed: int = 0


class Answer(NamedTuple):
    """What a server sent, and when."""

    tokens: list[int]
    n_first: int  # tokens of the first chunk
    n_chunks: int
    first_seconds: float  # from the request to the first chunk
    decode_seconds: float  # from there to the last chunk

    @property
    def seconds_per_token(self) -> float:
        """After the first chunk; 0 where nothing came after it."""
        return self.decode_seconds / max(1, len(self.tokens) - self.n_first)


@dataclass(frozen=True)
class Client:
    """One server, by its address. model: its name for what it serves."""

    url: str
    model: str = ""

    def ask(self, order: Order) -> Answer:
        """One streamed request."""
        begin = time.perf_counter()
        first = last = begin
        tokens: list[int] = []
        n_first = n_chunks = 0
        for chunk in self._chunks(self._body(order)):
            if not chunk:
                continue
            last = time.perf_counter()
            if not n_chunks:
                first, n_first = last, len(chunk)
            n_chunks += 1
            tokens += chunk
        if len(tokens) != order.n_tokens:
            raise ConnectionProblem(f"{self.url} sent {len(tokens)} of {order.n_tokens} tokens")
        return Answer(tokens, n_first, n_chunks, first - begin, last - first)

    def healthy(self) -> bool:
        """Whether the server answers that it is ready."""
        try:
            with self._get("/health", seconds=5) as response:
                return response.status == http.client.OK
        except EnvironmentProblem:
            return False

    def look(self) -> counters.Look:
        """The counters now."""
        with self._get("/metrics") as response:
            return counters.read(response.read().decode(errors="replace"))

    def settled(self, before: counters.Look, n_tokens: int) -> counters.Look:
        """The counters after `n_tokens` more: the page may be a moment behind the stream.

        EnvironmentProblem where they do not come to that number: somebody else asks this server, too.
        """
        for _ in range(SETTLE_LOOKS):
            now = self.look()
            if now.n_generated - before.n_generated >= n_tokens:
                break
            time.sleep(SETTLE_SECONDS)
        if now.n_generated - before.n_generated != n_tokens:
            raise EnvironmentProblem(
                f"{self.url} counted {now.n_generated - before.n_generated} tokens where {n_tokens} were asked for: "
                "somebody else asks it, too; stop that, or let this run start servers of its own"
            )
        return now

    def served_model(self) -> str:
        """The name of the first model that the server offers."""
        with self._get("/v1/models") as response:
            answer = _json(response.read(), self.url)
        try:
            return str(answer["data"][0]["id"])
        except (LookupError, TypeError):
            raise EnvironmentProblem(f"{self.url} names no model at /v1/models; give the address of a vLLM") from None

    def version(self) -> str | None:
        """Of the engine; None where it does not say."""
        with self._get("/version") as response:
            found = _json(response.read(), self.url) if response.status == http.client.OK else {}
        return str(found["version"]) if isinstance(found, dict) and "version" in found else None

    def _body(self, order: Order) -> dict[str, Any]:
        sampling = order.sampling
        filters = {"top_k": sampling.top_k} if sampling.top_k else {}
        return {
            "model": self.model,
            "prompt": order.prompt,
            "max_tokens": order.n_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **filters,
            "seed": order.seed,
            "stream": True,
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def _chunks(self, body: dict[str, Any]) -> Iterator[list[int]]:
        """The ids of every chunk of an answer."""
        headers = {"Content-Type": "application/json"}
        with self._request("POST", "/v1/completions", json.dumps(body), headers) as response:
            if response.status != http.client.OK:
                raise EnvironmentProblem(f"{self.url} refuses the request: {_message(response.read())}")
            for line in _lines(response, self.url):
                if not line.startswith(DATA):
                    continue
                data = line.removeprefix(DATA).strip()
                if data == DONE:
                    return
                yield _ids(data, self.url)
        raise ConnectionProblem(f"{self.url} ended its answer in the middle")

    def _get(self, path: str, seconds: float = SILENT_SECONDS) -> "_Response":
        return self._request("GET", path, seconds=seconds)

    def _request(
        self,
        method: str,
        path: str,
        body: str | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = SILENT_SECONDS,
    ) -> "_Response":
        place = urlsplit(self.url)
        kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        connection = kind(place.hostname or "", place.port, timeout=seconds)
        try:
            connection.request(method, place.path.rstrip("/") + path, body, headers or {})
            return _Response(connection, connection.getresponse())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectionProblem(f"{self.url} does not answer: {_why(error)}") from None


class _Response:
    """An answer that closes its connection."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse):
        self._connection, self._response, self.status = connection, response, response.status

    def __enter__(self) -> "_Response":
        return self

    def __exit__(self, *stop: object) -> None:
        self._connection.close()

    def read(self) -> bytes:
        """All of it."""
        return b"".join(_lines(self, "the server"))

    def readline(self) -> bytes:
        """The next line, empty at the end."""
        return self._response.readline()


def check_url(url: str) -> str:
    """The address without what follows the port and path. UsageProblem where it is none."""
    try:
        place = urlsplit(url)
        good = place.scheme in ("http", "https") and bool(place.hostname) and place.port != 0
    except ValueError:
        good = False
    if not good:
        raise UsageProblem(f"--url {url} is no address; give one such as http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed.

    >>> [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.5, 0.95)]
    [2.0, 4.0]
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _lines(response: _Response, url: str) -> Iterator[bytes]:
    while True:
        try:
            line = response.readline()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionProblem(f"{url} went away in the middle of an answer: {_why(error)}") from None
        if not line:
            return
        yield line


def _ids(data: bytes, url: str) -> list[int]:
    """The token ids of one chunk."""
    chunk = _json(data, url)
    if isinstance(chunk, dict) and "error" in chunk:
        raise EnvironmentProblem(f"{url} ends its answer: {_message(data)}")
    try:
        choices = chunk["choices"]
        ids = choices[0]["token_ids"] if choices else []
    except (LookupError, TypeError):
        raise EnvironmentProblem(
            f"{url} sends no token ids, without which tokens cannot be counted; it must know return_token_ids, as vLLM "
            "does since 0.10.2"
        ) from None
    return list(ids or [])


def _json(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise EnvironmentProblem(f"{url} sends what is no JSON: {data[:60]!r}") from None


def _message(data: bytes) -> str:
    """What a server's error says."""
    try:
        error = json.loads(data)
        error = error.get("error", error)
        text = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = data.decode(errors="replace")
    return " ".join(str(text).split())[:200] or "no reason given"


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
