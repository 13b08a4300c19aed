"""Drafts whose finite weights have products that are not: every way of decoding with them ends with the same line."""

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.decoding import speculative_rounds
from tests.heads import prompts, tiny_head
from tests.tiny_models import perturbed, tiny

LARGE = 1.7e308
NOT_FINITE = "returned logits that are not finite"


@pytest.fixture(scope="module")
def model():
    return tiny("llama", num_hidden_layers=3)


def overflowing(head):
    """This gives the head finite weights in its last norm whose products are infinite."""
    with torch.no_grad():
        head.norm.weight.fill_(LARGE)
    return head


class LateOverflow(CachedModel):
    """The logits of this draft model are numbers after a prompt, and not later."""

    def forward(self, *args):
        return super().forward(*args) * float("nan")


def drafter_of(kind, model):
    if kind == "feature":
        return FeatureDrafter(overflowing(tiny_head()))
    return ModelDrafter(LateOverflow(perturbed(tiny("llama"), 0.1)))


def with_costs(drafter, costs):
    """This makes the drafter choose by these costs, at every temperature here."""
    drafter.costs.update(dict.fromkeys((0.0, 0.8), costs))
    return drafter


LENGTHS = RoundCosts(tuple(n / 100 for n in range(9)), tuple(1 + n / 100 for n in range(9)))
WAYS = {
    "alone": lambda drafter: drafter,
    "hybrid": lambda drafter: HybridDrafter(NgramDrafter(), drafter),
    "auto": lambda drafter: with_costs(AutoLength(drafter), LENGTHS),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["feature", "model"])
def test_every_way_of_drafting_says_that_logits_are_not_finite(model, kind, way, temperature):
    check_it_is_said(model, WAYS[way](drafter_of(kind, model)), temperature)


def check_it_is_said(model, drafter, temperature):
    """A decoding with this drafter ends with the line that names the cause."""
    target = CachedModel(model)
    target.hidden_layers = (0, 1)
    with pytest.raises(EnvironmentProblem, match=NOT_FINITE):
        list(speculative_rounds(target, drafter, prompts(1), 3, 30, Sampling(temperature), seed=1))
