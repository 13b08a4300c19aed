"""Trees on every engine, and up to the last position: the same text."""

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.engines.cuda.cuda_graphs import GraphedModel
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.fixed import TreeDrafter
from speclab.extensions.trees.merged import MergedDrafter
from speclab.lab.bench import Bench
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.records.rows import BASELINE, Arm
from tests.decoding import speculative_rounds
from tests.models.test_cuda_graphs import measured_on_graphs, setup_of
from tests.models.test_rope import GRID, check_texts_up_to_the_limit
from tests.recorder import graphed, stand_in
from tests.test_cuda import N_NEW, PROMPT, exact_products  # noqa: F401 - a fixture
from tests.tiny_models import VOCAB, perturbed, tiny


@pytest.mark.parametrize(("kind", "engine"), GRID)
def test_texts_up_to_the_limit_of_positions_are_those_of_uncached_passes(kind, engine):
    check_texts_up_to_the_limit(kind, engine, lambda draft: TreeDrafter(ModelDrafter(draft), (2, 1, 1)))


def test_no_graph_is_recorded_in_a_timed_turn_with_trees(monkeypatch):
    """Levels are wider than chains, and trees have rules of their own."""
    stand_in(monkeypatch)
    draft = graphed(noise=0.1)
    drafters = {
        "tree": TreeDrafter(ModelDrafter(draft), (2, 3, 1), sampled=True),
        "best": BestTreeDrafter(ModelDrafter(draft)),
        "merged": MergedDrafter([NgramDrafter(3, 1), ModelDrafter(draft)]),
    }
    bench = Bench(setup_of(graphed(), Sampling(top_k=19)), drafters, 24, seed=0)
    arms = [BASELINE, *(Arm(name, name, {"tree": 14, "best": 6, "merged": 8}[name]) for name in drafters)]
    prompts = [Prompt("code", "", torch.randint(0, VOCAB, (1, n))) for n in (9,)]
    instruments = {arm.draft: [0, 3, arm.draft_length] for arm in arms[1:]}
    found, n_late = measured_on_graphs(bench, arms, prompts, instruments)
    assert len(found.lines) == 2 * (len(arms) + 1)
    assert n_late == 0


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("fast", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("family", ["llama", "mistral_window", "gemma3_window"])
def test_trees_in_bfloat16(family, fast):
    """Passes over eight tokens after texts of every length: no kernel refuses a mask because of where it begins."""
    model = tiny(family, dtype=torch.bfloat16).cuda()
    target, draft = (CachedModel(m, fast=GraphedModel(m) if fast else None) for m in (model, perturbed(model, 0.1)))
    tree = TreeDrafter(ModelDrafter(draft), (2, 2, 1))
    rounds = list(speculative_rounds(target, tree, PROMPT.cuda(), tree.n_tokens, 8 * N_NEW))
    assert len(tokens_of(rounds)) == 8 * N_NEW
    assert any(r.n_accepted > 1 for r in rounds)
