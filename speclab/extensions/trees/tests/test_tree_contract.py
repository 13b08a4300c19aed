"""What every draft must do, done by trees: the contract of tests/contract.py, rounds along a known text, overflows; and
what a run says of their lengths."""

import re

import pytest

import optimized_speculative
from draft_models import ModelDrafter, NgramDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.fixed import TreeDrafter
from speclab.extensions.trees.merged import MergedDrafter
from speclab.models.cached import CachedModel
from tests.cli.test_cli import run  # noqa: F401 - a fixture
from tests.contract import check, id_of, ways_of
from tests.drafts.test_contract import model_draft
from tests.drafts.test_overflows import check_it_is_said, drafter_of, model  # noqa: F401 - a fixture
from tests.heads import block_heads, in_format, trained
from tests.lab.test_replay import learnt, replayed  # noqa: F401 - a fixture
from tests.tiny_models import perturbed

DRAFTS = {
    "tree": lambda *given: TreeDrafter(model_draft(*given), (2, 2, 1)),
    "sampled tree": lambda *given: TreeDrafter(model_draft(*given), (3, 2), sampled=True),
    "tree of a head": lambda target, _: TreeDrafter(FeatureDrafter(in_format(trained()[1], target.dtype)), (2, 2, 1)),
    "best": lambda *given: BestTreeDrafter(model_draft(*given)),
    "best of a block": lambda target, _: BestTreeDrafter(
        block_heads().BlockDrafter(in_format(block_heads().trained_block(markov_rank=3)[1], target.dtype))
    ),
    "merged": lambda *given: MergedDrafter([NgramDrafter(2, 1), model_draft(*given)]),
}
SAME_PASSES = ("sampled tree", "best", "merged")  # as "tree": other tokens in a tree, of a model on the same engine


@pytest.mark.parametrize(("kind", "engine", "sampling"), ways_of(DRAFTS, eager=SAME_PASSES), ids=id_of)
def test_a_draft_keeps_the_contract(kind, engine, sampling):
    check(DRAFTS[kind], engine, sampling, layers=(0, 1))


WAYS = {
    "tree": lambda drafter: TreeDrafter(drafter, (2, 2)),
    "sampled-tree": lambda drafter: TreeDrafter(drafter, (2, 2), sampled=True),
    "best": BestTreeDrafter,
    "merged": lambda drafter: MergedDrafter([NgramDrafter(), drafter]),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["feature", "block", "model"])
def test_every_way_of_drafting_says_that_logits_are_not_finite(model, kind, way, temperature):  # noqa: F811
    check_it_is_said(model, WAYS[way](drafter_of(kind, model)), temperature)


def test_the_head_names_the_shape_and_its_tokens(run, pair_folder):  # noqa: F811
    size = ["--prompt", "def f(x):", "--max-new-tokens", "8", "--draft", f"tree:2x2x1:{pair_folder / 'draft'}"]
    code, _, err = run(optimized_speculative, *size, "-k", "4")
    assert code == 0
    assert re.search(r"^draft   tree:2x2x1:draft: trees of 10 tokens, .*; k = 10$", err, re.MULTILINE)


@pytest.mark.parametrize("kind", ["feature", "model"])
def test_replayed_rounds_of_trees_are_those_of_the_decoding(learnt, kind):  # noqa: F811
    target, head, prompts = learnt

    def make():
        one = FeatureDrafter(head) if kind == "feature" else ModelDrafter(CachedModel(perturbed(target.model, 0.1)))
        return TreeDrafter(one, (3, 2, 1))

    assert len({one.n_accepted for one in replayed(target, make, prompts, make().n_tokens)}) > 2
