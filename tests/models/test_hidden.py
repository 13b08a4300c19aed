"""Hidden states of chosen layers: what is kept, and of which layers (tests/engines/test_pass.py compares them)."""

import pytest
import torch

from speclab.engines.eager import decoder_layers
from speclab.models.cached import CachedModel
from tests.tiny_models import tiny


def test_only_what_was_asked_for_is_kept():
    cached = CachedModel(tiny("llama"))
    cached.hidden_layers = (1,)
    cached.prefill(torch.zeros(1, 40, dtype=torch.long))
    assert cached.hidden((1,)).shape == (1, 40, 32)
    with pytest.raises(RuntimeError, match="no pass keeps the output of layer 0; name it in hidden_layers"):
        cached.hidden((0, 1))
    assert cached.with_own_cache().hidden_layers == (1,)
    assert not any(layer._forward_hooks for layer in decoder_layers(cached.model)), "the model is left as it was"
