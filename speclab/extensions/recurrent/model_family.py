"""The family of models with recurrent layers: it says which models these are, and how the lab decodes them."""

import contextlib
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel

from speclab.extensions.recurrent.backend import RecurrentBackend, pass_options
from speclab.models.cached import embedded_ids
from speclab.models.family import Family

N_PROBE = 4  # tokens that fill the states, and as many that are then read in one pass and one by one
PROBE_GAP = 1e-5  # times the largest logit: a pass that does not read its states is off by much more
STATES = {  # by whether the model reads several tokens in one pass
    True: "recurrent layers: after a rejected draft the accepted tokens are read once more, in a pass of their own",
    False: "recurrent layers whose library code reads one token a pass: drafts are verified token by token, which is "
    "no faster than plain decoding",
}
_reads_several: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


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
