"""The eager backend: the model as its library runs it, with a cache that grows. Readable, and right for every model.

Keys and values are rows, one for each token: rolling back drops the last ones. A recurrent layer (Mamba, gated delta
rule, short convolution) keeps one state, which every token changes, so there is nothing to drop. `RecurrentBackend`
keeps the state from before a pass, restores it, and reads the accepted tokens once more: a replay, a pass of its own.
With k = 4 drafted tokens of which 2 are accepted, after a text of L tokens:

                  tokens in the states    fed in this step
    before                L - 1
    verify                L + 4           the last committed token, drafts 1 to 4; the states of L - 1 are kept
    restore               L - 1           nothing
    replay                L + 2           the last committed token, drafts 1 and 2

Where all drafts are accepted nothing is restored. A draft model reads its tokens one by one, and keeps the states from
before each of them: it never replays.

`EncoderDecoderBackend` (T5, BART) runs the encoder once, over the prompt. The decoder's text begins with a token of its
own, the start; it reads the prompt through cross-attention, whose keys and values no rollback touches.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, EncoderDecoderCache, PreTrainedModel

from speclab.models.backends.windows import Window, keep_what_leaves, masks, reading_all_rows
from speclab.models.limits import decoder_config, pass_options, reads_several, start_of


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The model's decoder layers in their order; none where they are not one list.

    They are looked for in its text part first: an encoder of images may have as many layers.
    """
    n_layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    text_part = model.get_decoder() if isinstance(model, PreTrainedModel) else model
    modules = (module for part in (text_part, model) for module in part.modules())
    lists = (module for module in modules if isinstance(module, nn.ModuleList) and len(module) == n_layers)
    return list(next(lists, []))


