"""Several texts in one cache: a pass reads tokens of all of them, and each keeps a length of its own.

The invariant of speclab/models/cached.py holds for every row: the last committed token of a text is never in the cache.
Rows accept different numbers of tokens, so their lengths differ from the first round on. Nothing is moved for that: a
row's next tokens are written behind its own length, over what it rejected.

A row without a text takes part in every pass, with tokens that nobody reads.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from speclab.core.rounds import Decided, Draft
from speclab.core.sampling import to_device
from speclab.engines.cuda.buffers import kv_shapes
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.engines.eager import decoder_layers
from speclab.extensions.batch.decoding.row_buffers import (
    CompiledRowBuffers,
    GraphedRowBuffers,
    Programs,
    RowBuffers,
    RowsPass,
    over_rows,
)
from speclab.models.backends.compile_functions import BLOCK
from speclab.models.backends.exported import ExportedModel
from speclab.models.cached import CachedModel
from speclab.models.checking import checks
from speclab.models.family import check_family

NO_BATCH = "choose another --target or --draft"


class RowRules(Protocol):
    """The four decisions that keep the texts of a batch apart, where the caller makes them and not the lab.

    lengths: the number of tokens of each row that the cache holds before a pass, or before a round.
    """

    def positions(self, lengths: list[int], m: int) -> Tensor:
        """Return the positions of the m tokens of each text in a pass, (rows, m)."""

    def visible(self, lengths: list[int], m: int, total: int) -> Tensor:
        """Tell which of its row's `total` places each token of a pass reads, (rows, m, total) bool."""

    def rolled_back(self, lengths: list[int], cached: list[int], n_accepted: list[int], ended: list[bool]) -> list[int]:
        """Return the number of tokens of each row that stay after a round, of those that are `cached` in it."""

    def admit(self, rows: list[int | None], waiting: list[int]) -> tuple[list[int | None], list[int]]:
        """Give the rows without a text, None, the numbers of texts that wait.  -> the rows, those that still wait"""


