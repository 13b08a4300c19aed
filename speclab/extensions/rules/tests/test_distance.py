"""The places that a rule has tested, and the laws of what was proposed there: the distance of a lossy rule rests on
them."""

import itertools
from unittest import mock

import pytest
import torch

import optimized_speculative
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.rules import rule_of
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.rules.distance import judged_places
from speclab.lab.instruments import LoopFunctions
from speclab.models.cached import CachedModel
from speclab.records.rows import RoundCounts
from tests.heads import tiny_head
from tests.tiny_models import tiny


def test_tested_places():
    """Prefill's token, then: 2 of 3 kept, all 2 kept and a bonus token, no draft, 0 of 3 kept behind the end. A round
    commits one token more than it accepts, so near the end it asks for at most one less than are left."""
    rounds = [RoundCounts(3, 2), RoundCounts(2, 2), RoundCounts(0, 0), RoundCounts(3, 0)]
    places = [(1, 0, 3), (1, 1, 3), (1, 2, 3), (4, 0, 3), (4, 1, 3), (8, 0, 1)]
    assert judged_places(rounds, 9, 3, 10) == places
    assert judged_places(rounds, 8, 3, 48) == places[:-1]
    assert [n for *_, n in judged_places([RoundCounts(1, 0)] * 4, 9, 3, 5)] == [3, 2, 1, 0]


@pytest.mark.parametrize("kind", ["model", "feature", "ngram"])
def test_laws_of_proposals_are_those_that_were_drawn_from(kind):
    """Recomputed without caches from the text and its rounds, at every tested place of a real decoding."""
    made = {
        "model": lambda: ModelDrafter(CachedModel(tiny("llama", seed=1))),
        "feature": lambda: FeatureDrafter(tiny_head()),
        "ngram": NgramDrafter,
    }
    drafter, target, sampling = made[kind](), CachedModel(tiny("llama")), Sampling(0.9, top_k=2 * (kind == "ngram"))
    target.hidden_layers, ids = (0, 1), [3, 5, 3, 5, 7, 3, 5] * 3
    functions = LoopFunctions(optimized_speculative.speculative_decode).judged_by(rule_of("lenient:0.5"))
    settings, kept, propose = optimized_speculative.DecodeSettings(48, sampling, seed=3), [], drafter.propose
    with mock.patch.object(drafter, "propose", lambda k, u: kept.append((k, propose(k, u))) or kept[-1][1]):
        rounds = list(functions.rounds(target, drafter, torch.tensor([ids]), 3, settings))
    tokens = [token for round_ in rounds for token in round_.tokens]
    pairs = [RoundCounts(round_.n_drafted, round_.n_accepted) for round_ in rounds if not round_.prefill]
    asked = judged_places(pairs, len(tokens), 3, 48)
    assert {depth for _, depth, _ in asked} >= {0, 1}
    law = drafter.law(target, ids, tokens, sampling, 3)
    places = itertools.accumulate(len(round_.tokens) for round_ in rounds[:-1])
    used = dict(zip(places, kept, strict=True))
    assert all(n == min(3, used[start][0]) for start, _, n in asked)
    found = law.drawn_from(asked)
    for (start, depth, _), row in zip(asked, found, strict=True):
        _, draft = used[start]
        if draft.probs is not None:
            assert torch.allclose(row, draft.probs[0, depth].to(row), atol=1e-6)
        else:
            assert row.argmax().item() == draft.tokens[0, depth].item()
            assert row.sum() == 1
