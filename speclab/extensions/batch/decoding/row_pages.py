"""Passes over several texts on the engine `c`: the tokens of all texts are one call of pass.c.

Each row of the batch has pages of its own, so a text grows without its neighbours. A pass takes the tokens that count
and no others: rows may have different numbers of them, and what would be padding is never computed.
"""

import ctypes
from collections.abc import Iterable

import torch
from torch import Tensor

from speclab.engines.c_pass import CModel, Pass
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
        place_of = [starts[row] + i for row, i in live]
        arrays = [row for row, _ in live], place_of, [place + 1 for place in place_of]  # a chain reads all up to itself
        text, place, whole = torch.tensor(arrays, dtype=torch.int32)
        number = None if len(live) == n_rows * m else torch.tensor([row * m + i for row, i in live])

        def counted(part: Tensor) -> Tensor:
            """(rows, m, ...) -> (tokens that count, ...)"""
            part = part.flatten(0, 1)
            return part.contiguous() if number is None else part[number]

        tokens, position, mask = counted(ids), place.clamp(max=placed.last), None
        if placed.positions is not None:
            position = counted(placed.positions).int()
        if placed.reads is not None:
            before = [starts[row] for row, _ in live]
            whole, mask = torch.tensor(before, dtype=torch.int32), counted(placed.reads)
        for backend, start in zip(self.rows, starts, strict=True):
            backend.text.reserve(start + m)
        pages = (ctypes.c_void_p * n_rows)(*(ctypes.addressof(one.text.addresses) for one in self.rows))
        fast.reach(int(position.max()) + 1)
        given = Pass(
            first=0,
            end=len(fast.layers),
            ids=tokens.data_ptr(),
            text=text.data_ptr(),
            position=position.data_ptr(),
            row=place.data_ptr(),
            whole=whole.data_ptr(),
            mask=None if mask is None else mask.data_ptr(),
            masked=0 if mask is None else mask.shape[-1],
            pages=ctypes.addressof(pages),
            wanted=fast.tables(len(live))[1],
        )
        hidden = {layer: torch.empty(1, len(live), fast.hidden) for layer in layers}
        logits = fast.run(given, len(live), len(live), hidden)

        def by_row(found: Tensor) -> Tensor:
            """(1, tokens, width) -> (rows, m, width)"""
            if number is not None:
                found = found.new_zeros(1, n_rows * m, found.shape[-1]).index_copy_(1, number, found)
            return found[0].unflatten(0, (n_rows, m))

        return by_row(logits), {layer: by_row(states) for layer, states in hidden.items()}

    def move(self, starts: list[int], rows: Tensor) -> None:
        """Move keys and values of these tokens of each text's last pass, (texts, n), to its first places."""
        for backend, start, of_text in zip(self.rows, starts, rows.tolist(), strict=True):
            for to, row in enumerate(of_text):
                if row != to:
                    backend.text.move([start + row], start + to)

    def fill(self, generator: torch.Generator) -> None:
        for backend in self.rows:
            backend.text.reserve(self.capacity)
            for page in backend.text.pages:
                page.normal_(generator=generator)
