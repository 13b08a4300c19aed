"""Reads one streamed answer of a server that nobody vouches for, part by part, however its bytes are cut.

Tokens arrive where their count grows, whatever carries it: text, ids, a usage in the middle, or the chunk that says why
the answer ends, which is the last token's. A usage behind the end counts the tokens and says nothing of their times.
"""

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from speclab.system.errors import EnvironmentProblem

LINE_BYTES, MOST_TOKENS = 2**20, 2**20
DATA, DONE = b"data:", b"[DONE]"
HEAD_BYTES = 200  # that are kept of an answer that has no events
UNSEEN = 0.1  # of the tokens: more of them that were not seen to arrive are many
EARLY = 0.2  # of an answer's time: in more of it before the first token that was seen, others may have been made


class Answer(NamedTuple):
    """The text that a server sent, and its times by the client's clock."""

    text: str
    n_tokens: int  # as the server counts them; where it does not, the events with text
    n_first: int  # those of the first arrival: 1 where the server sends neither ids nor a usage with it
    first_seconds: float  # from the request to the first arrival
    decode_seconds: float  # from there to the last one
    whole_seconds: float  # from the request until the server said that the answer is whole
    ids: list[int]  # empty where none were asked for
    timings: dict[str, Any]  # llama-server's own counts of this request; empty elsewhere
    n_prompt: int = 0  # tokens of the prompt, as the server counts them; 0 where it does not say it
    n_cached: int = 0  # those that it took from its prefix cache
    n_seen: int = 0  # tokens that were seen to arrive; the events with text where nothing counts tokens on the way
    n_events: int = 0  # events with text or ids
    has_count: bool = True  # whether the server counts its tokens

    @property
    def seconds_per_token(self) -> float:
        """Return the seconds of a token after the first chunk; 0 where nothing came after it."""
        return self.decode_seconds / max(1, self.n_tokens - self.n_first)

    @property
    def hides_tokens(self) -> bool:
        """Tell whether many tokens were not seen to arrive, and may have been made before the first one that was."""
        many = self.n_tokens - self.n_seen > UNSEEN * self.n_tokens
        return many and self.first_seconds > EARLY * (self.first_seconds + self.decode_seconds)


