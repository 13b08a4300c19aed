"""The exported backend: the model's own forward pass as one straight line of kernels over buffers written in place.

A small model spends its time between the kernels. `torch.export` runs the Hugging Face forward once with symbolic
shapes and writes down the kernels it called; the lab replays that list, without the modules around it, over key-value
buffers that are allocated once. Rewrites follow (rewrites.py).

A model that cannot be exported raises `NoFastBackend` and keeps the eager backend. Whether the logits are right
is checked by speclab/models/engine_choice.py.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from transformers import Cache, PreTrainedModel

from speclab.models.backends import rewrites
from speclab.models.backends.buffers import (
    BufferedBackend,
    Buffers,
    WrittenInPlace,
    causal_mask,
    kv_shapes,
    padded_mask,
)
from speclab.models.backends.compiled import CutPass, Program, cut, name_of_pass
from speclab.models.backends.eager import decoder_layers, layer_outputs
from speclab.models.backends.exporting import export
from speclab.models.backends.windows import masks, window_of

# Sizes for the export alone: a view that fills its buffer would have other strides, so none does. Nothing in the list
# of kernels depends on the bounds, and no guard checks them later.
EXAMPLE_ROWS = 64
WIDTHS = torch.export.Dim("width", min=2, max=EXAMPLE_ROWS - 1)
TOTALS = torch.export.Dim("total", min=2, max=EXAMPLE_ROWS - 1)


class _Pass(nn.Module):
    """One forward pass with everything it depends on as an argument: what gets exported."""

    def __init__(self, model: PreTrainedModel, layers: Iterable[int]):
        super().__init__()
        self.model, self.layers, self.window = model, layers, window_of(model)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, places: Tensor, keys: list[Tensor], values: list[Tensor]
    ) -> tuple:
        cache = Cache(layers=[_WrittenAt(places, k, v) for k, v in zip(keys, values, strict=True)])
        mask = masks(mask, self.window)
        options = {"position_ids": positions, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
        with layer_outputs(self.model, self.layers) as hidden:
            return self.model(input_ids=ids, **options).logits, hidden


class _WrittenAt(WrittenInPlace):
    """One layer's keys and values as (rows, kv heads, head width): a pass writes the rows `places`, and reads all."""

    def __init__(self, places: Tensor, keys: Tensor, values: Tensor):
        super().__init__(keys, values)
        self._places = places

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        """Write this pass's rows; give all of them as (1, kv heads, rows, head width)."""
        for rows, states in ((self.keys, key_states), (self.values, value_states)):
            rows.index_copy_(0, self._places, states[0].transpose(0, 1))
        return self.keys.transpose(0, 1)[None], self.values.transpose(0, 1)[None]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Rows that attention reads, and where they start."""
        return self.keys.shape[0], 0


Kernels = Mapping[bool, tuple[Callable[..., tuple], Callable[..., tuple]]]
"""This maps whether the weights are packed to two functions: one for any width, and one for a single token."""


class ExportedModel:
    """The exported forward of one model. It holds no text: buffers and positions come in.

    layers: whose outputs a pass gives beside the logits; all, unless told, for drafts are made later.
    shapes: for every layer the (kv heads, head width) of its keys and of its values.
    window: of layers with a sliding window, None where there are none. Their buffers hold the whole text
    all the same, which costs memory, and makes a rollback past the window's edge exact.
    can_pack: whether there are copies of the weights in oneDNN's own order. packs_one, packs_several: whether the
    products of a pass over one token, and of a pass over several, read them in the place of the model's own weights;
    models/engine_choice.py sets both.
    programs: tokens of a pass -> the same pass as compiled functions, None where these are no faster; narrower passes
    are padded to it.
    """

    graphed = False
    splits = True
    one_token_gain: float | None = None

    def __init__(self, model: PreTrainedModel, layers: Iterable[int] | None = None):
        self.model, self.shapes, self.window = model, kv_shapes(model), window_of(model)
        self.can_pack = self.packs_one = self.packs_several = rewrites.can_prepack(model.device, model.dtype)
        self.programs: dict[int, Program | None] = {}
        graph = export_forward(model, self.shapes, range(len(decoder_layers(model))) if layers is None else layers)
        self._graphs = {False: graph}  # by whether they read packed weights
        if self.can_pack:
            self._graphs[True] = rewrites.copied(graph)
            rewrites.pack_products(self._graphs[True])
        self._whole = {packed: functions(rewrites.copied(graph)) for packed, graph in self._graphs.items()}
        self._halves: dict[int, tuple[Kernels, Kernels]] = {}

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Nothing to do: any width and length runs."""

    def start(self, hidden_layers: Iterable[int] = ()) -> "ExportedBackend":
        """A backend for one decoding."""
        return ExportedBackend(self, hidden_layers)

    def halves(self, n_layers: int) -> "tuple[Kernels, Kernels]":
        """The pass in two parts, made when they are first needed: the first `n_layers` layers, and the others."""
        if n_layers not in self._halves:
            parts = {packed: rewrites.halves(graph, n_layers) for packed, graph in self._graphs.items()}
            first, rest = ({packed: functions(pair[i]) for packed, pair in parts.items()} for i in (0, 1))
            self._halves[n_layers] = first, rest
        return self._halves[n_layers]

    @functools.cached_property
    def cut(self) -> CutPass:
        """Return the pass in the parts that are compiled. Raises NoFastBackend where it cannot be cut."""
        return cut(rewrites.copied(self._graphs[False]))

    @property
    def bytes_spared(self) -> int:
        """Return the bytes of the weights that compiled passes do not read, because they read them in bfloat16."""
        return self.cut.bytes_spared if any(self.programs.values()) else 0

    def forget_cut(self) -> None:
        """Free the weights in blocks where no compiled pass reads them."""
        self.__dict__.pop("cut", None)

    def name_when_compiled(self, widths: Iterable[int]) -> str:
        """Return the name under which the cache folder knows that passes of these widths were compiled."""
        return name_of_pass(self._graphs[False], widths, torch.get_num_threads())

    def pass_over(self, n_tokens: int, masked: bool = False) -> "Program | Replayed":
        """Return the pass for so many tokens: the compiled one of that width or the next wider one, else the replayed
        one. masked: whether the tokens do not all follow each other."""
        width = min((width for width in self.programs if width >= n_tokens), default=0)
        if program := self.programs.get(width):
            return program
        return Replayed(self, max(2, n_tokens) if masked else n_tokens)  # a replayed pass over one token has no mask

    def forward(
        self,
        inputs: Tensor,
        positions: Tensor,
        mask: Tensor,
        places: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
        kernels: "Kernels | None" = None,
    ) -> tuple[Tensor, ...]:
        """(1, m) ids and positions, (1, 1, m, total) mask, (m,) places, per layer `total` rows, (total, kv heads, head
        width) -> (1, m, vocab) logits, and the outputs of the layers, (1, m, hidden) each

        The rows at the places are written; a single token reads all rows. kernels: of `halves`; the first part gives
        the outputs of its layers alone, the second one takes the last of these, (1, m, hidden), in the place of the
        ids.
        """
        kernels = kernels or self._whole
        run = kernels[self.packs_one][1] if inputs.shape[1] == 1 else kernels[self.packs_several][0]
        return run(inputs, positions, mask, places, *keys, *values)


