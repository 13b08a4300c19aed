"""A batch at work on its requests, pass by pass, with the seconds that every pass took."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.extensions.batch.decoding.texts import Clock

Rounds = Iterator[tuple[int, Round]]  # (number of the request, round), as the loops of loops.py yield


class PassMade(NamedTuple):
    """A pass over the batch: the tokens that each text committed, by request, and the seconds of the whole round."""

    tokens: dict[int, int]
    seconds: float


class Part(NamedTuple):
    """The tokens and seconds that one text has of the passes over a batch."""

    n_tokens: int
    seconds: float


class BatchDecoding:
    """Requests that are decoded side by side. `advance` does the next prompt's pass or the next round of all rows.

    rounds, prefills: by the number of the request, the rounds of each text, and the seconds of its prompt's own pass.
    passes: rounds of all rows, in order. n_tokens: of all texts, those of prompts' own passes included. clock: the
    seconds of all of its passes so far.
    """

    def __init__(self, of_batch: Callable[[Clock], Rounds], n_requests: int):
        self.rounds: dict[int, list[Round]] = {}
        self.prefills: dict[int, float] = {}
        self.passes: list[PassMade] = []
        self.counts = Counts()
        self.n_tokens, self.clock = 0, 0.0
        self.n_requests = self.n_left = n_requests  # n_left: texts that have not ended
        self._rounds, self._n_busy = of_batch(lambda: self.clock), 0

    @property
    def done(self) -> bool:
        return self.n_left == 0

    @property
    def progress(self) -> float:
        return self.n_tokens / self.n_requests

    def advance(self) -> None:
        start = time.perf_counter()
        number, round_ = next(self._rounds)  # ends with tokens on the host: the device has nothing left to do
        of_pass = [(number, round_)]
        if not round_.prefill:
            of_pass += [next(self._rounds) for _ in range(self._n_busy - 1)]
        seconds = time.perf_counter() - start
        self.clock += seconds
        if round_.prefill:
            self.prefills[number] = seconds
            self._n_busy += 1
        else:
            self.passes.append(PassMade({of_text: len(made.tokens) for of_text, made in of_pass}, seconds))
        for of_text, made in of_pass:
            self.counts.add(made)
            self.rounds.setdefault(of_text, []).append(made)
            self.n_tokens += len(made.tokens)
            if made.finish:
                self._n_busy, self.n_left = self._n_busy - 1, self.n_left - 1
        if self.done:
            self._rounds = iter(())  # frees the caches

    def full(self, n_rows: int) -> list[PassMade]:
        """The passes in which all rows had a text. A batch makes such passes as long as requests wait."""
        return [made for made in self.passes if len(made.tokens) == n_rows]

    def by_request(self, n_rows: int, shared: bool = True) -> dict[int, Part]:
        """The part of each text in the passes in which all rows had a text, by the number of the request.

        Rows share a pass, so its seconds are shared, too: in equal parts, however many tokens each text got out of it.
        A pass takes as long whichever texts are in it; texts differ in how many passes they need. So the part says what
        a text costs that needs as many passes as this one. Not shared: all passes, each with its whole seconds, as the
        user of the text waits for them.
        """
        parts: dict[int, Part] = {}
        for made in self.full(n_rows) if shared else self.passes:
            for number, n_tokens in made.tokens.items():
                before, seconds = parts.get(number, Part(0, 0.0)), made.seconds / n_rows if shared else made.seconds
                parts[number] = Part(before.n_tokens + n_tokens, before.seconds + seconds)
        return parts

    @property
    def ended(self) -> set[int]:
        return {number for number, rounds in self.rounds.items() if rounds[-1].finish}
