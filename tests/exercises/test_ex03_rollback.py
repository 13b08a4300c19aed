"""The checks of exercise 3: what stays in a cache after a round, and what the draft must be fed next."""

import random

import pytest
import torch
from torch import Tensor

VOCAB = 20
Layers = list[tuple[Tensor, Tensor]]


class Tiny:
    """A random transformer of a few attention layers that reads a cache and makes it longer. Weights from the seed."""

    def __init__(self, seed: int, n_layers: int, n_heads: int, head_dim: int):
        generator = torch.Generator().manual_seed(seed)
        width = n_heads * head_dim

        def rand(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64) / width**0.5

        self.n_heads, self.head_dim = n_heads, head_dim
        self.tokens, self.positions, self.head = rand(VOCAB, width), rand(64, width), rand(width, VOCAB)
        self.layers = [rand(width, 3 * width) for _ in range(n_layers)]

    def empty(self) -> Layers:
        nothing = torch.empty((1, self.n_heads, 0, self.head_dim), dtype=torch.float64)
        return [(nothing, nothing) for _ in self.layers]

    def forward(self, cache: Layers, ids: list[int]) -> tuple[Tensor, Layers]:
        """(fed ids, vocab) logits, and the cache with the keys and values of `ids` after its own"""
        held = cache[0][0].shape[2]
        hidden = self.tokens[ids] + self.positions[held : held + len(ids)]  # (m, width)
        mask = torch.ones(len(ids), held + len(ids), dtype=torch.bool).tril(held)
        longer = []
        for weights, (keys, values) in zip(self.layers, cache, strict=True):
            q, k, v = (
                x.unflatten(-1, (self.n_heads, -1)).transpose(0, 1)[None] for x in (hidden @ weights).chunk(3, -1)
            )
            keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
            scores = (q @ keys.transpose(2, 3)).masked_fill(~mask, -torch.inf)  # (1, heads, m, held + m)
            hidden = hidden + (scores.softmax(-1) @ values)[0].transpose(0, 1).flatten(1)
            longer.append((keys, values))
        return hidden @ self.head, longer

    def rebuilt(self, ids: list[int]) -> Layers:
        """The cache of `ids`, computed from scratch."""
        return self.forward(self.empty(), ids)[1]


# Two models of different shape: neither can use the other's keys and values.
TARGET = Tiny(seed=1, n_layers=3, n_heads=2, head_dim=4)
DRAFT = Tiny(seed=2, n_layers=2, n_heads=1, head_dim=6)
ONE_LAYER = Tiny(seed=3, n_layers=1, n_heads=2, head_dim=4)


def length(cache: Layers) -> int:
    return cache[0][0].shape[2]


def copied(cache: Layers) -> Layers:
    return [(keys.clone(), values.clone()) for keys, values in cache]


def not_a_cache(got: object, given: Layers) -> str:
    """What keeps `got` from being a list of pairs of tensors, one for each layer given; empty if it is one."""
    if not isinstance(got, list) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in got):
        return f"crop must return a list of (keys, values) tuples, you got {type(got).__name__} {str(got)[:40]!r}"
    if len(got) != len(given):
        return f"{len(given)} layers in, {len(got)} out: every layer keeps its own keys and values"
    if not all(isinstance(x, Tensor) for pair in got for x in pair):
        return "keys and values must stay tensors"
    return ""


# --- How much stays --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [4, 1, 0])
def test_what_the_target_keeps(learner, k):
    """The last committed token is never in the cache; the rejected drafts leave it."""
    before = 10  # tokens of the text before the round; the target held 9 and was fed the last one and k drafts
    for n_accepted in range(k + 1):
        cached, committed = before + k, before + n_accepted + 1
        got, right = learner.tokens_to_keep(cached, committed), committed - 1
        story = f"target, {k} drafted, {n_accepted} accepted: {cached} in its cache, {committed} committed; "
        story += f"keep {right}, you got {got}"
        if got == committed:
            story += ": the last committed token was not fed yet, so it has no position in the cache"
        elif got == cached:
            story += ": the rejected drafts are still in the cache"
        elif got == cached - 1:
            story += ": count from the text, not from the cache; all rejected drafts must go"
        elif got == before - 1:
            story += ": the accepted drafts stay, their keys and values are right"
        assert got == right, story


