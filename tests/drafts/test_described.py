"""What the head of a run says about a draft, and what of -k has no effect."""

from draft_models import ModelDrafter, NgramDrafter
from speclab.models.cached import CachedModel
from tests.tiny_models import tiny


def test_models_have_a_line_and_lookups_their_name():
    model = ModelDrafter(CachedModel(tiny("llama")))
    engine = model.draft.engine
    assert model.describe("model", engine).startswith("model: llama, ")
    assert "on the eager engine" not in model.describe("model", engine)
    assert model.describe("model", "another").endswith("; on the eager engine")
    assert NgramDrafter().describe("ngram", engine) is None
    assert NgramDrafter().length_notes("ngram", [300]) == []
