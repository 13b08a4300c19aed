"""Drafts whose finite weights have products that are not end a batch with the line that ends a single text."""

import pytest
import torch

from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import GREEDY, Sampling
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.drafters import BatchedModelDrafter, RowByRow
from speclab.extensions.batch.decoding.loops import speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.drafts.test_overflows import NOT_FINITE, drafter_of, model  # noqa: F401 - a fixture
from tests.heads import prompts
from tests.tiny_models import VOCAB, perturbed, tiny


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", ["rows", "all rows in one pass"])
def test_a_batch_says_so_too(model, way, temperature):  # noqa: F811
    target = CachedModel(model)
    target.hidden_layers = (0, 1)
    batched = BatchedModel(target, 2)
    if way == "all rows in one pass":
        draft = BatchedModel(CachedModel(perturbed(tiny("llama"), 0.1)), 2)
        right = draft.forward
        draft.forward = lambda *args, **how: right(*args, **how) * float("nan")
        drafter = BatchedModelDrafter(draft)
    else:
        drafter = RowByRow(drafter_of("feature", model), 2)
    settings = DecodeSettings(12, Sampling(temperature))
    requests = [Request(prompt[None], settings) for prompt in prompts(3)]
    with pytest.raises(EnvironmentProblem, match=NOT_FINITE):
        list(speculative_decode_batch(batched, drafter, requests, 3))


def test_rows_that_draft_nothing_are_not_asked(model):  # noqa: F811
    """What a pass over all rows makes of a row without a text, or without room, is no draft of it."""
    target = BatchedModel(CachedModel(model), 2)
    draft = BatchedModel(CachedModel(perturbed(tiny("llama"), 0.1)), 2)
    right = draft.forward

    def forward(tokens, **how):
        return torch.cat([right(tokens, **how)[:1], torch.full((1, tokens.shape[1], VOCAB), float("nan"))])

    drafter = BatchedModelDrafter(draft)
    drafter.start(target, GREEDY, 64)
    drafter.prefill(0, prompts(1), [3])
    draft.forward = forward
    found = drafter.propose([3, 0], torch.zeros(2, 3))
    assert found.size.tolist() == [3, 0]
    assert found.faults.tolist() == [0, 0]
    assert drafter.propose([1, 3], torch.zeros(2, 3)).faults.tolist() == [0, -1]
