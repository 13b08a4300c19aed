"""Requests to an OpenAI-compatible server that streams token ids, as vLLM does. Standard library only.

A streamed chunk may carry the tokens of several rounds, so tokens are counted by their ids, and the time between two
chunks is not the time of a token.
"""

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from speclab.core.sampling import Sampling
from speclab.extensions.servers import counters
from speclab.extensions.servers.connection import ConnectionProblem, Connections, message, parsed
from speclab.system.errors import EnvironmentProblem

HEALTH_SECONDS, PAGE_SECONDS = 5.0, 120.0  # for a page, from the request to its last byte
ANSWER_SECONDS, TOKEN_SECONDS = 300.0, 10.0  # for an answer, and for each of its tokens more
SETTLE_LOOKS, SETTLE_SECONDS = 100, 0.02  # looks at /metrics until it has counted a request, and the pause after each
DATA, DONE = b"data:", b"[DONE]"
ANY_ID = 2**31


class Order(NamedTuple):
    """What is asked of a server: so many new tokens after these. n_ids: of the target's vocabulary."""

    prompt: list[int]
    n_tokens: int
    sampling: Sampling
    seed: int = 0
    n_ids: int = ANY_ID


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


class Model(NamedTuple):
    """What a server offers. root: the folder or hub name that it was read from, None where that is not said."""

    name: str
    root: str | None = None


@dataclass(frozen=True)
class Client:
    """One server, by its address. model: its name for what it serves."""

    url: str
    model: str = ""
    _connections: Connections = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_connections", Connections(self.url))

    def ask(self, order: Order) -> Answer:
        """One streamed request. EnvironmentProblem where what comes back is no answer that can be timed."""
        begin = time.perf_counter()
        first = last = begin
        tokens: list[int] = []
        n_first = n_chunks = 0
        for chunk in self.chunks(order):
            if not chunk:
                continue
            last = time.perf_counter()
            if not n_chunks:
                first, n_first = last, len(chunk)
            n_chunks += 1
            tokens += chunk
            if len(tokens) > order.n_tokens:
                break
        if len(tokens) != order.n_tokens:
            more = "more than" if len(tokens) > order.n_tokens else f"{len(tokens)} of"
            raise ConnectionProblem(f"{self.url} sent {more} {order.n_tokens} tokens")
        if order.n_tokens > 1 and last <= first:
            raise EnvironmentProblem(
                f"{self.url} sent all {order.n_tokens} tokens at one moment, so that decoding cannot be timed; ask for "
                "more with --max-new-tokens, and have no proxy in between that collects chunks"
            )
        return Answer(tokens, n_first, n_chunks, first - begin, last - first)

    def abort(self) -> None:
        """End all requests that are under way in other threads."""
        self._connections.abort()

    def healthy(self) -> bool:
        """Whether the server answers that it is ready."""
        try:
            with self._connections.request("GET", "/health", seconds=HEALTH_SECONDS) as response:
                return response.status == http.client.OK
        except EnvironmentProblem:
            return False

    def metrics(self) -> str:
        """The /metrics page as it is now."""
        with self._connections.request("GET", "/metrics", seconds=PAGE_SECONDS) as response:
            return response.read().decode(errors="replace")

    def look(self) -> counters.Look:
        """The counters now."""
        return counters.read(self.metrics())

    def settled(self, before: counters.Look, n_tokens: int) -> counters.Look:
        """The counters after `n_tokens` more: the page may be a moment behind the stream.

        Two looks in a row must say the same. EnvironmentProblem where they do not come to that number.
        """
        now = self.look()
        for _ in range(SETTLE_LOOKS):
            last, now = now, self.look()
            if now == last and now.n_generated - before.n_generated >= n_tokens:
                break
            time.sleep(SETTLE_SECONDS)
        counted = now.n_generated - before.n_generated
        if counted < 0:
            raise EnvironmentProblem(
                f"{self.url} counts fewer tokens than before: it was started again, or several engines answer; "
                "give the address of one engine"
            )
        if counted > n_tokens:
            raise EnvironmentProblem(
                f"{self.url} counted {counted} tokens where {n_tokens} were asked for: somebody else asks it, too; "
                "stop that, or let this run start servers of its own"
            )
        if counted < n_tokens or now != last:
            raise EnvironmentProblem(
                f"{self.url} has counted {counted} of {n_tokens} tokens at its /metrics page after {SETTLE_LOOKS} "
                "looks: the page is too far behind, or of another server; give the address of the engine itself"
            )
        return now

    def served_model(self) -> Model:
        """The first model that the server offers."""
        with self._connections.request("GET", "/v1/models", seconds=PAGE_SECONDS) as response:
            answer = response.json()
        try:
            name, root = answer["data"][0]["id"], answer["data"][0].get("root")
        except (LookupError, TypeError, AttributeError):
            name = root = None
        if not isinstance(name, str):
            raise EnvironmentProblem(f"{self.url} names no model at /v1/models; give the address of a vLLM")
        return Model(name, root if isinstance(root, str) else None)

    def version(self) -> str | None:
        """Of the engine; None where it does not say."""
        with self._connections.request("GET", "/version", seconds=PAGE_SECONDS) as response:
            found = response.json() if response.status == http.client.OK else {}
        return str(found["version"])[:60] if isinstance(found, dict) and "version" in found else None

    def _body(self, order: Order) -> dict[str, Any]:
        """Every setting that a checkpoint's generation_config.json may set is said, so that none of it counts."""
        sampling = order.sampling
        return {
            "model": self.model,
            "prompt": order.prompt,
            "max_tokens": order.n_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "seed": order.seed,
            "stream": True,
            "ignore_eos": True,
            "return_token_ids": True,
        }

    def chunks(self, order: Order) -> Iterator[list[int]]:
        """The ids of every chunk of an answer, as they come."""
        seconds = ANSWER_SECONDS + TOKEN_SECONDS * order.n_tokens
        body = json.dumps(self._body(order))
        with self._connections.request("POST", "/v1/completions", body, seconds) as response:
            if response.status != http.client.OK:
                raise EnvironmentProblem(f"{self.url} refuses the request: {message(response.read())}")
            for line in response.lines():
                if not line.startswith(DATA):
                    continue
                data = line.removeprefix(DATA).strip()
                if data == DONE:
                    return
                yield _ids(data, self.url, order.n_ids)
            raise ConnectionProblem(f"{self.url} ended its answer in the middle")


def _ids(data: bytes, url: str, n_ids: int) -> list[int]:
    """The token ids of one chunk."""
    chunk = parsed(data, url)
    if isinstance(chunk, dict) and "error" in chunk:
        raise EnvironmentProblem(f"{url} ends its answer: {message(data)}")
    try:
        choices = chunk["choices"]
        ids = choices[0]["token_ids"] if choices else []
    except (LookupError, TypeError):
        ids = None
    if not isinstance(ids, list):
        raise EnvironmentProblem(
            f"{url} sends no token ids, without which tokens cannot be counted; it must know return_token_ids, as vLLM "
            "does since 0.10.2"
        )
    for one in ids:
        if type(one) is not int or not 0 <= one < n_ids:  # True is an int, too
            what = str(one)[:20] if type(one) is int else f"of type {type(one).__name__}"
            raise EnvironmentProblem(
                f"{url} sends a token id {what}, which the target does not have; serve the model that --target names"
            )
    return ids
