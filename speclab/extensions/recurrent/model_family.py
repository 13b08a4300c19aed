"""The family of models with recurrent layers, and the eager backend that rolls them back.

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
"""

import contextlib
import inspect
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedConfig, PreTrainedModel

from speclab.engines.eager import EagerBackend, layer_outputs
from speclab.models.family import Family, embedded_ids

N_PROBE = 4  # tokens that fill the states, and as many that are then read in one pass and one by one
PROBE_GAP = 1e-5  # times the largest logit: a pass that does not read its states is off by much more
STATES = {  # by whether the model reads several tokens in one pass
    True: "recurrent layers: after a rejected draft the accepted tokens are read once more, in a pass of their own",
    False: "recurrent layers whose library code reads one token a pass: drafts are verified token by token, which is "
    "no faster than plain decoding",
}
_reads_several: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


class RecurrentBackend(EagerBackend):
    """The eager backend for a model some of whose layers keep a state that cannot be cropped.

    Before a pass the states of all layers are kept, until the next crop. Where the library's passes over several tokens
    do not go on from the states, tokens are read one by one: right, and no faster than plain decoding.
    """

    def __init__(self, model: PreTrainedModel, reads_several: bool, hidden_layers: Iterable[int] = ()):
        super().__init__(model, hidden_layers)
        self._cache = DynamicCache(config=model.config)  # nothing is cropped, so windows may drop what leaves them
        self._width = None if reads_several else 1  # most tokens of a pass
        self._kept: dict[int, list[dict[str, Any]]] = {}  # tokens in the cache -> what its layers held then
        self._fed: dict[int, Tensor] = {}  # tokens in the cache -> the (1, m) ids that were fed then

    def prefill(self, prompt: Tensor) -> Tensor:
        """Read the prompt: (1, prompt) ids -> (1, 1, vocab) logits of the last one."""
        with layer_outputs(self._model, self._hidden_layers) as self.hidden:
            return self._pass(prompt, 0)[:, -1:]

    def step(self, tokens: Tensor, length: int) -> Tensor:
        """Do as `forward` does, for tokens that will never be rolled back."""
        return self._forward(tokens, length, rolls_back=False)

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        """Run a pass: (1, m) ids -> (1, m, vocab) logits. The cache already holds `length` tokens."""
        return self._forward(tokens, length, rolls_back=True)

    def _forward(self, tokens: Tensor, length: int, rolls_back: bool) -> Tensor:
        logits, outputs = [], []
        for block in tokens.split(self._width or tokens.shape[1], dim=1):
            if rolls_back:
                self._kept[length], self._fed[length] = states_of(self._cache), block
            with layer_outputs(self._model, self._hidden_layers) as hidden:
                logits.append(self._pass(block, length))
            outputs.append(hidden)
            length += block.shape[1]
        self.hidden = {layer: torch.cat([one[layer] for one in outputs], dim=1) for layer in self._hidden_layers}
        return torch.cat(logits, dim=1)

    @torch.inference_mode()
    def crop(self, n_tokens: int, length: int) -> None:
        """Drop the last `n_tokens` of the `length` tokens in the cache: restore the states, and replay the tokens that
        stay.

        Raises RuntimeError where no states are kept from so early.
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
            self._pass(fed[place][:, : wanted - place], place)
            self.n_replays += 1

    def _pass(self, tokens: Tensor, length: int) -> Tensor:
        """Make one pass: (1, m) ids after `length` tokens -> (1, m, vocab) logits."""
        options = pass_options(self._model, self._cache, length, tokens.shape[1])
        return self._model(input_ids=tokens, **options).logits


def states_of(cache: Cache) -> list[dict[str, Any]]:
    """Return the contents of each layer of the cache. Named states are copied, because the next pass writes them in
    place; keys and values are not copied, because longer ones replace them."""

    def kept(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: part.clone() if isinstance(part, Tensor) else part for name, part in value.items()}

    return [{name: kept(value) for name, value in vars(layer).items()} for layer in cache.layers]


def put_back(cache: Cache, states: list[dict[str, Any]]) -> None:
    """Give the layers of the cache what they held: keys and values are cropped by it, and states restored."""
    for layer, held in zip(cache.layers, states, strict=True):
        vars(layer).update(held)


def pass_options(model: PreTrainedModel, cache: Any, length: int, width: int) -> dict[str, Any]:
    """Return the options of a pass over `width` tokens that goes on from a cache with `length` tokens.

    Some families begin at position 0 where none is given, and those without attention layers know no positions and have
    another name for the cache.
    """
    names = inspect.signature(model.forward).parameters
    options = {"cache_params" if "cache_params" in names else "past_key_values": cache, "use_cache": True}
    if "position_ids" in names:
        options["position_ids"] = torch.arange(length, length + width, device=model.device)[None]
    return options


# --- the family -------------------------------------------------------------------------------------------------------


def is_recurrent(config: PreTrainedConfig) -> bool:
    """Tell whether a layer keeps a state that a pass replaces, beside or instead of rows for each token.

    Such layers have their states by name in dictionaries. They cannot be cropped.
    """
    layers = DynamicCache(config=config).layers
    return any(isinstance(value, dict) for layer in layers for value in vars(layer).values())


@torch.inference_mode()
def reads_several(model: PreTrainedModel) -> bool:
    """Tell whether a pass over several tokens goes on from the states that are there, as passes over one token do.

    In some families of the library it begins with empty states instead. This is found out once for each model.
    """
    if model not in _reads_several:
        n_ids = min(embedded_ids(model), model.config.get_text_config().vocab_size)
        ids = torch.randint(n_ids, (1, 2 * N_PROBE), generator=torch.Generator().manual_seed(0)).to(model.device)

        def logits(width: int) -> Tensor:
            cache, parts = DynamicCache(config=model.config), []
            for start, end in [(0, N_PROBE), *((n, n + width) for n in range(N_PROBE, 2 * N_PROBE, width))]:
                options = pass_options(model, cache, start, end - start)
                parts.append(model(input_ids=ids[:, start:end], **options).logits)
            return torch.cat(parts[1:], dim=1)

        one_by_one = logits(1)
        allowed = max(PROBE_GAP, 8 * torch.finfo(one_by_one.dtype).eps) * one_by_one.abs().max()
        _reads_several[model] = bool((logits(N_PROBE) - one_by_one).abs().max() <= allowed)
    return _reads_several[model]


class Recurrent(Family):
    """Layers that keep a state, alone or beside attention layers."""

    plural = "models with recurrent layers"
    crops = False
    why_eager = "it has recurrent layers, whose states cannot be cropped"

    def backend(self, model: PreTrainedModel, hidden_layers: Any = ()) -> RecurrentBackend:
        """Return the eager backend of one decoding."""
        return RecurrentBackend(model, reads_several(model), hidden_layers)

    def claims(self, config: PreTrainedConfig) -> bool:
        """Tell whether the library's cache for this config has such a layer."""
        with contextlib.suppress(Exception):  # a config that the library makes no cache of is refused later
            return is_recurrent(config)
        return False

    def fill(self, model: PreTrainedModel, cache: DynamicCache, ids: Tensor) -> None:
        """Run one pass over (1, n) ids that fills an empty cache."""
        model(input_ids=ids, **pass_options(model, cache, 0, ids.shape[1]))

    def head(self, model: PreTrainedModel) -> str:
        """Return a line that says what a rejection costs."""
        return f"states  {STATES[reads_several(model)]}"


FAMILY = Recurrent()