class Replayed(NamedTuple):
    """The replayed pass over `width` tokens. It is called like a compiled one (`Program` in compiled.py)."""

    exported: ExportedModel
    width: int

    @staticmethod
    def n_rows(total: int) -> int:
        """Return the number of rows that a pass reads which ends with token `total`: all rows up to it."""
        return total

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        """Run the pass, as `ExportedModel.forward` does."""
        return self.exported.forward(*arguments)

    def first(self, n_layers: int, *arguments: Any) -> tuple[Tensor, ...]:
        """Run the first layers alone.  -> their outputs"""
        return self.exported.forward(*arguments, kernels=self.exported.halves(n_layers)[0])

    def rest(self, n_layers: int, *arguments: Any) -> tuple[Tensor, ...]:
        """Run all layers but the first ones.  -> logits and the outputs of these layers"""
        return self.exported.forward(*arguments, kernels=self.exported.halves(n_layers)[1])


def functions(graph: fx.GraphModule) -> tuple[Callable[..., tuple], Callable[..., tuple]]:
    """A list of kernels as a function of ids, positions, mask, keys and values; then the same for a single token."""
    constants = rewrites.lift_constants(graph)
    wide = rewrites.as_function(graph)
    rewrites.drop_mask(graph)
    one = rewrites.as_function(graph)
    return (lambda *inputs: wide(*inputs, *constants)), (lambda *inputs: one(*inputs, *constants))


