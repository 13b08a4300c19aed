"""Families of models: who is asked, how often, and what is refused where nobody claims a model."""

import pytest
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedConfig

from speclab.models import family, loading
from speclab.models.cached import CachedModel
from speclab.models.family import DECODER_ONLY, Family
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.tiny_models import tiny


class Marked(Family):
    """It claims models whose config says so."""

    plural = "marked models"

    def __init__(self):
        self.n_asked = 0

    def claims(self, config: PreTrainedConfig) -> bool:
        self.n_asked += 1
        return hasattr(config, "marked")


MARKED = Marked()


@pytest.fixture
def marked(monkeypatch):
    """A llama that belongs to a family of its own, the only one that there is."""
    monkeypatch.setattr(extensions, "FAMILIES", [f"{__name__}:MARKED"])
    monkeypatch.setattr(MARKED, "n_asked", 0)
    model = tiny("llama")
    model.config.marked = True
    return model


def test_a_family_is_asked_once_for_each_model(marked):
    first, twin = CachedModel(marked), CachedModel(marked).with_own_cache()
    assert first.family is twin.family is family.family_of(marked) is MARKED
    assert MARKED.n_asked == 1
    assert CachedModel(tiny("gpt2")).family is DECODER_ONLY
    assert MARKED.n_asked == 2


@pytest.mark.parametrize(
    ("differs", "refused", "refused_without_crops"),
    [({}, False, False), ({"crops": False}, True, False), ({"one_text": False}, True, True)],
)
def test_what_a_draft_needs_decides_who_is_refused(marked, monkeypatch, differs, refused, refused_without_crops):
    for name, value in differs.items():
        monkeypatch.setattr(MARKED, name, value, raising=False)
    for crops, expected in ((True, refused), (False, refused_without_crops)):
        if expected:
            with pytest.raises(UsageProblem, match="a does not know marked models, and llama is one; choose b"):
                family.check_family(marked, "a", "choose b", crops)
        else:
            family.check_family(marked, "a", "choose b", crops)


def test_an_encoder_decoder_without_its_extension_is_refused_at_load(tmp_path, monkeypatch):
    """The library would load the decoder alone, which is another model."""
    monkeypatch.setattr(extensions, "FAMILIES", [])
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    BartForConditionalGeneration(BartConfig(vocab_size=32, **sizes)).save_pretrained(tmp_path)
    for load in (loading.family_named, lambda name: loading.load_model(name, "cpu", "float32")):
        with pytest.raises(EnvironmentProblem, match="bart is an encoder-decoder, and no extension here decodes those"):
            load(str(tmp_path))
