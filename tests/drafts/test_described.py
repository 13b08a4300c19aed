"""What the head of a run says about a draft, and what of -k has no effect."""

import pytest

from draft_models import ModelDrafter, NgramDrafter
from speclab.drafts.block import BlockDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.suffix import SuffixDrafter
from speclab.models.cached import CachedModel
from tests.heads import tiny_block_head
from tests.tiny_models import tiny


def block() -> BlockDrafter:
    """One that drafts at most as many tokens as its head's block has."""
    return BlockDrafter(tiny_block_head(tiny("llama"), slots=7))


def test_models_have_a_line_and_lookups_their_name():
    model = ModelDrafter(CachedModel(tiny("llama")))
    engine = model.draft.engine
    assert model.describe("model", engine).startswith("model: llama, ")
    assert "on the eager engine" not in model.describe("model", engine)
    assert model.describe("model", "another").endswith("; on the eager engine")
    assert NgramDrafter().describe("ngram", engine) is None


@pytest.mark.parametrize(
    ("name", "drafter", "asked", "notes"),
    [
        ("block", block(), [4, 7], []),
        ("block", block(), [4, 8, 12], ["block proposes at most 7 tokens; -k 8,12 drafts no more"]),
        (
            "hybrid:suffix+block",
            HybridDrafter(SuffixDrafter(), block()),
            [12],
            ["hybrid:suffix+block: its block proposes at most 7 tokens; -k 12 drafts no more"],
        ),
        ("ngram", NgramDrafter(), [300], []),
    ],
)
def test_what_of_k_has_no_effect_is_said(name, drafter, asked, notes):
    assert drafter.length_notes(name, asked) == notes