class ExportedBackend(BufferedBackend):
    """The exported model at work on one text."""

    def __init__(self, exported: ExportedModel, hidden_layers: Iterable[int] = ()):
        super().__init__(exported.model, hidden_layers)
        self._exported = exported

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids after `length` tokens -> (1, m, vocab) logits."""
        return self._kept(self._run(tokens, length))

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """As `forward`, at positions (1, m) and with a mask (1, 1, m, length + m)."""
        return self._kept(self._run(tokens, length, masked=(positions, mask)))

    def _kept(self, outputs: list[Tensor]) -> Tensor:
        """The logits of a whole pass; what it gave beside them is kept where somebody asked for it."""
        logits, *hidden = outputs
        self.hidden = {layer: hidden[layer] for layer in self._hidden_layers}
        return logits

    def forward_first(self, tokens: Tensor, length: int, n_layers: int) -> Tensor:
        """The first `n_layers` layers alone: (1, m) ids after `length` tokens -> their outputs (1, m, hidden)."""
        return self._run(tokens, length, lambda run: functools.partial(run.first, n_layers))[-1]

    def forward_rest(self, states: Tensor, length: int, n_layers: int) -> Tensor:
        """All layers but those: what they gave (1, m, hidden), after `length` tokens -> (1, m, vocab) logits."""
        logits, *hidden = self._run(states, length, lambda run: functools.partial(run.rest, n_layers))
        outputs = dict(enumerate([states, *hidden], n_layers - 1))
        self.hidden = {layer: outputs[layer] for layer in self._hidden_layers if layer in outputs}
        return logits

    def _run(
        self,
        inputs: Tensor,
        length: int,
        part: Callable[[Program | Replayed], Callable[..., Iterable[Tensor]]] = lambda run: run,
        masked: tuple[Tensor, Tensor] | None = None,
    ) -> list[Tensor]:
        """A pass over (1, m) ids, or (1, m, hidden) states, after `length` tokens: its outputs, (1, m, ...) each.

        part: it takes a pass and returns the part of it to run. masked: positions (1, m) and mask (1, 1, m, length +
        m), where the tokens do not all follow each other.
        """
        n_tokens = inputs.shape[1]
        run = self._exported.pass_over(n_tokens, masked is not None)
        if masked is None and length + run.width > self._most_positions:
            run = Replayed(self._exported, n_tokens)
        width = run.width
        if width > n_tokens:  # padding comes last, so no other row reads it, and the next pass overwrites it
            inputs = nn.functional.pad(inputs, (0, 0) * (inputs.ndim - 2) + (0, width - n_tokens))
        total = length + width
        n_rows = run.n_rows(total)
        self._reserve(n_rows, length + n_tokens)
        buffers = self._buffers
        places = buffers.places[:, length:total]
        if masked is None:
            positions, mask = places, buffers.mask(width, length, n_rows)
        else:
            positions, mask = padded_mask(*masked, width, n_rows)
        outputs = list(part(run)(inputs, positions, mask, places[0], *buffers.rows(n_rows)))
        return outputs if width == n_tokens else [output[:, :n_tokens] for output in outputs]

    def _new_buffers(self, capacity: int) -> Buffers:
        return Buffers(self._model, self._exported.shapes, capacity)


def export_forward(model: PreTrainedModel, shapes: list, layers: Iterable[int]) -> fx.GraphModule:
    """The kernels of one pass over one text, for any width and any context."""
    width, total, device = 3, 7, model.device
    arguments = (
        torch.zeros(1, width, dtype=torch.long, device=device),
        torch.arange(total - width, total, device=device)[None],
        causal_mask(width, total - width, total, model.dtype, device),
        torch.arange(total - width, total, device=device),
        *Buffers(model, shapes, EXAMPLE_ROWS).rows(total),
    )
    of_buffers = [{0: TOTALS}] * len(shapes)
    dynamic = ({1: WIDTHS}, {1: WIDTHS}, {2: WIDTHS, 3: TOTALS}, {0: WIDTHS}, of_buffers, of_buffers)
    return export(_Pass(model, layers), arguments, dynamic)
