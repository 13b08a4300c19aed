"""A lookup where it pays more, a model elsewhere: which one drafts, and that the other one keeps step."""

import copy

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.rounds import tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import USUAL, HybridDrafter
from speclab.drafts.lengths import WEIGHT, AutoLength, RoundCosts, Tally
from speclab.drafts.suffix import SuffixDrafter
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds
from tests.heads import keeping, tiny_head
from tests.tiny_models import VOCAB, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1)).repeat(1, 2)
DEAR = RoundCosts((0.0, *[50.0] * 8), (1.0,) * 9)  # a model that never pays


def target_of() -> CachedModel:
    target = CachedModel(tiny("llama", dtype=torch.float64))
    target.hidden_layers = (0, 1)
    return target


def model_of(kind: str = "model"):
    if kind == "feature":
        return keeping(FeatureDrafter)(tiny_head())
    return keeping(ModelDrafter)(CachedModel(perturbed(tiny("llama", dtype=torch.float64), 0.1)))


class Scripted(NgramDrafter):
    """Finds the right text, or a wrong one, in the rounds that a script names; its match is as long as it says."""

    def __init__(self, text: list[int], script: list[str]):
        super().__init__()
        self.text, self.script, self.n = text, script, 0

    def __deepcopy__(self, memo):
        return type(self)(self.text, self.script)

    def lookup(self, k):
        what = self.script[self.n % len(self.script)]
        self.n, self.matched = self.n + 1, 9
        done = len(self._tokens) - PROMPT.shape[1]
        right = self.text[done : done + k]
        wrong = [(token + 1) % VOCAB for token in right]
        return {"right": right, "wrong": wrong, "partly": [*right[:1], 0, 0], "no": []}[what][:k]


def hybrid_of(costs: RoundCosts, auto: bool = False, model=None) -> HybridDrafter:
    """A hybrid that has read the prompt, with these costs at temperature 0."""
    model = model or model_of()
    hybrid = HybridDrafter(NgramDrafter(), AutoLength(model) if auto else model)
    hybrid.costs[0.0] = costs
    hybrid.prefill(target_of(), PROMPT, GREEDY)
    return hybrid


def guess(hybrid: HybridDrafter, model: float | None = None, match: float | None = None) -> None:
    """Let it expect this acceptance at all depths of the model, and after all matches."""
    seen = hybrid.drafter.acceptance
    seen.depths = [Tally(model) for _ in seen.depths] if model is not None else seen.depths
    seen.matches = [Tally(match) for _ in seen.matches] if match is not None else seen.matches


@pytest.mark.parametrize("kind", ["model", "feature"])
@pytest.mark.parametrize("script", [["wrong", "wrong", "no"], ["partly", "no", "no"], ["right"] * 3 + ["no"]])
def test_the_model_proposes_what_it_would_have_proposed_alone(kind, script):
    """After rounds of the lookup it has caught up: at every place it says what a fresh one says there."""
    text = plain_text(target_of(), PROMPT, 40)
    model = model_of(kind)
    hybrid = HybridDrafter(Scripted(text, script), model)
    hybrid.costs[0.0] = DEAR
    rounds = list(speculative_rounds(target_of(), hybrid, PROMPT, 3, 40))
    assert tokens_of(rounds) == text
    assert 2 < len(model.proposed) < len(rounds) - 2
    for so_far, draft in model.proposed[:-1]:
        target, alone, ids = target_of(), model_of(kind), torch.tensor([so_far[:-1]])
        target.prefill(ids)
        alone.prefill(target, ids, GREEDY)
        alone.observe(0, so_far[-1:])
        found, again = draft.tokens[0].tolist(), alone.propose(3, torch.zeros(1, 3)).tokens[0].tolist()
        assert again[: len(found)] == found


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_only_what_a_model_drew_has_probabilities(temperature):
    """A lookup's tokens are one-hot, also beside a model that samples."""
    text = plain_text(target_of(), PROMPT, 40)
    hybrid = HybridDrafter(Scripted(text, ["right", "no"]), model_of())
    hybrid.costs[temperature] = DEAR
    hybrid.prefill(target_of(), PROMPT, Sampling(temperature))
    hybrid.observe(0, text[:1])
    by_lookup, by_model = (hybrid.propose(3, torch.full((1, 3), 0.5)) for _ in range(2))
    assert by_lookup.probs is None
    assert by_lookup.tokens[0].tolist() == text[1:4]
    assert (by_model.probs is None) == (temperature == 0)


