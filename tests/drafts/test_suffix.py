"""Suffix decoding against a search through the whole text, and in the loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_models import NgramDrafter
from speclab.core.drafter import Lookup
from speclab.core.sampling import GREEDY
from speclab.drafts import registry
from speclab.drafts.suffix import DOUBT, SuffixDrafter
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from tests.tiny_models import VOCAB, tiny


def drafter_of(text: list[int], split: int, **options) -> SuffixDrafter:
    """It has read `split` tokens as the prompt, the others one by one."""
    drafter = SuffixDrafter(**options)
    drafter.prefill(None, torch.tensor([text[:split]]), GREEDY)
    for token in text[split:]:
        drafter.observe(0, [token])
    return drafter


def followers(text: list[int], end: list[int]) -> list[int]:
    """What followed each earlier occurrence of `end` in the text, in the order of the text."""
    n = len(end)
    return [text[i + n] for i in range(len(text) - n) if text[i : i + n] == end]


def by_search(text: list[int], k: int, depth: int, least: float) -> list[int]:
    """The definition: at every step the longest end that was followed by something in the text itself."""
    proposed, chance = [], 1.0
    while len(proposed) < k:
        so_far = [*text, *proposed]
        for n in range(min(depth - 1, len(so_far)), 0, -1):
            after = followers(text, so_far[-n:])
            if after:
                break
        else:
            break
        best = max(
            set(after), key=lambda token: (after.count(token), max(i for i, t in enumerate(after) if t == token))
        )
        chance *= after.count(best) / (len(after) + DOUBT / n)
        if chance < least:
            break
        proposed.append(best)
    return proposed


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 9), st.sampled_from([2, 3, 5, 32]), st.data()
)
def test_it_is_the_longest_match_and_its_commonest_followers(text, k, depth, data):
    split = data.draw(st.integers(1, len(text)))
    drafter = drafter_of(text, split, depth=depth, least=0.15)
    assert drafter.lookup(k) == by_search(text, k, depth, 0.15)
    longest = max((n for n in range(1, min(depth - 1, len(text)) + 1) if followers(text, text[-n:])), default=0)
    assert drafter.matched == longest


def test_ids_that_the_target_never_emits_are_not_proposed():
    """A prompt may have them where a target's embedding is larger than its output layer."""
    prompt = torch.tensor([[5, 6, 40, 7, 5, 6, 40, 7, 5, 6]])
    for drafter in (SuffixDrafter(least=0.01, n_ids=32), NgramDrafter(2, 1, n_ids=32)):
        drafter.prefill(None, prompt, GREEDY)
        assert drafter.lookup(4) == []
        drafter.observe(0, [40])
        assert drafter.lookup(4) == [7, 5, 6]


@pytest.mark.parametrize("kind", ["ngram", "suffix", "hybrid:ngram+model"])
def test_every_lookup_knows_the_targets_ids(kind, monkeypatch):
    model = tiny("llama")
    monkeypatch.setattr(Setup, "load_draft", lambda setup, name: CachedModel(model))
    drafter = registry.make(kind, Setup(CachedModel(model), None, "x", GREEDY, model.device, model.dtype))
    bounds = {part.n_ids for part in drafter.parts if isinstance(part, Lookup)}
    assert bounds == {VOCAB}
