"""Logits and hidden states of chosen layers: those of the uncached model, on every backend, width, and after every
rollback."""

import pytest
import torch

from speclab.engines.eager import decoder_layers, layer_outputs
from speclab.engines.parts import FAMILIES as KNOWN
from speclab.models.cached import CachedModel
from tests import tiny_families
from tests.recorder import graphed, stand_in
from tests.tiny_models import DTYPE_ON, FAMILIES, VOCAB, assert_close, on_engine, tiny

TEXT = torch.randint(0, VOCAB, (1, 40), generator=torch.Generator().manual_seed(4))


def model_on(engine: str, family: str, monkeypatch) -> CachedModel:
    if engine == "graphs":
        stand_in(monkeypatch)
        return graphed(family)
    model = tiny(family, dtype=DTYPE_ON[engine])
    return CachedModel(model, fast=on_engine(engine, model))


@pytest.mark.parametrize(
    ("engine", "family"),
    [(e, f) for e in (*DTYPE_ON, "graphs") for f in FAMILIES if e != "c" or FAMILIES[f][0] in KNOWN],
)
def test_states_are_the_uncached_models(engine, family, monkeypatch):
    cached = model_on(engine, family, monkeypatch)
    with torch.inference_mode(), layer_outputs(cached.model, (0, 1)) as right:
        cached.model(input_ids=TEXT, use_cache=False)
    right = {layer: output.clone() for layer, output in right.items()}
    cached.hidden_layers = (0, 1)
    cached.prefill(TEXT[:, :11])
    found, place = [cached.hidden((1, 0))], 11
    for width in (1, 5, 3, 1, 7, 12):
        cached.forward((TEXT[:, place : place + width] + 1) % VOCAB)  # rejected, all of it
        cached.crop(place)
        cached.forward(TEXT[:, place : place + width])
        found.append(cached.hidden((1, 0)))  # the next pass leaves it as it is
        place += width
    assert place == TEXT.shape[1]
    assert_close(torch.cat(found, dim=1), torch.cat([right[1], right[0]], dim=-1))


def test_only_what_was_asked_for_is_kept():
    cached = CachedModel(tiny("llama"))
    cached.hidden_layers = (1,)
    cached.prefill(TEXT)
    assert cached.hidden((1,)).shape == (1, 40, 32)
    with pytest.raises(RuntimeError, match="no pass keeps the output of layer 0; name it in hidden_layers"):
        cached.hidden((0, 1))
    assert cached.with_own_cache().hidden_layers == (1,)
    assert not any(layer._forward_hooks for layer in decoder_layers(cached.model)), "the model is left as it was"


def test_layers_are_those_of_the_text_part():
    """Beside an encoder of images with as many layers, which stands first."""
    model = tiny_families.tiny("gemma3")
    assert model.config.vision_config.num_hidden_layers == model.config.text_config.num_hidden_layers
    assert decoder_layers(model) == list(model.get_decoder().layers)
