"""Kinds of rotary and learned positions: up to the limit that is found for it every text is right, and no further."""

import functools

import pytest
import torch

from draft_models import ModelDrafter
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds
from tests.tiny_models import DTYPE_ON, VOCAB, on_engine, perturbed, tiny

BORDER, NAMED = 24, 40
ORIGINAL = {"original_max_position_embeddings": BORDER}
KINDS = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, **ORIGINAL},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "longrope": {"factor": 2.0, "short_factor": [1.0] * 4, "long_factor": [3.0] * 4, **ORIGINAL},
}
LIMIT = dict.fromkeys(KINDS, NAMED) | {"longrope": BORDER, "learned": NAMED}
GRID = [(kind, engine) for kind in LIMIT for engine in DTYPE_ON]
CHANGES = ("dynamic", "longrope")  # factors of all positions, behind the limit
PROMPT = torch.randint(0, VOCAB, (1, 6), generator=torch.Generator().manual_seed(3))


@functools.cache
def model_of(kind: str, dtype: torch.dtype = torch.float64):
    if kind == "learned":
        return tiny("gpt2", dtype=dtype, n_positions=NAMED)
    rope = {"rope_type": kind, "rope_theta": 1e4, **KINDS[kind]}
    return tiny("llama", dtype=dtype, rope_parameters=rope, max_position_embeddings=NAMED)


def uncached(kind: str, n_tokens: int) -> list[int]:
    """The most probable continuation, every token from a pass over the whole text."""
    ids = PROMPT
    with torch.inference_mode():
        for _ in range(n_tokens):
            ids = torch.cat([ids, model_of(kind)(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], dim=1)
    return ids[0, PROMPT.shape[1] :].tolist()


@pytest.mark.parametrize("kind", LIMIT)
def test_the_limit_is_where_the_factors_change(kind):
    """The reason stands beside the limit where a longer text would change what the cache holds, and only there."""
    room, limit = CachedModel(model_of(kind)).room, LIMIT[kind]
    assert room.text == limit
    assert (room.rope == kind) == bool(room.reason) == (kind in CHANGES)
    ids = torch.randint(0, VOCAB, (1, limit + 1), generator=torch.Generator().manual_seed(1))
    model = CachedModel(model_of(kind))

    def gap(n: int) -> float:
        """Between the cached and the uncached logits of the last of n tokens."""
        model.prefill(ids[:, : n - 3])
        with torch.inference_mode():
            right = model_of(kind)(input_ids=ids[:, :n], use_cache=False).logits[0, -1]
        return (model.forward(ids[:, n - 3 : n])[0, -1] - right).abs().max().item()

    assert gap(limit) < 1e-9
    if kind != "learned":  # which has no row for one more
        assert (gap(limit + 1) > 1e-3) == (kind in CHANGES)


def pair_of(kind: str, engine: str) -> tuple[CachedModel, CachedModel]:
    model = model_of(kind, DTYPE_ON[engine])
    target, draft = (CachedModel(part, fast=on_engine(engine, part)) for part in (model, perturbed(model, 0.1)))
    return target, draft


@pytest.mark.parametrize(("kind", "engine"), GRID)
def test_texts_up_to_the_limit_are_those_of_uncached_passes(kind, engine):
    check_texts_up_to_the_limit(kind, engine, ModelDrafter)


def check_texts_up_to_the_limit(kind, engine, make_drafter):
    """Plain text and the one with a drafter around the draft model are those of uncached passes."""
    n_tokens, (target, draft) = LIMIT[kind] - PROMPT.shape[1], pair_of(kind, engine)
    right = uncached(kind, n_tokens)
    assert plain_text(target, PROMPT, n_tokens) == right
    rounds = speculative_rounds(target, make_drafter(draft), PROMPT, 4, n_tokens)
    assert [token for round_ in rounds for token in round_.tokens] == right