@pytest.mark.parametrize("k", [4, 2, 1, 0])
def test_what_the_draft_keeps(learner, k):
    """Its last draft was never fed to it, so after full acceptance the draft holds one token less than the target."""
    before = 10  # tokens of the text before the round; the draft held 9 and was fed the last one and k - 1 drafts
    for n_accepted in range(k + 1):
        cached, committed = before + k - 1, before + n_accepted + 1
        got, right = learner.tokens_to_keep(cached, committed), min(cached, committed - 1)
        story = f"draft, {k} drafted, {n_accepted} accepted: {cached} in its cache, {committed} committed; "
        story += f"keep {right}, you got {got}"
        if got is not None and got > cached:
            story += ": a cache cannot keep what it does not hold, and the draft's cache is not the target's"
        elif n_accepted == k and got == cached - 1:
            story += ": nothing was rejected, all that the draft holds is right"
        elif got == cached:
            story += ": the rejected drafts are still in the cache"
        elif got == committed:
            story += ": the last committed token was not fed yet, what stands there is a rejected draft"
        assert got == right, story


# --- What the draft is fed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [[11, 12, 13, 14, 15], [5, 5, 5, 5], [8, 3, 7, 0]])
def test_what_the_draft_is_fed_first(learner, text):
    """One token after a rejection, two after full acceptance, more after rounds that drafted nothing."""
    for n_missing in (1, 2, 3):
        n_cached = len(text) - n_missing
        got, right = learner.catch_up(list(text), n_cached), text[n_cached:]
        story = f"committed {text}, the first {n_cached} of them in the draft's cache; feed {right}, you got {got}"
        if got == text:
            story += ": that feeds again what the cache holds, and at the wrong positions"
        elif got == text[-1:]:
            story += ": the draft was never fed its own last draft, and now there is a hole in its cache"
        elif got == text[-2:] and n_missing == 1:
            story += ": only the last one is missing, the other would be in the cache twice"
        elif got == right[:-1]:
            story += ": the last committed token is missing, and the draft is to continue after it"
        assert got == right, story


# --- The crop --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [TARGET, DRAFT, ONE_LAYER], ids=["target", "draft", "one layer"])
def test_crop_equals_a_rebuilt_cache(learner, model):
    """The first n positions of every layer are what the model computes for the first n tokens from scratch."""
    ids = random.Random(3).choices(range(VOCAB), k=9)
    full = model.rebuilt(ids)
    for n in (9, 8, 5, 1, 0):
        got = learner.crop(full, n)
        wrong = not_a_cache(got, full)
        assert not wrong, wrong
        for layer, ((keys, values), right) in enumerate(zip(got, model.rebuilt(ids[:n]), strict=True)):
            for name, mine_, theirs in (("keys", keys, right[0]), ("values", values, right[1])):
                where = f"{name} of layer {layer}, cropped from 9 positions to {n}: "
                story = f"shape {tuple(theirs.shape)} is right, you got {tuple(mine_.shape)}"
                if mine_.shape == full[layer][0].shape:
                    story += "; nothing was cut off"
                assert mine_.shape == theirs.shape, where + story
                story = "not those of the first tokens"
                if n and torch.equal(mine_, full[layer][name == "values"][:, :, 9 - n :]):
                    story += "; you kept the last positions"
                elif any(torch.equal(mine_, x[:, :, :n]) for pair in full for x in pair):
                    story += "; they stand in another position of the cache: each layer has keys and values of its own"
                assert torch.allclose(mine_, theirs, rtol=0, atol=1e-12), where + story


def test_crop_refuses_what_is_not_there(learner):
    """n above the length, or below 0, raises ValueError; a slice alone would pass it over in silence."""
    cache = DRAFT.rebuilt([1, 2, 3, 4, 5])
    learner.crop(cache, 5)
    for n in (6, 50, -1):
        try:
            got = learner.crop(cache, n)
        except ValueError:
            continue
        wrong = not_a_cache(got, cache)
        assert not wrong, wrong
        pytest.fail(
            f"crop to {n} of 5 positions must raise ValueError, yours returned {length(got)} positions: a wrong length "
            "that nobody notices spoils every later token",
            pytrace=False,
        )


