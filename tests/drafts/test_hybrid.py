"""A lookup where it pays more, a model elsewhere: which one drafts, and that the other one keeps step."""

import copy

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.drafter import Drafter
from speclab.core.rounds import tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import USUAL, HybridDrafter, RightCounts
from speclab.drafts.lengths import AutoLength, RoundCosts, Tally
from speclab.drafts.suffix import SuffixDrafter
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds
from tests.heads import tiny_head
from tests.tiny_models import VOCAB, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1)).repeat(1, 2)
DEAR = RoundCosts((0.0, *[50.0] * 8), (1.0,) * 9)  # a model that never pays


def target_of() -> CachedModel:
    target = CachedModel(tiny("llama", dtype=torch.float64))
    target.hidden_layers = (0, 1)
    return target


def model_of(kind: str):
    if kind == "feature":
        return FeatureDrafter(tiny_head())
    return ModelDrafter(CachedModel(perturbed(tiny("llama", dtype=torch.float64), 0.1)))


class Scripted(NgramDrafter):
    """Finds the right text, or a wrong one, in the rounds that a script names; its match is as long as it says."""

    def __init__(self, text: list[int], script: list[str]):
        super().__init__()
        self.text, self.script, self.n = text, script, 0

    def __deepcopy__(self, memo):
        return type(self)(self.text, self.script)

    def lookup(self, k):
        what = self.script[self.n % len(self.script)]
        self.n += 1
        done = len(self._tokens) - PROMPT.shape[1]
        right = self.text[done : done + k]
        self.matched = 9
        return {"right": right, "wrong": [(t + 1) % VOCAB for t in right], "partly": [*right[:1], 0, 0], "no": []}[
            what
        ][:k]


class Kept(Drafter):
    """Keeps what its model proposes, and at which place of the text."""

    def __init__(self, drafter):
        self.drafter, self.proposed, self.n = drafter, {}, 0

    def prefill(self, target, prompt, sampling):
        self.n = 0
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k, uniforms):
        draft = self.drafter.propose(k, uniforms)
        self.proposed[self.n] = draft.tokens[0].tolist()
        return draft

    def observe(self, n_accepted, committed):
        self.n += len(committed)
        self.drafter.observe(n_accepted, committed)


@pytest.mark.parametrize("kind", ["model", "feature"])
@pytest.mark.parametrize("script", [["wrong", "wrong", "no"], ["partly", "no", "no"], ["right"] * 3 + ["no"]])
def test_the_model_proposes_what_it_would_have_proposed_alone(kind, script):
    """After rounds of the lookup it has caught up: at every place it says what a fresh one says there."""
    text = plain_text(target_of(), PROMPT, 40)
    kept = Kept(model_of(kind))
    hybrid = HybridDrafter(Scripted(text, script), kept)
    hybrid.costs[0.0] = DEAR
    rounds = list(speculative_rounds(target_of(), hybrid, PROMPT, 3, 40))
    assert tokens_of(rounds) == text
    assert 2 < len(kept.proposed) < len(rounds) - 2
    for place, proposed in list(kept.proposed.items())[:-1]:
        target, alone = target_of(), model_of(kind)
        ids = torch.cat([PROMPT, torch.tensor([text[: place - 1]], dtype=torch.long)], dim=1)
        target.prefill(ids)
        alone.prefill(target, ids, GREEDY)
        alone.observe(0, [text[place - 1]])
        assert alone.propose(3, torch.zeros(1, 3)).tokens[0].tolist()[: len(proposed)] == proposed


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_only_what_a_model_drew_has_probabilities(temperature):
    """A lookup's tokens are one-hot, also beside a model that samples."""
    text = plain_text(target_of(), PROMPT, 40)
    hybrid = HybridDrafter(Scripted(text, ["right", "no"]), model_of("model"))
    hybrid.costs[temperature] = DEAR
    hybrid.prefill(target_of(), PROMPT, Sampling(temperature))
    hybrid.observe(0, text[:1])
    by_lookup, by_model = (hybrid.propose(3, torch.full((1, 3), 0.5)) for _ in range(2))
    assert by_lookup.probs is None
    assert by_lookup.tokens[0].tolist() == text[1:4]
    assert (by_model.probs is None) == (temperature == 0)


