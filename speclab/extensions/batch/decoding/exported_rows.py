"""The exported backend's passes over several texts: the kernels of RowsPass, written down once for each model."""

from collections.abc import Callable, Iterable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx
from transformers import PreTrainedModel

from speclab.extensions.batch.row_buffers import RowsPass
from speclab.models.backends import rewrites
from speclab.models.backends.eager import decoder_layers
from speclab.models.backends.exported import EXAMPLE_ROWS, TOTALS, WIDTHS, ExportedModel, export, functions

_TEXTS = torch.export.Dim("texts", min=2, max=EXAMPLE_ROWS - 1)
Kernels = Callable[..., tuple[Tensor, ...]]
# Of each model the pass that reads packed weights, and the one that reads the model's own.
EXPORTED: WeakKeyDictionary[ExportedModel, tuple[Kernels, Kernels]] = WeakKeyDictionary()


def over_rows(
    fast: ExportedModel,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor,
    places: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
) -> tuple[Tensor, ...]:
    """Run a pass over several texts, as RowsPass.forward does; it is exported when it is first needed.

    One text runs on the kernels of one text, a single token on those that are fastest for it: a batch of one costs what
    a loop over one text does. Its tokens stand at the last places of the views.
    """
    if ids.shape[0] == 1:
        return fast.forward(ids, positions, mask, keys, values)
    if fast not in EXPORTED:
        graph = export_rows(fast.model, fast.shapes, range(len(decoder_layers(fast.model))))
        rewrites.rotate_by_roll(graph)
        plain = rewrites.copied(graph)
        if fast.packed:
            rewrites.pack_products(graph)
        EXPORTED[fast] = functions(graph)[0], functions(plain)[0]
    run = EXPORTED[fast][ids.numel() <= fast.plain_up_to]
    return run(ids, positions, mask, places, *keys, *values)


def export_rows(model: PreTrainedModel, shapes: list, layers: Iterable[int]) -> fx.GraphModule:
    """The kernels of one pass over several texts, for any number of them, any width and any context."""
    rows, width, total = 3, 5, 7
    ids = torch.zeros(rows, width, dtype=torch.long, device=model.device)
    places = ids + torch.arange(width, device=model.device)
    mask = torch.zeros(rows, 1, width, total, dtype=model.dtype, device=model.device)
    keys, values = (
        [mask.new_zeros(rows, n_heads, EXAMPLE_ROWS, size)[:, :, :total] for n_heads, size in side]
        for side in zip(*shapes, strict=True)
    )
    of_ids, of_mask = {0: _TEXTS, 1: WIDTHS}, {0: _TEXTS, 2: WIDTHS, 3: TOTALS}
    of_buffers = [{0: _TEXTS, 2: TOTALS}] * len(shapes)
    dynamic = (of_ids, of_ids, of_mask, of_ids, of_buffers, of_buffers)
    return export(RowsPass(model, layers), (ids, places, mask, places.clone(), keys, values), dynamic)
