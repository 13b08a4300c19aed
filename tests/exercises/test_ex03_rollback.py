"""The checks of exercise 3: what stays in a cache after a round, and what the draft must be fed next."""

import random
from types import ModuleType

import torch
from torch import Tensor

from tests.exercises.answers import asked

Layers = list[tuple[Tensor, Tensor]]
# Models of different shapes, (layers, heads, head_dim): none can use another's keys and values.
SHAPES = {"the target": (3, 2, 4), "the draft": (2, 1, 6), "one layer": (1, 2, 4)}


def rebuilt(model: str, ids: list[int], before: float = 0.0) -> Layers:
    """The cache of `ids` from scratch: keys and values of a position depend on all ids up to it. before: their sum."""
    n_layers, heads, width = SHAPES[model]
    shape = n_layers, 2, 1, heads, 1, width
    weights = torch.arange(1, 1 + 2 * n_layers * heads * width, dtype=torch.float64).view(shape)
    sums = before + torch.tensor(ids, dtype=torch.float64).add(1).cumsum(0)[:, None]  # (n, 1)
    return [tuple(weight * sums) for weight in weights]


def extended(model: str, cache: Layers, ids: list[int]) -> Layers:
    """The cache after a pass over `ids`."""
    before = float(cache[0][0][0, 0, -1, 0]) if length(cache) else 0.0
    pairs = zip(cache, rebuilt(model, ids, before), strict=True)
    return [tuple(torch.cat(both, dim=2) for both in zip(*pair, strict=True)) for pair in pairs]


def length(cache: Layers) -> int:
    return cache[0][0].shape[2]


def cropped(one: ModuleType, given: Layers, n: int) -> Layers:
    """A list of (keys, values), one for each layer given; ValueError where it has other lengths."""
    got = one.crop(given, n)
    return [(keys, values) for _, (keys, values) in zip(given, got, strict=True)]


def difference(got: Layers, right: Layers) -> str:
    """The first keys or values that are not the right ones; empty if all are."""
    for layer, pairs in enumerate(zip(got, right, strict=True)):
        for name, mine, theirs in zip(("keys", "values"), *pairs, strict=True):
            if mine.shape != theirs.shape:
                return f"the {name} of layer {layer} have the shape {tuple(mine.shape)}, not {tuple(theirs.shape)}"
            if not torch.allclose(mine, theirs, rtol=0, atol=1e-9):
                return f"the {name} of layer {layer} are other numbers"
    return ""


KEPT = "{} in the cache, {} committed, 10 before the round: so many stay"
DRAFTED = [(k, n) for k in (4, 2, 1, 0) for n in range(k + 1)]  # drafted, accepted


@asked([(10 + k, 11 + n) for k, n in DRAFTED], KEPT)
def test_what_the_target_keeps(one, *case):
    """tokens_to_keep: the last committed token is never in the cache; accepted drafts stay, rejected ones leave it."""
    return one.tokens_to_keep(*case)


@asked([(9 + k, 11 + n) for k, n in DRAFTED], KEPT)
def test_what_the_draft_keeps(one, *case):
    """tokens_to_keep: a draft was never fed its last drafted token, and a cache cannot keep what it does not hold."""
    return one.tokens_to_keep(*case)


TEXTS = [11, 12, 13, 14, 15], [5, 5, 5, 5], [8, 3, 7, 0]
HELD = [(text, len(text) - n_missing) for text in TEXTS for n_missing in (1, 2, 3)]


@asked(HELD, "committed {}, the first {} of them in the draft's cache: fed are", [text[n:] for text, n in HELD])
def test_what_the_draft_is_fed_first(one, text, n_cached):
    """catch_up: one token after a rejection, two after full acceptance, more after rounds that drafted nothing."""
    return one.catch_up(list(text), n_cached)


IDS = [6, 12, 7, 3, 19, 0, 4, 4, 11]
CROPS = [(name, n) for name in SHAPES for n in (9, 8, 5, 1, 0)]


@asked(CROPS, "{}, 9 positions cropped to {}: what is wrong", [""] * len(CROPS))
def test_crop_equals_a_rebuilt_cache(one, model, n):
    """crop: the first n positions of every layer are what the model computes for the first n tokens from scratch."""
    return difference(cropped(one, rebuilt(model, IDS), n), rebuilt(model, IDS[:n]))


@asked([(5,), (6,), (50,), (-1,)], "5 positions cropped to {}", ["5 positions", *["ValueError"] * 3])
def test_crop_refuses_what_is_not_there(one, n):
    """crop: n above the length, or below 0, raises ValueError; a slice alone would pass it over in silence."""
    try:
        return f"{length(cropped(one, rebuilt('the draft', [1, 2, 3, 4, 5]), n))} positions"
    except ValueError:
        return "ValueError"


@asked([("the target", 4), ("the target", 9), ("the draft", 4)], "{}, 9 positions cropped to {}", ["fine"] * 3)
def test_crop_shares_nothing(one, model, n):
    """crop: the given cache stays as it is; a slice is a view of the same memory, one cache for two owners."""
    given = rebuilt(model, IDS)
    got = cropped(one, given, n)
    for pair in given:
        for x in pair:
            x.fill_(torch.nan)  # the other owner goes on with its memory
    return "what its owner writes then shows in yours" if any(x.isnan().any() for p in got for x in p) else "fine"


@asked([(4,), (3,), (1,)], "{0} positions are good, 3 hold NaN; crop to {0}; the next pass reads", ["fine"] * 3)
def test_poisoned_slots_are_never_read(one, n):
    """crop: a rejected position leaves the cache; a mask does not help, 0 x NaN is NaN."""
    cache = rebuilt("the target", IDS[: n + 3])
    for keys, values in cache:
        keys[:, :, n:], values[:, :, n:] = torch.nan, torch.nan
    longer = extended("the target", cropped(one, cache, n), [5, 6])
    return "NaN" if any(x.isnan().any() for pair in longer for x in pair) else "fine"


ROUNDS = ((3, 1), (3, 3), (3, 0), (2, 2), (1, 1), (4, 2), (3, 3), (0, 0), (0, 0), (2, 1), (1, 0))  # drafted, accepted


@asked([()], "rounds with every number of accepted drafts: both caches are", ["those of the text"])
def test_both_caches_after_every_round(one):
    """crop, tokens_to_keep, catch_up: after every round each cache is the one that its model rebuilds from the text."""
    dice, text = random.Random(5), [3, 14, 15]
    target, draft = rebuilt("the target", text[:-1]), rebuilt("the draft", text[:-1])
    for k, n_accepted in ROUNDS:
        drafted = [dice.randrange(20) for _ in range(k)]
        if k:
            held, missing = text[: length(draft)], one.catch_up(list(text), length(draft))
            if [*held, *(missing or [])] != text:
                return f"not after {text}, where the draft's cache holds {held} and yours feeds {missing}"
            draft = extended("the draft", draft, [*missing, *drafted[:-1]])
        target = extended("the target", target, [text[-1], *drafted])
        text = [*text, *drafted[:n_accepted], dice.randrange(20)]
        target, draft = (cropped(one, c, one.tokens_to_keep(length(c), len(text))) for c in (target, draft))
        for name, cache in (("the target", target), ("the draft", draft)):
            n, most = length(cache), len(text) - 1
            if n > most or difference(cache, rebuilt(name, text[:n])) or (name == "the target" and n < most):
                return f"not {name}'s with {n} positions of {len(text)} tokens, {n_accepted} of {k} accepted"
    return "those of the text"