def test_the_better_promise_drafts():
    """Sure matches beat a dear model, a cheap model that is always right beats doubtful ones."""
    lookup = NgramDrafter()
    hybrid = HybridDrafter(lookup, model_of("model"))
    hybrid.prefill(target_of(), PROMPT, GREEDY)
    lookup.matched = 6
    cheap = RoundCosts((0.0,) * 9, USUAL.rest)
    for costs, rate, pays in ((DEAR, 0.9, True), (cheap, 0.99, False), (USUAL, 0.1, True)):
        hybrid.costs[0.0] = costs
        hybrid._known.model.accepted, hybrid._known.model.tested = 1000 * rate, 1000
        assert hybrid._choose(4, 4) == 4 * pays
    lookup.matched = 1
    hybrid.costs[0.0] = USUAL
    hybrid._known.model.accepted = 700
    for right, pays in ((0.05, False), (0.95, True)):
        hybrid._known.matches[0].accepted, hybrid._known.matches[0].tested = 1000 * right, 1000
        assert hybrid._choose(4, 4) == 4 * pays


REST = (1.0, 1.06, 1.11, 1.16, 1.22, 1.30, 1.38, 1.45, 1.55)


@pytest.mark.parametrize(("rate", "best"), [(0.3, 2), (0.5, 3), (0.6, 4), (0.7, 4), (0.99, 8)])
def test_on_auto_a_lookup_is_drafted_as_far_as_it_pays(rate, best):
    """(1 + expected tokens) / seconds is highest there; with a length that is given all of it is drafted."""
    values = [sum(rate**i for i in range(m + 1)) / REST[m] for m in range(1, 9)]
    assert values.index(max(values)) + 1 == best
    for auto in (True, False):
        model = model_of("model")
        hybrid = HybridDrafter(NgramDrafter(), AutoLength(model) if auto else model)
        hybrid.costs[0.0] = RoundCosts(DEAR.draft, REST)
        hybrid.prefill(target_of(), PROMPT[:, :9].repeat(1, 3), GREEDY)
        hybrid.observe(0, [PROMPT[0, 0].item()])
        hybrid._known.matches = [Tally(rate) for _ in hybrid._known.matches]
        draft = hybrid.propose(8, torch.zeros(1, 8))
        assert hybrid._looked_up
        assert draft.tokens[0].tolist() == PROMPT[0, 1 : 1 + (best if auto else 8)].tolist()


@pytest.mark.parametrize(
    ("costs", "rate", "fixed", "on_auto"),
    [
        (RoundCosts((0.0, *[1.65] * 8), REST), 0.3, 0, 2),  # the whole lookup loses, its first two tokens win
        (RoundCosts((0.0, 0.1, *[50.0] * 7), REST), 0.3, 8, 0),  # the model wins with one token, and loses with eight
        (RoundCosts(DEAR.draft, (1.0,) * 9, (1.0, *[60.0] * 8)), 0.3, 0, 0),  # rounds of a lookup cost more
    ],
)
def test_on_auto_the_best_numbers_are_compared(costs, rate, fixed, on_auto):
    for auto, chosen in ((False, fixed), (True, on_auto)):
        model = model_of("model")
        hybrid = HybridDrafter(NgramDrafter(), AutoLength(model) if auto else model)
        hybrid.prefill(target_of(), PROMPT, GREEDY)
        hybrid.costs[0.0], hybrid.lookup.matched = costs, 6
        hybrid._known.matches[-1] = Tally(rate)
        assert hybrid._choose(8, 8) == chosen


def test_after_a_part_of_a_lookup_the_targets_own_token_is_counted_too():
    hybrid = HybridDrafter(NgramDrafter(), AutoLength(model_of("model")))
    hybrid.costs[0.0] = RoundCosts(DEAR.draft, REST)
    hybrid.prefill(target_of(), PROMPT[:, :9].repeat(1, 3), GREEDY)
    hybrid.observe(0, [PROMPT[0, 0].item()])
    tally = hybrid._known.matches[hybrid.lookup.longest - 1] = Tally(0.5)
    drafted = hybrid.propose(8, torch.zeros(1, 8)).tokens[0].tolist()
    assert len(drafted) == 3
    hybrid.observe(3, [*drafted, PROMPT[0, 4].item()])
    assert (tally.tested, tally.accepted) == (8 + 4, 4 + 4)