class BatchedModel:
    """Runs passes of a causal language model over the rows of a batch.

    model: its weights, its vocabulary and its engine; its own cache is not used.
    rules: who decides where the tokens of chains stand and what they read; None: the lab's own code.
    programs: the compiled passes of this model and others; where it has some over so many texts, its passes are these.
    lengths: tokens in the cache, of each row; those of the last pass count, padding too, until it is cropped.
    n_passes: passes over the batch since `start`; a prompt's is not one of them.
    """

    def __init__(
        self, model: CachedModel, n_rows: int, rules: RowRules | None = None, programs: Programs | None = None
    ):
        self.model, self.n_rows, self.rules, self.programs = model, n_rows, rules, programs or {}
        self.lengths = [0] * n_rows
        self.n_passes = 0
        self._hidden: dict[int, Tensor] = {}
        self._prefilled: int | None = None  # the row whose prompt was the last pass
        self._starts: list[int] = []  # lengths before the last pass
        self._buffers: RowBuffers | None = None

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return self.model.device

    @property
    def vocab_size(self) -> int:
        """The number of ids that it may emit: 0 to vocab_size - 1."""
        return self.model.vocab_size

    def start(self, longest: int) -> None:
        """Drop all texts. longest: tokens that a row may hold at once, with those of a pass that are rejected."""
        self.lengths, self.n_passes = [0] * self.n_rows, 0
        if self._buffers is None or self._buffers.capacity < longest:
            self._buffers = None  # the old ones go before the new ones come
            self._buffers = new_buffers(self.model, self.n_rows, longest, self.programs)

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Announce the passes that will come and the length of their texts, after `start`; they are recorded now."""
        self._running().prepare(widths, longest)

    def fill(self, seed: int) -> None:
        """Write random numbers into all places, for passes whose time alone counts."""
        generator = torch.Generator(self.device).manual_seed(seed)
        with torch.inference_mode():
            for part in self._running().keys + self._running().values:
                part.normal_(generator=generator)

    def prefill(self, row: int, prompt: Tensor) -> Tensor:
        """Start a row's text with a prompt, (1, prompt) ids.  -> (1, 1, vocab) logits of the next token"""
        with torch.inference_mode():
            logits, hidden = self._running().prefill(row, prompt, self.model.hidden_layers)
        self.lengths = [prompt.shape[1] if i == row else length for i, length in enumerate(self.lengths)]
        self._hidden, self._prefilled, self._starts = hidden, row, []
        return logits[..., : self.vocab_size]

    def forward(self, tokens: Tensor, reads: Tensor | None = None) -> Tensor:
        """Append tokens to each row.  (rows, m) ids -> (rows, m, vocab) logits

        A row with fewer tokens of its own is padded; `crop` removes the padding with what is rejected.
        reads: (rows, m, m) bool, which of these tokens each one reads, itself included; its position is
        behind as many of them as it reads. None: all up to itself.
        """
        buffers, m = self._running(), tokens.shape[1]
        total = max(self.lengths) + m
        if total > buffers.capacity:
            raise RuntimeError(f"a text of {total} tokens in buffers of {buffers.capacity}")
        with torch.inference_mode():
            if max(self.lengths) + (width := buffers.width(m)) <= buffers.capacity:
                tokens = nn.functional.pad(tokens, (0, width - m))  # nobody reads it, and the next pass overwrites it
                reads = None if reads is None else nn.functional.pad(reads, (0, width - m, 0, width - m))
                total = max(self.lengths) + width
            starts = to_device(self.lengths, self.device)[:, None]  # (rows, 1)
            places = starts + torch.arange(tokens.shape[1], device=self.device)  # (rows, m)
            positions = places if reads is None else (starts + reads.sum(-1) - 1).clamp(min=0)  # padding reads none
            visible = _visible(places, buffers.n_read(total), reads)
            if reads is None and self.rules:
                asked = self.lengths, tokens.shape[1]
                positions = self.rules.positions(*asked).to(positions)
                visible = self.rules.visible(*asked, visible.shape[-1]).to(visible)
            if self.model.max_length is not None:  # padding may stand behind the model's last position
                positions = positions.clamp(max=self.model.max_length - 1)
            logits, *hidden = buffers.forward(tokens, positions, places, visible)
        self._hidden, self._prefilled = {layer: hidden[layer][:, :m] for layer in self.model.hidden_layers}, None
        self._starts = self.lengths
        self.lengths = [length + m for length in self.lengths]
        self.n_passes += 1
        return logits[:, :m, : self.vocab_size]

    def verify(self, last_tokens: Tensor, draft: Draft) -> Tensor:
        """One pass over the last committed token of each row, (rows,), and the drafted ones.

        -> (rows, n + 1, vocab) logits
        """
        return draft.verified_by(self, last_tokens)

    def commit(self, decided: Sequence[Decided], lengths: Sequence[int]) -> None:
        """After `verify`: keep what was accepted in each row, and roll back to `lengths` tokens of each."""
        if any(of_row.path is not None for of_row in decided):
            self.keep([of_row.path or [] for of_row in decided])
        self.crop(lengths)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep only these drafted tokens of each row, after a pass over the last committed token and the drafted ones.

        paths: their numbers for each row, in rising order. Keys, values and hidden states move into this order.
        """
        n = max(map(len, paths)) + 1
        # What lies behind a row's path stays where it is; nobody reads it.
        rows = to_device([i for path in paths for i in _padded([0, *(j + 1 for j in path)], n)], self.device)
        rows = rows.view(len(paths), n)
        with torch.inference_mode():
            starts = to_device(self._starts, self.device)[:, None]
            self._running().move(starts + rows, starts + torch.arange(n, device=self.device))
            row = torch.arange(len(paths), device=self.device)[:, None]
            self._hidden = {layer: states[row, rows] for layer, states in self._hidden.items()}
        self.lengths = [start + n for start in self._starts]

    def hidden(self, layers: Iterable[int], row: int = 0) -> Tensor:
        """The outputs of these layers side by side for one row, in the last pass or in that of the row's prompt.

        -> (1, m, layers * hidden). Raises RuntimeError where another row has read a prompt since then.
        """
        if self._prefilled not in (None, row):
            raise RuntimeError(f"the last pass was over the prompt of row {self._prefilled}, not of row {row}")
        start = 0 if self._prefilled is not None else row
        return torch.cat([self._hidden[layer][start : start + 1] for layer in layers], dim=-1)

    def crop(self, lengths: Sequence[int]) -> None:
        """Keep this many first tokens of each row's cache."""
        for row, (length, cached) in enumerate(zip(lengths, self.lengths, strict=True)):
            if length > cached:
                raise RuntimeError(f"cannot crop row {row} to {length} tokens: the cache holds {cached}")
        self.lengths = list(lengths)

    def _running(self) -> RowBuffers:
        if self._buffers is None:
            raise RuntimeError("call start() before any pass")
        return self._buffers


