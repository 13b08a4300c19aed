"""The contract of tests/contract.py, for drafts with branches."""

import pytest

from draft_models import NgramDrafter
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.fixed import TreeDrafter
from speclab.extensions.trees.merged import MergedDrafter
from tests.contract import check, id_of, ways_of
from tests.drafts.test_contract import model_draft
from tests.heads import in_format, trained, trained_block

DRAFTS = {
    "tree": lambda *given: TreeDrafter(model_draft(*given), (2, 2, 1)),
    "sampled tree": lambda *given: TreeDrafter(model_draft(*given), (3, 2), sampled=True),
    "tree of a head": lambda model, _: TreeDrafter(FeatureDrafter(in_format(trained()[1], model.dtype)), (2, 2, 1)),
    "best": lambda *given: BestTreeDrafter(model_draft(*given)),
    "best of a block": lambda model, _: BestTreeDrafter(
        BlockDrafter(in_format(trained_block(markov_rank=3)[1], model.dtype))
    ),
    "merged": lambda *given: MergedDrafter([NgramDrafter(2, 1), model_draft(*given)]),
}


SAME_PASSES = ("sampled tree", "best", "merged")  # as "tree": other tokens in a tree, of a model on the same engine


@pytest.mark.parametrize(("kind", "engine", "sampling"), ways_of(DRAFTS, eager=SAME_PASSES), ids=id_of)
def test_a_draft_keeps_the_contract(kind, engine, sampling):
    check(DRAFTS[kind], engine, sampling, layers=(0, 1))
