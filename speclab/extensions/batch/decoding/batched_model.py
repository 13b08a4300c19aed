"""Several texts in one cache: a pass reads tokens of all of them, and each keeps a length of its own.

The invariant of speclab/models/cached.py holds for every row: the last committed token of a text is never in the cache.
Rows accept different numbers of tokens, so their lengths differ. Nothing is moved for that: a row's next tokens are
written behind its own length, over what it rejected. Rows may have different numbers of tokens in a pass, one without a
text has none; on all engines but `c` the others are padding that nobody reads.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from speclab.core.rounds import Draft
from speclab.engines.c_pass import CModel
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.extensions.batch.decoding.row_buffers import GraphedRowBuffers, RowBuffers, RowPages
from speclab.models import checks
from speclab.models.cached import CachedModel
from speclab.models.family import check_family

NO_BATCH = "choose another --target or --draft"
WIDTH = 3  # tokens of each text in a pass of the check


class BatchedModel:
    """Runs passes of a causal language model over the rows of a batch.

    model: its weights, its vocabulary and its engine; its own cache is not used.
    lengths: tokens in the cache, of each row; those of the last pass count until it is cropped. 0: there is no text.
    """

    def __init__(self, model: CachedModel, n_rows: int):
        self.model, self.n_rows = model, n_rows
        self.device, self.vocab_size = model.device, model.vocab_size
        self.lengths = [0] * n_rows
        self._hidden: dict[int, Tensor] = {}
        self._prefilled: int | None = None  # the row whose prompt was the last pass
        self._buffers: Any = None  # RowBuffers or RowPages
        self._last = (model.room.text or sys.maxsize) - 1  # the highest position

    def start(self, longest: int, widths: Iterable[int] = ()) -> None:
        """Drop all texts. longest: tokens that a row may hold at once, with those of a pass that are rejected. widths:
        of passes that will come; where passes are recorded, they are recorded now."""
        self.lengths = [0] * self.n_rows
        if self._buffers is None or self._buffers.capacity < longest:
            self._buffers = None  # the old ones go before the new ones come
            kinds: dict[Any, Any] = {CModel: RowPages, GraphedModel: GraphedRowBuffers}
            kind, run = kinds.get(type(self.model.fast), RowBuffers), self.model.fast or self.model.model
            self._buffers = kind(run, self.n_rows, longest, self._last)
        if isinstance(self._buffers, GraphedRowBuffers):
            self._buffers.prepare(widths, longest)

    def fill(self, seed: int) -> None:
        """Write random numbers into all places, for passes whose time alone counts."""
        generator = torch.Generator(self.device).manual_seed(seed)
        with torch.inference_mode():
            self._buffers.fill(generator)

    def prefill(self, row: int, prompt: Tensor) -> Tensor:
        """Start a row's text with a prompt, (1, prompt) ids.  -> (1, 1, vocab) logits of the next token"""
        with torch.inference_mode():
            logits, hidden = self._buffers.prefill(row, prompt, self.model.hidden_layers)
        self.lengths = [prompt.shape[1] if i == row else length for i, length in enumerate(self.lengths)]
        self._hidden, self._prefilled = hidden, row
        return logits[..., : self.vocab_size]

    def forward(self, tokens: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """Append tokens to each row that has a text.  (rows, m) ids -> (rows, m, vocab) logits

        sizes: so many first tokens of each row count; what follows is padding, whose logits mean nothing. None: all.
        """
        (n_rows, m), starts, capacity = tokens.shape, self.lengths, self._buffers.capacity
        counted = [n if start else 0 for n, start in zip(sizes or [m] * n_rows, starts, strict=True)]
        if (total := max(starts) + m) > capacity:
            raise RuntimeError(f"a text of {total} tokens in buffers of {capacity}")
        with torch.inference_mode():
            logits, self._hidden = self._buffers.forward(tokens, starts, counted, self.model.hidden_layers)
        self._prefilled = None
        self.lengths = [start + n for start, n in zip(starts, counted, strict=True)]
        return logits[..., : self.vocab_size]

    def verify(self, last_tokens: Tensor, draft: Draft) -> Tensor:
        """Pass the last committed token of each row, (rows,), and the drafted ones.  -> (rows, n + 1, vocab) logits"""
        is_cpu = self.device.type == "cpu"  # to ask a GPU for the sizes is to wait for it
        sizes = [n + 1 for n in draft.size.tolist()] if is_cpu else None
        return self.forward(torch.cat([last_tokens[:, None], draft.tokens], dim=1), sizes)

    def hidden(self, layers: Iterable[int], row: int = 0) -> Tensor:
        """The outputs of these layers side by side for one row, in the last pass or in that of the row's prompt.
        -> (1, m, layers * hidden). Raises RuntimeError where another row has read a prompt since then."""
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


def check_batch(target: CachedModel) -> None:
    """Prove that passes over several texts give the uncached logits of each.

    Two texts have two lengths, longer than a window, where such a pass is quick, and than a page of the engine `c`. Of
    the first of two passes over WIDTH tokens of each, tokens are rejected that differ from the right ones. Raises
    EnvironmentProblem where the logits differ, or not all layers keep plain keys and values in windows of one size, if
    any; UsageProblem where prompt and output are not one text.
    """
    check_family(target.model, "a batch", NO_BATCH, crops=False)
    model, reason = target.model, "cannot decode in batches"
    page = target.fast.page if isinstance(target.fast, CModel) else 0
    text, n_last = checks.text_for_rows(model, reason, page, NO_BATCH), WIDTH + 1
    # Each one has other tokens in every place.
    texts = [text.roll(-2 * row)[:, : text.shape[1] - n] for row, n in enumerate((2, 5))]

    def logits() -> Tensor:
        batch = BatchedModel(target, len(texts))
        batch.start(text.shape[1] + n_last)
        lengths = [of_row.shape[1] - n_last for of_row in texts]
        for row, of_row in enumerate(texts):
            batch.prefill(row, of_row[:, : lengths[row]])
        tokens = torch.cat([of_row[:, -n_last:] for of_row in texts])
        wrong = (tokens + 1) % batch.vocab_size
        first = batch.forward(torch.cat([tokens[:, :1], wrong[:, 1:WIDTH]], dim=1))[:, :1]
        batch.crop([length + 1 for length in lengths])
        return torch.cat([first, batch.forward(tokens[:, 1:])], dim=1).view(1, -1, batch.vocab_size)

    checks.check_passes(model, reason, logits, texts, n_last, NO_BATCH)