@pytest.mark.parametrize("auto", [False, True])
def test_a_model_without_room_promises_nothing(auto):
    """Where its context is full it drafts no more, and a doubtful match is better than none."""
    model = ModelDrafter(CachedModel(tiny("llama", dtype=torch.float64, max_position_embeddings=20)))
    hybrid = HybridDrafter(NgramDrafter(), AutoLength(model) if auto else model)
    hybrid.lookup.matched = 6
    hybrid.prefill(target_of(), PROMPT, GREEDY)
    hybrid.observe(0, PROMPT[0, :1].tolist())
    hybrid._known.matches = [Tally(0.5) for _ in hybrid._known.matches]
    assert hybrid._choose(4, 4) == 0
    hybrid.observe(0, PROMPT[0, 1:4].tolist())
    assert model.room == 0
    assert hybrid._choose(4, 4) in ((1, 2, 3) if auto else (4,))


def test_a_short_block_does_not_shorten_the_lookup():
    """Costs of its drafts end with its slots, those of a pass do not."""
    costs = RoundCosts((0.0, 0.3, 0.3, 0.3), tuple(1 + n / 50 for n in range(9)))
    assert costs.longest == 3
    hybrid = HybridDrafter(NgramDrafter(), model_of("model"))
    hybrid.prefill(target_of(), PROMPT, GREEDY)
    hybrid.costs[0.0], hybrid.lookup.matched = costs, 6
    hybrid._known.model, hybrid._known.matches[-1] = Tally(0.97), Tally(0.75)
    assert hybrid._choose(8, 8) == 8
    assert hybrid._choose(3, 8) == 0


def test_what_was_right_is_counted_where_it_belongs():
    text = plain_text(target_of(), PROMPT, 40)
    hybrid = HybridDrafter(Scripted(text, ["right", "wrong", "no"]), model_of("model"))
    hybrid.costs[0.0] = DEAR
    copied = copy.deepcopy(hybrid)
    rounds = list(speculative_rounds(target_of(), copied, PROMPT, 3, 40))
    known = hybrid.known[0.0]  # shared with the copy
    by_model = sum(r.n_accepted + r.n_rejected for r in rounds[3::3])  # the script's third round in turn
    assert known.model.tested - 8 == by_model
    by_lookup = sum(r.n_accepted + r.n_rejected for i, r in enumerate(rounds) if i % 3)
    assert known.matches[-1].tested - 8 == by_lookup
    assert copied.known is hybrid.known
    assert all(tally.tested == 8 for tally in known.matches[:-1])
    assert by_model > 0
    assert by_lookup > 0
    list(speculative_rounds(target_of(), copied, PROMPT, 3, 40, Sampling(0.9)))
    assert known.model.tested - 8 == by_model, "another temperature has counts of its own"
    assert hybrid.known.keys() == {0.0, 0.9}
    assert hybrid.known[0.9].matches[-1].tested > 8


def test_a_lookup_is_judged_in_the_rounds_of_the_model_too():
    """What it would have proposed there is compared with what was committed."""
    text = plain_text(target_of(), PROMPT, 40)
    hybrid = HybridDrafter(Scripted(text, ["right"]), model_of("model"))
    hybrid.costs[0.0] = RoundCosts((0.0,) * 9, (1.0,) * 9)
    hybrid.known[0.0] = known = RightCounts()
    known.model.accepted = 1000 * known.model.tested  # it is believed to be always right, and costs nothing
    rounds = list(speculative_rounds(target_of(), hybrid, PROMPT, 3, 40))
    assert sum(r.n_rejected for r in rounds) > 3, "the model drafted"
    assert known.matches[-1].tested > 20
    assert known.matches[-1].rate > 0.95


def test_parts_are_what_proposes():
    lookup, model = SuffixDrafter(), model_of("model")
    assert HybridDrafter(lookup, AutoLength(model)).parts == (lookup, model)
    assert AutoLength(model).parts == model.parts == (model,)
    auto = AutoLength(model)
    assert HybridDrafter(lookup, auto).costs is auto.costs
