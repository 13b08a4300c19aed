"""What the head of a run says about a draft, and what of -k has no effect."""

import pytest

from draft_models import ModelDrafter, NgramDrafter
from speclab.drafts.block import BlockDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.suffix import SuffixDrafter
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.fixed import TreeDrafter
from speclab.models.cached import CachedModel
from tests.heads import tiny_block_head
from tests.tiny_models import tiny


def block() -> BlockDrafter:
    """One that drafts at most as many tokens as its head's block has."""
    return BlockDrafter(tiny_block_head(tiny("llama"), slots=7))


def test_models_and_trees_have_a_line_and_lookups_their_name():
    model = ModelDrafter(CachedModel(tiny("llama")))
    engine = model.draft.engine
    assert model.describe("model", engine).startswith("model: llama, ")
    assert "on the eager engine" not in model.describe("model", engine)
    assert model.describe("model", "another").endswith("; on the eager engine")
    assert (
        TreeDrafter(model, (2, 2, 1)).describe("tree:2x2x1:model", engine).startswith("tree:2x2x1:model: trees of 10")
    )
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
        ("tree:best:block", BestTreeDrafter(block()), [12], []),
        (
            "tree:2x2x1:block",
            TreeDrafter(block(), (2, 2, 1)),
            [4],
            ["tree:2x2x1:block: a tree of the shape 2x2x1 has 10 tokens; -k is not used"],
        ),
        ("tree:2x2x1:block", TreeDrafter(block(), (2, 2, 1)), [], []),
        ("ngram", NgramDrafter(), [300], []),
    ],
)
def test_what_of_k_has_no_effect_is_said(name, drafter, asked, notes):
    assert drafter.length_notes(name, asked) == notes
