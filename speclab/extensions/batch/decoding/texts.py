"""The texts of a batch: which row decodes which of them, and how far each one is.

A row takes a text, decodes it to its own end, and takes the next one that waits. Every text has its own budget, its own
end tokens and its own random numbers, so what comes out of it does not depend on its neighbours.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from speclab.core.rounds import DecodeSettings, Round
from speclab.core.sampling import Sampling, uniforms
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.models.cached import check_prompt
from speclab.system.errors import UsageProblem

Clock = Callable[[], float]


class Request(NamedTuple):
    """A text to decode: its prompt, (1, prompt length) ids, its settings, and when it comes, in seconds."""

    prompt: Tensor
    settings: DecodeSettings
    arrival: float = 0.0


class Row:
    """One place of a batch, and the text that it decodes.

    number: of the text among the requests. n_new: ids that were generated of it. finish: why it ended, None before.
    """

    def __init__(self, place: int, number: int, request: Request, device: torch.device):
        self.place, self.number = place, number
        self.prompt, self.settings, _ = request
        self.n_new = 0
        self.finish: str | None = None
        self.generator = self.settings.generator(device)

    @property
    def n_left(self) -> int:
        return self.settings.max_new_tokens - self.n_new

    def uniforms(self, n: int) -> Tensor:
        return uniforms((n,), self.generator, self.generator.device)

    def commit(self, tokens: list[int], n_drafted: int = 0, n_accepted: int = 0, n_rejected: int = 0) -> Round:
        prefill = self.n_new == 0
        self.n_new += len(tokens)
        round_ = Round.committing(tokens, self.n_new, self.settings, n_drafted, n_accepted, n_rejected, prefill=prefill)
        self.finish = round_.finish
        return round_


class Rows:
    """All rows of a batch. `requests` are taken in their order, each when it has come.

    widest: tokens of a text that one pass may take. clock: the seconds in which the batch has worked. Raises
    UsageProblem for a prompt that does not fit, or for requests that are not sampled alike: one rule judges a whole
    batch.
    """

    def __init__(self, target: BatchedModel, requests: Sequence[Request], widest: int, clock: Clock = lambda: 0.0):
        self.device, self.n_rows = target.device, target.n_rows
        for prompt, settings, _ in requests:
            check_prompt(target.model, prompt, settings.max_new_tokens)
        samplings = {request.settings.sampling for request in requests}
        if len(samplings) > 1:
            raise UsageProblem("a batch is sampled in one way; give requests with other settings to another batch")
        self.sampling = next(iter(samplings), Sampling())
        texts = (request.prompt.shape[1] + request.settings.max_new_tokens for request in requests)
        self.longest = max(texts, default=0) + widest
        self._requests, self._clock, self._idle = requests, clock, 0.0
        self._waiting = [i for i, request in enumerate(requests) if request.settings.max_new_tokens]
        self._rows: list[Row | None] = [None] * self.n_rows
        target.start(self.longest)

    def admitted(self) -> Iterator[Row]:
        """Put the next texts into rows that have none, the first row first. A row whose text ends with its first token
        takes another one. Where no row has a text, the time until the next one comes has passed."""
        while self._waiting and None in (rows := self.by_place):
            wait = self._requests[self._waiting[0]].arrival - self._clock() - self._idle
            if wait > 0 and self.busy:
                return
            self._idle += max(0.0, wait)
            place, number = rows.index(None), self._waiting.pop(0)
            row = self._rows[place] = Row(place, number, self._requests[number], self.device)
            yield row

    @property
    def by_place(self) -> list[Row | None]:
        """The row at each place, None where no text is being decoded."""
        return [None if row is None or row.finish else row for row in self._rows]

    @property
    def busy(self) -> list[Row]:
        return [row for row in self.by_place if row]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens that the cache shall hold for each place: all of the text but the last; 0 without a
        text."""
        return [row.prompt.shape[1] + row.n_new - 1 if row else 0 for row in self.by_place]

    def uniforms(self, n: int) -> Tensor:
        """Draw (rows, n) random numbers, of each text its own; zeros where there is no text."""
        drawn = {row.place: row.uniforms(n) for row in self.busy}
        none = torch.zeros_like(next(iter(drawn.values())))
        return torch.stack([drawn.get(place, none) for place in range(self.n_rows)])