class Stream:
    """The events of one answer. n_tokens: the most that it may have. clock: seconds, read at the
    beginning, at each event and at the mark of the end."""

    def __init__(self, url: str, n_tokens: int, clock: Callable[[], float] = time.perf_counter):
        self._url, self._most, self._clock = url, n_tokens, clock
        self._begin = self._first = self._last = self._end = clock()
        self._finish: float | None = None  # when the server has said why the answer ends
        self._growths: list[tuple[float, int]] = []  # when a usage before that end has grown, and to what
        self._pieces: list[str] = []
        self._ids: list[int] = []
        self._n_counted, self._n_first, self._n_prompt, self._n_cached = 0, 1, 0, 0
        self._timings: dict[str, Any] = {}
        self._rest = self._head = b""
        self.ended = False  # the server has said that the answer is whole

    def take(self, part: bytes) -> None:
        """Read some bytes. EnvironmentProblem where they are no events of an answer, or too many."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if max(map(len, (*lines, self._rest))) > LINE_BYTES:
            raise EnvironmentProblem(f"{self._url} sends a line of more than {LINE_BYTES // 2**20} MiB")
        for line in lines:
            self._line(line)

    def close(self) -> None:
        """Read what stands behind the last line end: nothing more will come. EnvironmentProblem where there was no
        event."""
        rest, self._rest = self._rest, b""
        self._line(rest)
        if not self.ended and self._finish is not None:
            self.ended, self._end = True, self._finish
        if not self.ended and not self._pieces:
            self._check_events()

    def _check_events(self) -> None:
        """Raise EnvironmentProblem where what came is a page, or an answer that was not streamed."""
        head = self._head.lstrip()
        if head.startswith(b"<"):
            raise EnvironmentProblem(f"{self._url} sends a page of HTML: no server of completions answers there")
        if head.startswith(b"{"):
            raise EnvironmentProblem(
                f"{self._url} sends its answer as a whole although a stream was asked for, so that decoding cannot be "
                "timed; give the address of a server that streams"
            )

    def answer(self) -> Answer:
        """Return the answer as a whole. EnvironmentProblem where it is none."""
        n_seen, n_first, first, last = len(self._ids) or len(self._pieces), self._n_first, self._first, self._last
        if len(self._growths) > 1:  # with one alone, the usage stands at the end
            n_seen = max(len(self._ids), self._growths[-1][1])
            n_first = max(n_first, self._growths[0][1]) if self._growths[0][0] <= first else n_first
            first, last = min(first, self._growths[0][0]), max(last, self._growths[-1][0])
        n_tokens = max(self._n_counted, len(self._ids)) or len(self._pieces)
        if n_tokens > n_seen:
            last = max(last, self._finish or 0.0)
        if not self._pieces or not 0 < n_tokens <= self._most:
            raise EnvironmentProblem(f"{self._url} sent {n_tokens} tokens where 1 to {self._most} were asked for")
        if n_tokens > 1 and last <= first:
            raise EnvironmentProblem(
                f"{self._url} sent all {n_tokens} tokens at one moment, so that decoding cannot be timed; have no "
                "proxy in between that collects chunks"
            )
        return Answer(
            text="".join(self._pieces),
            n_tokens=n_tokens,
            n_first=n_first,
            first_seconds=first - self._begin,
            decode_seconds=last - first,
            whole_seconds=self._end - self._begin,
            ids=self._ids,
            timings=self._timings,
            n_prompt=self._n_prompt,
            n_cached=min(self._n_cached, self._n_prompt),
            n_seen=n_seen,
            n_events=len(self._pieces),
            has_count=bool(self._n_counted or self._ids),
        )

    def _line(self, line: bytes) -> None:
        if self.ended or not line.startswith(DATA):
            self._head += line[: HEAD_BYTES - len(self._head)]
            return
        data = line[len(DATA) :].strip()
        if data == DONE:
            self.ended, self._end = True, self._clock()
            return
        chunk = parsed(data, self._url)
        if not isinstance(chunk, dict):
            raise EnvironmentProblem(f"{self._url} sends an event that is no object: {data[:60]!r}")
        if "error" in chunk:
            raise EnvironmentProblem(f"{self._url} ends its answer: {message(data)}")
        self._event(chunk)

    def _event(self, chunk: dict[str, Any]) -> None:
        now = self._clock()
        text, new_ids, finished = _content(chunk)
        if text or new_ids:
            if not self._pieces:
                self._first, self._n_first = now, max(1, len(new_ids))
            self._last = now
            self._pieces.append(text)
            self._ids += new_ids
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            n_counted = _count(usage, "completion_tokens") or self._n_counted
            if n_counted > self._n_counted and self._finish is None:
                self._growths.append((now, n_counted))
            self._n_counted = n_counted
            self._n_prompt = _count(usage, "prompt_tokens") or self._n_prompt
            details = usage.get("prompt_tokens_details")
            self._n_cached = _count(details, "cached_tokens") if isinstance(details, dict) else self._n_cached
        if finished:
            self._finish = now
        if isinstance(chunk.get("timings"), dict):
            self._timings = chunk["timings"]
        if max(len(self._pieces), len(self._ids)) > self._most + 1:
            raise EnvironmentProblem(f"{self._url} sends more than the {self._most} tokens that were asked for")


def _content(chunk: dict[str, Any]) -> tuple[str, list[int], bool]:
    """Return the text of an event, thoughts included, its token ids, and whether it says why the answer ends."""
    try:
        choice = chunk["choices"][0]
        said = choice.get("delta", choice)
        text = "".join(said.get(name) or "" for name in ("reasoning_content", "reasoning", "content", "text"))
        ids, finished = choice.get("token_ids") or [], bool(choice.get("finish_reason"))
    except (LookupError, TypeError, AttributeError):
        return "", [], False
    if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**31 for one in ids):
        raise EnvironmentProblem("the server sends token ids that are no ids")
    return text, ids, finished


def _count(said: dict[str, Any], name: str) -> int:
    """Return how many tokens the server says; 0 where it does not say it."""
    count = said.get(name)
    return count if type(count) is int and 0 < count < MOST_TOKENS else 0


def parsed(data: bytes, url: str) -> Any:
    """Return JSON. EnvironmentProblem where the bytes are none."""
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
