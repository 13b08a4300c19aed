"""Drafts whose finite weights have products that are not: every way of decoding with them ends with the same line."""

import copy

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.batch.drafters import BatchedModelDrafter, RowByRow
from speclab.batch.loops import speculative_decode_batch
from speclab.batch.rows import Request
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.block import BlockDrafter
from speclab.drafts.exit import ExitDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.trees.best import BestTreeDrafter
from speclab.drafts.trees.fixed import TreeDrafter
from speclab.drafts.trees.merged import MergedDrafter
from speclab.models.batched import BatchedModel
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.decoding import speculative_rounds
from tests.heads import prompts, tiny_adapter, tiny_block_head, tiny_head
from tests.tiny_models import VOCAB, perturbed, tiny

LARGE = 1.7e308
NOT_FINITE = "returned logits that are not finite"


@pytest.fixture(scope="module")
def model():
    return tiny("llama", num_hidden_layers=3)


def overflowing(head):
    """This gives the head finite weights in its last norm whose products are infinite."""
    with torch.no_grad():
        head.norm.weight.fill_(LARGE)
    return head


class LateOverflow(CachedModel):
    """The logits of this draft model are numbers after a prompt, and not later."""

    def forward(self, *args):
        return super().forward(*args) * float("nan")


def drafter_of(kind, model):
    if kind == "feature":
        return FeatureDrafter(overflowing(tiny_head()))
    if kind == "block":
        return BlockDrafter(overflowing(tiny_block_head(model, markov_rank=3)))
    if kind == "exit":
        return ExitDrafter(overflowing(tiny_adapter(model, 2)))
    return ModelDrafter(LateOverflow(perturbed(tiny("llama"), 0.1)))


def with_costs(drafter, costs):
    """This makes the drafter choose by these costs, at every temperature here."""
    drafter.costs.update(dict.fromkeys((0.0, 0.8), costs))
    return drafter


LENGTHS = RoundCosts(tuple(n / 100 for n in range(9)), tuple(1 + n / 100 for n in range(9)))
WAYS = {
    "alone": lambda drafter: drafter,
    "hybrid": lambda drafter: HybridDrafter(NgramDrafter(), drafter),
    "auto": lambda drafter: with_costs(AutoLength(drafter), LENGTHS),
    "tree": lambda drafter: TreeDrafter(drafter, (2, 2)),
    "sampled-tree": lambda drafter: TreeDrafter(drafter, (2, 2), sampled=True),
    "best": BestTreeDrafter,
    "merged": lambda drafter: MergedDrafter([NgramDrafter(), drafter]),
}
NO_TREES = ("alone", "hybrid", "auto")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["feature", "block", "exit", "model"])
def test_every_way_of_drafting_says_that_logits_are_not_finite(model, kind, way, temperature):
    if kind == "exit" and way not in NO_TREES:
        return  # it is a chain
    target = CachedModel(model)
    drafter = WAYS[way](drafter_of(kind, model))
    target.hidden_layers = (0, 1)
    generator = torch.Generator().manual_seed(1)
    with pytest.raises(EnvironmentProblem, match=NOT_FINITE):
        list(speculative_rounds(target, drafter, prompts(1), 3, 30, Sampling(temperature), generator))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", ["rows", "tree", "all rows in one pass"])
def test_a_batch_says_so_too(model, way, temperature):
    target = CachedModel(model)
    target.hidden_layers = (0, 1)
    batched = BatchedModel(target, 2)
    if way == "all rows in one pass":
        draft = BatchedModel(CachedModel(perturbed(tiny("llama"), 0.1)), 2)
        right = draft.forward
        draft.forward = lambda *args: right(*args) * float("nan")
        drafter = BatchedModelDrafter(draft)
    else:
        one = drafter_of("feature", model)
        drafter = RowByRow(TreeDrafter(one, (2, 2)) if way == "tree" else one, 2)
    settings = DecodeSettings(12, Sampling(temperature))
    requests = [Request(prompt[None], settings) for prompt in prompts(3)]
    with pytest.raises(EnvironmentProblem, match=NOT_FINITE):
        list(speculative_decode_batch(batched, drafter, requests, 3))


def test_rows_that_draft_nothing_are_not_asked(model):
    """What a pass over all rows makes of a row without a text, or without room, is no draft of it."""
    target = BatchedModel(CachedModel(model), 2)
    draft = BatchedModel(CachedModel(perturbed(tiny("llama"), 0.1)), 2)
    right = draft.forward

    def forward(tokens):
        return torch.cat([right(tokens)[:1], torch.full((1, tokens.shape[1], VOCAB), float("nan"))])

    drafter = BatchedModelDrafter(draft)
    drafter.start(target, GREEDY, 64)
    drafter.prefill(0, prompts(1), [3])
    draft.forward = forward
    found = drafter.propose([3, 0], torch.zeros(2, 3))
    assert found.size.tolist() == [3, 0]
    assert found.faults.tolist() == [0, 0]
    assert drafter.propose([1, 3], torch.zeros(2, 3)).faults.tolist() == [0, -1]


def test_a_damaged_row_is_told_apart(model):
    good, bad = FeatureDrafter(tiny_head()), drafter_of("feature", model)
    assert copy.deepcopy(bad).head is bad.head
    target = CachedModel(model)
    target.hidden_layers = (0, 1)
    for drafter, faults in ((good, 0), (bad, -1)):
        target.prefill(prompts(1))
        drafter.prefill(target, prompts(1), GREEDY)
        drafter.observe(0, [3])
        draft = drafter.propose(3, torch.zeros(1, 3))
        assert draft.faults.tolist() == [faults]
        assert int(draft.tokens.min()) >= 0, "what goes into a pass is an id"