def new_buffers(model: CachedModel, n_rows: int, capacity: int, programs: Programs) -> RowBuffers:
    """Buffers for texts of up to `capacity` tokens, and the passes over them on this model's engine."""
    if isinstance(model.fast, GraphedModel):
        return GraphedRowBuffers(model.fast, n_rows, capacity)
    if not isinstance(model.fast, ExportedModel):
        whole = RowsPass(model.model, range(len(decoder_layers(model.model))))
        return RowBuffers(model.model, whole, kv_shapes(model.model), n_rows, capacity)
    fast = model.fast
    if own := {width: run for (n, width), run in programs.get(fast, {}).items() if n == n_rows}:
        return CompiledRowBuffers(fast, n_rows, capacity, own)
    return RowBuffers(fast.model, functools.partial(over_rows, fast), fast.shapes, n_rows, capacity)


def check_batch(target: CachedModel, n_texts: int = 2, width: int = 3, programs: Programs | None = None) -> None:
    """Prove that passes over several texts give the uncached logits of each.

    The texts have two lengths, and are longer than a window, where such a pass is quick, and than a block of compiled
    passes, where there are some. Two passes over `width` tokens of each are made, and tokens of the first are rejected,
    which surely differ from the right ones at their places; with one token, those of one more pass between them.

    Raises EnvironmentProblem where the logits differ, or where the layers do not all keep plain keys and values in
    windows of one size, if any; UsageProblem where prompt and output are not one text.
    """
    check_family(target.model, "a batch", NO_BATCH, crops=False)
    model, reason = target.model, "cannot decode in batches"
    checks.check_rows(model, reason, NO_BATCH)
    text, n_last = checks.text_longer_than_windows(model, BLOCK + width if programs else 0), width + 1
    # Each one has other tokens in every place.
    texts = [text.roll(-2 * row)[:, : text.shape[1] - (2, 5)[row % 2]] for row in range(n_texts)]

    def logits() -> Tensor:
        batch = BatchedModel(target, n_texts, programs=programs)
        batch.start(text.shape[1] + n_last)
        lengths = [of_row.shape[1] - n_last for of_row in texts]
        for row, of_row in enumerate(texts):
            batch.prefill(row, of_row[:, : lengths[row]])
        tokens = torch.cat([of_row[:, -n_last:] for of_row in texts])
        wrong = (tokens + 1) % batch.vocab_size
        first = batch.forward(torch.cat([tokens[:, :1], wrong[:, 1:width]], dim=1))[:, :1]
        if width == 1:
            batch.forward(wrong[:, 1:])
        batch.crop([length + 1 for length in lengths])
        return torch.cat([first, batch.forward(tokens[:, 1:])], dim=1).view(1, -1, batch.vocab_size)

    checks.check_passes(model, reason, logits, texts, n_last, NO_BATCH)


def _visible(places: Tensor, total: int, reads: Tensor | None) -> Tensor:
    """(rows, m) places of a pass's tokens, the first one right behind the row's text -> (rows, m, total) bool"""
    columns = torch.arange(total, device=places.device)
    if reads is None:
        return columns <= places[..., None]
    among = columns - places[:, :1]  # (rows, total) the number of the token that stands there, below 0 the text
    of_pass = reads.gather(-1, among.clamp(0, reads.shape[-1] - 1)[:, None].expand(-1, reads.shape[1], -1))
    return (among < 0)[:, None] | (of_pass & (among < reads.shape[-1])[:, None])


def _padded(path: list[int], n: int) -> list[int]:
    """n numbers: those of the path, then each its own place."""
    return path + list(range(len(path), n))
