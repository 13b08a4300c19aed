"""Kinds of rotary and learned positions: in a batch, too, every text is right up to the limit."""

import pytest

from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.drafters import BatchedModelDrafter
from speclab.extensions.batch.decoding.loops import speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from tests.decoding import settings
from tests.models.test_rope import LIMIT, PROMPT, pair_of, uncached


@pytest.mark.parametrize(("kind", "engine"), [("dynamic", "eager"), ("learned", "eager"), ("longrope", "c")])
def test_texts_up_to_the_limit_are_those_of_uncached_passes(kind, engine):
    """Padding behind the last position must not count as a longer text."""
    n_tokens = LIMIT[kind] - PROMPT.shape[1]
    target, draft = pair_of(kind, engine)
    requests = [Request(ids, settings(n_tokens)) for ids in (PROMPT[:, :2], PROMPT)]
    found: list[list[int]] = [[], []]
    batch = BatchedModel(target, 2), BatchedModelDrafter(BatchedModel(draft, 2))
    for number, round_ in speculative_decode_batch(*batch, requests, 4):
        found[number] += round_.tokens
    assert found[1] == uncached(kind, n_tokens)
