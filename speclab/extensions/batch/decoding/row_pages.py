"""Passes over several texts on the engine `c`: the tokens of all texts are one call of pass.c.

Each row of the batch has pages of its own, so a text grows without its neighbours. A pass takes the tokens that count
and no others: rows may have different numbers of them, and what would be padding is never computed.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from speclab.engines.c_pass import CModel
from speclab.extensions.batch.decoding.row_buffers import Outputs, Placed


class RowPages:
    """Keys and values of several texts. capacity: the most tokens that a text is meant to have."""

    def __init__(self, fast: CModel, n_rows: int, capacity: int):
        self.fast, self.capacity = fast, capacity
        self.rows = [fast.start() for _ in range(n_rows)]

    def prefill(self, row: int, prompt: Tensor, layers: Iterable[int]) -> Outputs:
        """Read a prompt, (1, n) ids, into new pages.  -> (1, 1, vocab) logits of the last one, outputs of these
        layers"""
        backend = self.rows[row] = self.fast.start(layers)
        return backend.prefill(prompt), backend.hidden

    def forward(self, ids: Tensor, placed: Placed, layers: Iterable[int]) -> Outputs:
        """Run one pass over (rows, m) tokens. Of padding the logits and states are zeros."""
        fast, starts, (n_rows, m) = self.fast, placed.starts, ids.shape
        live = [(row, i) for row, n in enumerate(placed.sizes) for i in range(n)]
        number = None if len(live) == n_rows * m else torch.tensor([row * m + i for row, i in live])

        def counted(part: Tensor) -> Tensor:
            """(rows, m, ...) -> (tokens that count, ...)"""
            part = part.flatten(0, 1)
            return part if number is None else part[number]

        chosen, mask = counted(ids), None if placed.reads is None else counted(placed.reads)
        places = [(row, starts[row], starts[row] + i) for row, i in live]
        # Text, position, row, and how many first rows are read: in a chain all up to the token's own.
        tokens = [(row, min(at, placed.last), at, at + 1 if mask is None else start) for row, start, at in places]
        token = torch.tensor(tokens, dtype=torch.int32)
        if placed.positions is not None:
            token[:, 1] = counted(placed.positions)
        for backend, start in zip(self.rows, starts, strict=True):
            backend.reserve(start + m)
        logits, hidden = fast.run(self.rows, token, chosen[None], mask=mask, wanted=range(len(live)), kept=layers)

        def by_row(found: Tensor) -> Tensor:
            """(1, tokens, width) -> (rows, m, width)"""
            if number is not None:
                found = found.new_zeros(1, n_rows * m, found.shape[-1]).index_copy_(1, number, found)
            return found[0].unflatten(0, (n_rows, m))

        return by_row(logits), {layer: by_row(states) for layer, states in hidden.items()}

    def move(self, starts: list[int], rows: Tensor) -> None:
        """Move keys and values of these tokens of each text's last pass, (texts, n), to its first places."""
        for backend, start, of_text in zip(self.rows, starts, rows, strict=True):
            backend.move(start, of_text)

    def fill(self, generator: torch.Generator) -> None:
        for backend in self.rows:
            backend.reserve(self.capacity)
            for page in backend.pages:
                page.normal_(generator=generator)