REST = (1.0, 1.06, 1.11, 1.16, 1.22, 1.30, 1.38, 1.45, 1.55)
CHEAP = RoundCosts((0.0,) * 9, USUAL.rest)
SHORT = RoundCosts((0.0, 0.3, 0.3, 0.3), tuple(1 + n / 50 for n in range(9)))  # costs of a block end with its slots
CHOICES = [  # costs, acceptance of the model and after matches, k; what is chosen of as many as 8, and on auto
    (DEAR, 0.9, 0.9, 4, 4, 4),  # sure matches beat a dear model
    (CHEAP, 0.99, 0.9, 4, 0, 0),  # a cheap one that is always right beats doubtful ones
    (USUAL, 0.1, 0.9, 4, 4, 4),
    (USUAL, 0.7, 0.05, 4, 0, 0),
    (RoundCosts((0.0, *[1.65] * 8), REST), 0.7, 0.3, 8, 0, 2),  # the whole lookup loses, its first two tokens win
    (RoundCosts((0.0, 0.1, *[50.0] * 7), REST), 0.7, 0.3, 8, 8, 0),  # the model wins with one token, loses with eight
    (SHORT, 0.97, 0.75, 8, 8, 8),
]


@pytest.mark.parametrize(("costs", "model", "match", "k", "fixed", "on_auto"), CHOICES)
def test_the_better_promise_drafts(costs, model, match, k, fixed, on_auto):
    for auto, chosen in ((False, fixed), (True, on_auto)):
        hybrid = hybrid_of(costs, auto=auto)
        guess(hybrid, model, match)
        hybrid.lookup.matched = 6
        assert hybrid._choose(k, k) == chosen


@pytest.mark.parametrize("auto", [False, True])
def test_a_model_without_room_promises_nothing(auto):
    """Where its context is full it drafts no more, and a doubtful match is better than none."""
    model = ModelDrafter(CachedModel(tiny("llama", dtype=torch.float64, max_position_embeddings=20)))
    hybrid = hybrid_of(USUAL, auto=auto, model=model)
    hybrid.lookup.matched = 6
    hybrid.observe(0, PROMPT[0, :1].tolist())
    guess(hybrid, match=0.5)
    assert hybrid._choose(4, 4) == 0
    hybrid.observe(0, PROMPT[0, 1:4].tolist())
    assert model.room == 0
    assert hybrid._choose(4, 4) in ((1, 2, 3) if auto else (4,))


def test_what_was_right_is_counted_where_it_belongs(monkeypatch):
    """A lookup's tokens also in the model's rounds, and up to the first wrong one."""
    text = plain_text(target_of(), PROMPT, 40)
    hybrid = HybridDrafter(Scripted(text, ["right", "wrong", "no"]), model_of())
    hybrid.costs[0.0] = DEAR
    copied = copy.deepcopy(hybrid)
    rounds = list(speculative_rounds(target_of(), copied, PROMPT, 3, 40))
    seen = hybrid.drafter.seen[0.0]  # shared with the copy
    by_model = sum(r.n_accepted + r.n_rejected for r in rounds[3::3])  # the script's third round in turn
    assert sum(tally.tested - WEIGHT for tally in seen.depths) == by_model > 0
    by_lookup = sum(r.n_accepted + r.n_rejected for i, r in enumerate(rounds) if i % 3)
    assert seen.matches[-1].tested - WEIGHT == by_lookup > 0
    assert all(tally.tested == WEIGHT for tally in [*seen.matches[:-1], *seen.ranges])
    list(speculative_rounds(target_of(), copied, PROMPT, 3, 40, Sampling(0.9)))
    assert sum(tally.tested - WEIGHT for tally in seen.depths) == by_model, "another temperature has its own counts"
    assert hybrid.drafter.seen.keys() == {0.0, 0.9}
    free = HybridDrafter(Scripted(text, ["right"]), model_of())
    monkeypatch.setattr(free, "_choose", lambda n, k: 0)
    rounds = list(speculative_rounds(target_of(), free, PROMPT, 3, 40))
    assert sum(r.n_rejected for r in rounds) > 3, "the model drafted"
    assert free.drafter.seen[0.0].matches[-1].rate > 0.95


def test_parts_and_costs_are_those_inside():
    lookup, auto = SuffixDrafter(), AutoLength(model_of())
    hybrid = HybridDrafter(lookup, auto)
    assert hybrid.parts == (lookup, auto.drafter)
    assert hybrid.costs is auto.costs
    assert HybridDrafter(lookup, auto.drafter).with_draft(AutoLength).drafter.chooses_length
    hybrid.costs[0.0] = DEAR
    hybrid.forget()
    assert not auto.seen
    assert auto.costs == {0.0: DEAR}