@contextlib.contextmanager
def layer_outputs(model: PreTrainedModel, layers: Iterable[int]) -> Iterator[dict[int, Tensor]]:
    """While this is open, the passes of the model put the outputs of these layers here, (batch, m, hidden) each."""
    outputs: dict[int, Tensor] = {}

    def keep(layer: int, module: nn.Module, inputs: Any, output: Any) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        outputs[layer] = states.to(model.device)  # layers may lie on several devices

    modules = decoder_layers(model)
    handles = [modules[layer].register_forward_hook(functools.partial(keep, layer)) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def only_layers(model: PreTrainedModel, chosen: range, states: Tensor | None = None) -> Iterator[None]:
    """While this is open, passes of the model skip all layers but `chosen`, without a gap.

    A skipped layer gives what it gets; the one before the first of `chosen` gives `states`, (batch, m, hidden).
    """

    def skipped(hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
        return hidden_states

    def given(hidden_states: Tensor, *args: Any, **options: Any) -> Tensor:
        assert states is not None
        return states

    modules: list[Any] = decoder_layers(model)
    replaced = {i: given if i == chosen.start - 1 else skipped for i in range(len(modules)) if i not in chosen}
    before = {i: vars(modules[i]).get("forward") for i in replaced}
    try:
        for i, function in replaced.items():
            modules[i].forward = function
        yield
    finally:
        for i, own in before.items():
            del modules[i].forward
            if own is not None:
                modules[i].forward = own


def first_states(model: PreTrainedModel, tokens: Tensor, n_layers: int, **options: Any) -> Tensor:
    """The first `n_layers` layers alone: (1, m) ids -> their outputs (1, m, hidden). options: of the pass."""
    last = n_layers - 1
    with only_layers(model, range(n_layers)), layer_outputs(model, (last,)) as outputs:
        model.base_model(input_ids=tokens, **{"use_cache": False} | options)
    return outputs[last]


def move_rows(tensors: Iterable[Tensor], length: int, rows: Tensor) -> None:
    """In place: of the rows behind `length` these, (n,), come first. tensors: (1, heads, tokens, head width) each."""
    for tensor in tensors:
        tensor[:, :, length : length + len(rows)] = tensor[:, :, length + rows.to(tensor.device)]


class EagerBackend:
    """The model as its library runs it, with a cache that grows. The reference: readable, and right for every model.

    n_replays: passes over accepted tokens that were read before. n_single: passes beyond one for a call of `forward`,
    where it reads tokens one by one.
    """

    n_replays = n_single = 0
    _keeps_what_leaves = _has_stepped = False

    def __init__(self, model: PreTrainedModel, hidden_layers: Iterable[int] = ()):
        self._model, self._hidden_layers = model, hidden_layers
        self.hidden: dict[int, Tensor] = {}
        self._cache = DynamicCache(config=model.config)

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits of the last one."""
        options = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
            return self._model(input_ids=prompt, **options).logits

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """As `forward`, for tokens that will not be rolled back."""
        self._has_stepped = True
        return self._read(tokens, length)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids -> (1, m, vocab) logits. `length` is in the cache already."""
        self._keep_what_leaves()
        return self._read(tokens, length)

    def _read(self, tokens: Tensor, length: int) -> Tensor:
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
            return self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True).logits

    def forward_first(self, tokens: Tensor, length: int, n_layers: int) -> Tensor:
        """The first `n_layers` layers alone: (1, m) ids after `length` tokens -> their outputs (1, m, hidden)."""
        self._keep_what_leaves()
        self._check_length(range(n_layers), length)
        return first_states(self._model, tokens, n_layers, past_key_values=self._cache, use_cache=True)

    def forward_rest(self, states: Tensor, length: int, n_layers: int) -> Tensor:
        """All layers but those: what they gave (1, m, hidden), after `length` tokens -> (1, m, vocab) logits."""
        layers = self._cache.layers
        rest, width = range(n_layers, len(layers)), states.shape[1]
        self._check_length(rest, length)
        self._check_length(range(n_layers), length + width)
        # The library asks the first layer of a cache how long the text is, and that one is ahead.
        cache = Cache(layers=[layers[n_layers]] * n_layers + layers[n_layers:])
        kept = [layer for layer in self._hidden_layers if layer in rest]
        positions = torch.arange(length, length + width, device=states.device)[None]
        ids = torch.zeros_like(positions)  # their embeddings are not read
        with only_layers(self._model, rest, states), layer_outputs(self._model, kept) as self.hidden:
            options = {"position_ids": positions, "past_key_values": cache, "use_cache": True}
            logits = self._model(input_ids=ids, **options).logits
        if n_layers - 1 in self._hidden_layers:
            self.hidden[n_layers - 1] = states
        return logits

    def _check_length(self, layers: Iterable[int], length: int) -> None:
        """RuntimeError where the cache of one of these layers does not hold `length` tokens."""
        caches: list[Any] = self._cache.layers
        for layer in layers:
            if (found := caches[layer].get_seq_length()) != length:
                raise RuntimeError(f"the cache of layer {layer} holds {found} tokens, not {length}")

    def forward_masked(self, tokens: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
        """As `forward`, at positions (1, m) and with a mask (1, 1, m, length + m)."""
        self._keep_what_leaves()
        options = {"position_ids": positions, "past_key_values": self._cache, "use_cache": True}
        with layer_outputs(self._model, self._hidden_layers) as self.hidden, reading_all_rows(self._cache) as windowed:
            if windowed:  # of one size
                first, everywhere = windowed[0], len(windowed) == len(self._cache.layers)
                n_held = first.keys.shape[-2] + tokens.shape[1]
                mask = masks(mask, Window(first.sliding_window, everywhere), n_held)
            return self._model(input_ids=tokens, attention_mask=mask, **options).logits

    def keep(self, length: int, rows: Tensor) -> None:
        """Of the tokens behind `length`, those of the last pass, move these (n,) to the front, and their hidden states
        with them."""
        layers: list[Any] = self._cache.layers
        for layer in layers:
            n_left = layer.get_seq_length() - layer.keys.shape[-2]  # tokens that have left a window
            move_rows([layer.keys, layer.values], length - n_left, rows)
        self.hidden = {layer: states[:, rows] for layer, states in self.hidden.items()}

    def crop(self, n_tokens: int, length: int) -> None:
        """Of the `length` tokens in the cache, drop the last `n_tokens`."""
        # The negative form is the portable one, and for sliding windows a crop of 0 is what frees old entries.
        if n_tokens and not self._has_stepped:  # after a step the library refuses, where a window has lost tokens
            self._keep_what_leaves()
        if n_tokens or self._keeps_what_leaves:
            self._cache.crop(-n_tokens)

    def _keep_what_leaves(self) -> None:
        """Before a pass over tokens that may be rolled back."""
        if not self._keeps_what_leaves:
            keep_what_leaves(self._cache)
            self._keeps_what_leaves = True


class RecurrentBackend(EagerBackend):
    """The same for a model some of whose layers keep a state that cannot be cropped.

    Before a pass the states of all layers are kept, until the next crop. Where the library's passes over several tokens
    do not go on from the states, tokens are read one by one: right, and no faster than plain decoding.
    """

    def __init__(self, model: PreTrainedModel, hidden_layers: Iterable[int] = ()):
        super().__init__(model, hidden_layers)
        self._width = None if reads_several(model) else 1  # most tokens of a pass
        self._kept: dict[int, list[dict[str, Any]]] = {}  # tokens in the cache -> what its layers held then
        self._fed: dict[int, Tensor] = {}  # tokens in the cache -> the (1, m) ids that were fed then

    def prefill(self, prompt: Tensor) -> Tensor:
        """(1, prompt) ids -> (1, 1, vocab) logits of the last one."""
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
            return self._read(prompt, 0)[:, -1:]

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """As `forward`, for tokens that will not be rolled back."""
        return self._forward(tokens, length, rolls_back=False)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """(1, m) ids -> (1, m, vocab) logits. `length` is in the cache already."""
        return self._forward(tokens, length, rolls_back=True)

    def _forward(self, tokens: Tensor, length: int, rolls_back: bool) -> Tensor:
        logits, blocks = [], tokens.split(self._width or tokens.shape[1], dim=1)
        for block in blocks:
            if rolls_back:
                self._kept[length], self._fed[length] = states_of(self._cache), block
            with layer_outputs(self._model, self._hidden_layers) as self.hidden:
                logits.append(self._read(block, length))
            length += block.shape[1]
        self.n_single += len(blocks) - 1
        return torch.cat(logits, dim=1)

    @torch.inference_mode()
    def crop(self, n_tokens: int, length: int) -> None:
        """Of the `length` tokens in the cache, drop the last `n_tokens`: restore the states, and replay what stays.

        RuntimeError where no states are kept from so early.
        """
        kept, fed, self._kept, self._fed = self._kept, self._fed, {}, {}
        if n_tokens == 0:
            return
        wanted = length - n_tokens
        if not (places := [place for place in kept if place <= wanted]):
            raise RuntimeError(f"cannot go back to {wanted} tokens: the states after {sorted(kept)} tokens are kept")
        place = max(places)
        put_back(self._cache, kept[place])
        if place < wanted:
            self._read(fed[place][:, : wanted - place], place)
            self.n_replays += 1

    def _read(self, tokens: Tensor, length: int) -> Tensor:
        """One pass: (1, m) ids after `length` tokens -> (1, m, vocab) logits."""
        options = pass_options(self._model, self._cache, length, tokens.shape[1])
        return self._model(input_ids=tokens, **options).logits


class EncoderDecoderBackend(EagerBackend):
    """The same for a decoder behind an encoder. `_cache` is that of its self-attention."""

    def __init__(self, model: PreTrainedModel, hidden_layers: Iterable[int] = ()):
        super().__init__(model, hidden_layers)
        self._cache = DynamicCache(config=decoder_config(model))
        # A config with sliding windows is about self-attention: every token reads the whole prompt.
        self._both = EncoderDecoderCache(self._cache, DynamicCache())
        self._encoded: Any = None  # what the encoder gave, in the form of the family

    def prefill(self, prompt: Tensor) -> Tensor:
        """Run the encoder over (1, prompt) ids, and the decoder over its start.  -> (1, 1, vocab) logits"""
        self._encoded = self._model.get_encoder()(input_ids=prompt, attention_mask=torch.ones_like(prompt))
        return self._read(start_of(self._model), 0)

    def _read(self, tokens: Tensor, length: int) -> Tensor:
        """A pass of the decoder alone: (1, m) ids -> (1, m, vocab) logits. `length` is in its cache already."""
        options = {"encoder_outputs": self._encoded, "past_key_values": self._both, "use_cache": True}
        return self._model(decoder_input_ids=tokens, **options).logits


def states_of(cache: Cache) -> list[dict[str, Any]]:
    """What each layer of the cache holds. Named states are written in place by the next pass, so they are copied; keys
    and values are replaced by longer ones, and are not."""

    def kept(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: part.clone() if isinstance(part, Tensor) else part for name, part in value.items()}

    return [{name: kept(value) for name, value in vars(layer).items()} for layer in cache.layers]


def put_back(cache: Cache, states: list[dict[str, Any]]) -> None:
    """Give the layers of the cache what they held: keys and values are cropped by it, and states restored."""
    for layer, held in zip(cache.layers, states, strict=True):
        vars(layer).update(held)