@pytest.mark.parametrize(("model", "n"), [(TARGET, 4), (TARGET, 6), (DRAFT, 4)], ids=["part", "all", "one head"])
def test_crop_shares_nothing(learner, model, n):
    """The cache that was given stays as it is, and what its owner writes later does not show in the cropped one."""
    given = model.rebuilt([3, 1, 4, 1, 5, 9])
    before = copied(given)
    got = learner.crop(given, n)
    wrong = not_a_cache(got, given)
    assert not wrong, wrong
    assert len(given) == len(before), f"the list given had {len(before)} layers, now it has {len(given)}"
    for layer, ((keys, values), (old_keys, old_values)) in enumerate(zip(given, before, strict=True)):
        for name, now, old in (("keys", keys, old_keys), ("values", values, old_values)):
            story = f"crop changed the {name} of layer {layer} that it was given; return new ones instead"
            assert now.shape == old.shape, story
            assert torch.equal(now, old), story
    kept = copied(got)
    for pair in given:
        for x in pair:
            x.fill_(torch.nan)  # the other owner goes on with its memory
    for layer, (pair, right) in enumerate(zip(got, kept, strict=True)):
        for name, now, old in (("keys", pair[0], right[0]), ("values", pair[1], right[1])):
            story = f"its owner wrote into the cache that was given, and your {name} of layer {layer} changed: "
            assert torch.equal(now, old), story + "a slice is a view of the same memory, one cache for two owners"


# --- Whole rounds ----------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_poisoned_slots_are_never_read(learner):
    """Rejected positions hold NaN; one of them left in the cache makes all later logits NaN."""
    text = [2, 7, 1, 8]
    for n in (4, 3, 1):
        cache = TARGET.rebuilt([*text[:n], 9, 9, 9])
        for keys, values in cache:
            keys[:, :, n:], values[:, :, n:] = torch.nan, torch.nan
        got = learner.crop(cache, n)
        wrong = not_a_cache(got, cache)
        assert not wrong, wrong
        logits = TARGET.forward(got, [5, 6])[0]
        story = f"{n} positions are good, 3 hold NaN: after crop(layers, {n}) the next pass gives NaN: it has read a "
        assert logits.isfinite().all(), story + "rejected position; a mask does not help, 0 x NaN is NaN"


@pytest.mark.whole
def test_both_caches_after_every_round(learner):
    """Rounds with every number of accepted drafts: each cache equals one that its own model rebuilds from the text."""
    dice = random.Random(5)
    text = [3, 14, 15]
    caches = {"target": TARGET.rebuilt(text[:-1]), "draft": DRAFT.rebuilt(text[:-1])}
    for k, n_accepted in ((3, 1), (3, 3), (3, 0), (2, 2), (1, 1), (4, 2), (3, 3), (0, 0), (0, 0), (2, 1), (1, 0)):
        now = f"after {len(text)} tokens, drafting {k}: "
        drafted = [dice.randrange(VOCAB) for _ in range(k)]
        if k:
            missing = learner.catch_up(list(text), length(caches["draft"]))
            held = text[: length(caches["draft"])]
            story = f"the draft's cache holds {held} and you feed {missing}; together they must be the text, {text}"
            assert [*held, *(missing or [])] == text, now + story
            for ids in (missing, *([token] for token in drafted[:-1])):
                caches["draft"] = DRAFT.forward(caches["draft"], ids)[1]
        caches["target"] = TARGET.forward(caches["target"], [text[-1], *drafted])[1]

        added = dice.randrange(VOCAB)
        text = [*text, *drafted[:n_accepted], added]
        for name, model in (("target", TARGET), ("draft", DRAFT)):
            keep = learner.tokens_to_keep(length(caches[name]), len(text))
            got = learner.crop(caches[name], keep)
            wrong = not_a_cache(got, caches[name])
            assert not wrong, wrong
            n = length(got)
            what = f"{now}{n_accepted} accepted, {len(text)} committed, the {name}'s cache holds {n}; "
            assert n < len(text), what + "the last committed token has not been fed to it"
            same = all(
                a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-9)
                for pair, right in zip(got, model.rebuilt(text[:n]), strict=True)
                for a, b in zip(pair, right, strict=True)
            )
            assert same, what + "that is not the cache of these tokens: a rejected draft, or a hole, is in it"
            caches[name] = got
        story = f"{now}the target holds {length(caches['target'])} tokens of {len(text)}; all but the last must stay"
        assert length(caches["target"]) == len(text) - 1, story
