"""What must hold of every draft, on both engines, greedy and sampled: text, counts, caches and copies.

A test of a draft calls `check` with a function that makes it. Its law is enumerated elsewhere: a `Case` of
tests/test_filtered_laws.py, for `assert_lossless`.
"""

import copy
import itertools
from collections.abc import Callable

import torch
from torch import nn

from speclab.core.drafter import Drafter
from speclab.core.rounds import Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds
from tests.models.test_caches import worst_difference
from tests.tiny_models import VOCAB, flattened, tiny

ENGINES = ("eager", "fast")
SAMPLINGS = (GREEDY, Sampling(0.9))
PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
N_NEW = 24
WAYS = tuple(itertools.product(ENGINES, SAMPLINGS))  # the ways of decoding that every draft is tried in

Make = Callable[[nn.Module, Callable[[nn.Module], CachedModel]], Drafter]
"""The target's model, and what puts a model on the engine -> the drafter. The model is a tiny llama in float64."""


def check(make: Make, engine: str, sampling: Sampling, k: int = 4, layers: tuple[int, ...] = ()) -> list[Round]:
    """Decode with a drafter and with a copy of it.  -> the rounds

    k: of the loop. layers: of the target, whose states the drafter reads.
    """

    def on_engine(model: nn.Module) -> CachedModel:
        return CachedModel(model, fast=flattened(model) if engine == "fast" else None)

    target = on_engine(tiny("llama"))
    target.hidden_layers = layers
    drafter = make(target.model, on_engine)
    k = drafter.lengths([k])[0]
    twin = copy.deepcopy(drafter)
    rounds = _decoded(target, drafter, k, sampling)
    if sampling.greedy:
        assert tokens_of(rounds) == plain_text(on_engine(target.model), PROMPT, N_NEW)
    assert _decoded(target, twin, k, sampling) == rounds, "a copy proposes the same, whatever the original has read"
    for model, other in zip(drafter.models, twin.models, strict=True):
        assert model is not other, "a copy has a cache of its own"
        assert model.model is other.model, "a copy shares the weights"
    assert _decoded(target, drafter, k, sampling, n_before=3) == rounds, "a new prompt drops what came before"
    return rounds


def _decoded(target: CachedModel, drafter: Drafter, k: int, sampling: Sampling, n_before: int = 0) -> list[Round]:
    """Decode the prompt, and look at counts and caches after every round. n_before: rounds of another text before."""
    other = PROMPT.flip(-1)
    for _ in itertools.islice(speculative_rounds(target, drafter, other, k, N_NEW, sampling), n_before):
        pass
    drafter.forget()
    ids, rounds = PROMPT[0].tolist(), []
    for round_ in speculative_rounds(target, drafter, PROMPT, k, N_NEW, sampling):
        left = N_NEW - (len(ids) - PROMPT.shape[1])
        assert len(round_.tokens) == round_.n_accepted + 1
        assert round_.n_accepted + round_.n_rejected <= round_.n_drafted <= k
        assert round_.n_rejected <= 1
        assert round_.n_accepted < left, "the last token of a round is the target's own"
        ids += round_.tokens
        rounds.append(round_)
        assert target.length == len(ids) - 1, "the last committed token is never in the cache"
        assert worst_difference(target, ids[:-1]) < 1e-10
        for model in drafter.models:
            assert model.length <= target.length, "a draft's cache holds a prefix of the target's"
            assert worst_difference(model, ids[: model.length]) < 1e-10
    assert len(ids) == PROMPT.shape[1] + N_NEW
    assert rounds[-1].finish == "length"
    assert target.n_passes == len(rounds), "one pass for the prompt and one for each round"
    return rounds
