"""A batch at work on its requests, pass by pass, with the seconds that every pass took."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from speclab.core.counts import Counts
from speclab.core.rounds import Round

Rounds = Iterator[tuple[int, Round]]  # (number of the request, round), as the loops of loops.py yield


class PassMade(NamedTuple):
    """A pass over the batch: the tokens that each text committed, by request, and the seconds of the whole round."""

    tokens: dict[int, int]
    seconds: float

    @property
    def n_busy(self) -> int:
        return len(self.tokens)

    @property
    def n_tokens(self) -> int:
        return sum(self.tokens.values())


class Part(NamedTuple):
    """The tokens and seconds that one text has of the passes over a batch."""

    n_tokens: int
    seconds: float


@dataclass
class Text:
    """The text and times of one request. Times are seconds of this decoding alone, from its start."""

    tokens: list[int]
    admitted: float  # when its prompt's own pass began
    prefill: float = 0.0  # seconds of that pass
    first: float = 0.0  # when its first token was ready
    last: float = 0.0  # when its last token was ready

    @property
    def latency(self) -> float:
        return self.last - self.admitted

    @property
    def between_tokens(self) -> float | None:
        """The mean seconds from one token to the next; None with one token."""
        return (self.last - self.first) / (len(self.tokens) - 1) if len(self.tokens) > 1 else None


class BatchDecoding:
    """Requests that are decoded side by side. `advance` does the next prompt's pass or the next round of all rows.

    texts: by the number of the request. passes: rounds of all rows, in order. seconds: of everything so far.
    """

    def __init__(self, of_batch: Rounds, n_requests: int):
        self.texts: dict[int, Text] = {}
        self.rounds: dict[int, list[Round]] = {}
        self.passes: list[PassMade] = []
        self.counts = Counts()
        self.seconds = 0.0
        self.n_tokens = 0  # of all texts, those of prompts' own passes included
        self.n_left = n_requests  # texts that have not ended
        self.n_requests = n_requests
        self._rounds, self._n_busy = of_batch, 0

    @property
    def done(self) -> bool:
        return self.n_left == 0

    @property
    def progress(self) -> float:
        return self.n_tokens / self.n_requests

    def advance(self) -> None:
        start = time.perf_counter()
        number, round_ = next(self._rounds)  # ends with tokens on the host: the device has nothing left to do
        if round_.prefill:
            seconds = time.perf_counter() - start
            self.texts[number] = Text([], self.seconds, seconds)
            self._n_busy += 1
            self._book([(number, round_)], seconds)
            return
        of_pass = [(number, round_), *(next(self._rounds) for _ in range(self._n_busy - 1))]
        seconds = time.perf_counter() - start
        self.passes.append(PassMade({of_text: len(made.tokens) for of_text, made in of_pass}, seconds))
        self._book(of_pass, seconds)

    def _book(self, of_pass: list[tuple[int, Round]], seconds: float) -> None:
        self.seconds += seconds
        for number, round_ in of_pass:
            self.counts.add(round_)
            self.rounds.setdefault(number, []).append(round_)
            self.n_tokens += len(round_.tokens)
            text = self.texts[number]
            text.first = self.seconds if round_.prefill else text.first
            text.last = self.seconds
            text.tokens += round_.tokens
            if round_.finish:
                self._n_busy, self.n_left = self._n_busy - 1, self.n_left - 1
        if self.done:
            self._rounds = iter(())  # frees the caches

    def full(self, n_rows: int) -> list[PassMade]:
        """The passes in which all rows had a text. A batch makes such passes as long as requests wait."""
        return [made for made in self.passes if made.n_busy == n_rows]

    def by_request(self, n_rows: int) -> dict[int, Part]:
        """The part of each text in the passes in which all rows had a text, by the number of the request.

        Rows share a pass, so its seconds are shared, too: in equal parts, however many tokens each text got out of it.
        A pass takes as long whichever texts are in it; texts differ in how many passes they need. So the part says what
        a text costs that needs as many passes as this one.
        """
        parts: dict[int, Part] = {}
        for made in self.full(n_rows):
            for number, n_tokens in made.tokens.items():
                before = parts.get(number, Part(0, 0.0))
                parts[number] = Part(before.n_tokens + n_tokens, before.seconds + made.seconds / made.n_busy)
        return parts

    @property
    def ended(self) -> set[int]:
        return {number for number, rounds in self.rounds.items() if rounds[-1].finish}

    @property
    def latency(self) -> float:
        return statistics.median(text.latency for text in self.texts.values())

    @property
    def between_tokens(self) -> float | None:
        """The median, over texts, of the seconds from one token to the next; None where they have one token."""
        waits = [wait for text in self.texts.values() if (wait := text.between_tokens) is not None]
        return statistics.median(waits) if waits else None
