"""Bugs in drafts that read the target's hidden states. The text stays right: only what is proposed tells."""

import torch
from torch import Tensor

from speclab.core.rounds import Target
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads import rollout
from speclab.drafts.heads.feature import FeatureHead
from speclab.models.cached import CachedModel
from tests.mutants.bugs import mutant

PROPOSALS = "proposals_are_the_definitions"
TRAINED = "a_trained_head_is_often_right_and_stays_in_step"
FILE = "drafts/test_feature"


@mutant(33, PROPOSALS, TRAINED, file=FILE)
def reads_the_states_of_rejected_tokens() -> None:
    """takes the last rows of a verification, rejected tokens' among them"""
    right = FeatureDrafter.observe

    def observe(drafter: FeatureDrafter, n_accepted: int, committed: list[int]) -> None:
        hidden = drafter._target.hidden
        drafter._target.hidden = lambda layers: hidden(layers)[:, -n_accepted - 1 :]
        try:
            right(drafter, n_accepted, committed)
        finally:
            del drafter._target.hidden

    FeatureDrafter.observe = observe


@mutant(33, PROPOSALS, TRAINED, file=FILE)
def never_reads_the_prompt() -> None:
    """starts with the last token of the prompt, as if nothing stood before it"""
    right = FeatureDrafter.prefill

    def prefill(drafter: FeatureDrafter, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        right(drafter, target, prompt, sampling)
        drafter._hidden, drafter._tokens = drafter._hidden[:, -1:], drafter._tokens[:, :0]

    FeatureDrafter.prefill = prefill


@mutant(33, PROPOSALS, TRAINED, file=FILE)
def pairs_a_state_with_its_own_token() -> None:
    """reads each state with the token that it belongs to, not with the one after it"""
    right = FeatureHead.project

    def project(head: FeatureHead, states: Tensor, tokens: Tensor, rotation: tuple[Tensor, Tensor]):
        if states.shape[1] > 1:
            tokens = tokens.roll(1, dims=1)
        return right(head, states, tokens, rotation)

    FeatureHead.project = project


@mutant(33, PROPOSALS, TRAINED, file=FILE)
def reads_one_layer_too_high() -> None:
    """reads the outputs of other layers than the head was trained on"""
    right = CachedModel.hidden
    CachedModel.hidden = lambda model, layers: right(model, tuple(layers)[::-1])


@mutant(33, PROPOSALS, file=FILE)
def puts_drafts_at_the_beginning() -> None:
    """leaves the queries and keys of a chain's further tokens at position 0"""
    right = FeatureHead.project

    def project(head: FeatureHead, states: Tensor, tokens: Tensor, rotation: tuple[Tensor, Tensor]):
        if states.shape[1] == 1:
            rotation = (torch.ones_like(rotation[0]), torch.zeros_like(rotation[1]))
        return right(head, states, tokens, rotation)

    FeatureHead.project = project


@mutant(33, "states_are_the_uncached_models", file="models/test_hidden")
def keeps_the_states_of_the_pass_before() -> None:
    """gives a draft the hidden states of the pass before the last one"""
    right, before = CachedModel.forward, {}

    def forward(model: CachedModel, tokens: Tensor) -> Tensor:
        before[id(model)] = dict(model._backend.hidden)
        logits = right(model, tokens)
        if all(
            old.shape == new.shape
            for old, new in zip(before[id(model)].values(), model._backend.hidden.values(), strict=True)
        ):
            model._backend.hidden = before[id(model)]
        return logits

    CachedModel.forward = forward


@mutant(33, "the_forecast_of_a_greedy_decoding_is_exact", file=FILE)
def forecasts_every_depth_like_the_first() -> None:
    """takes the acceptance of a chain's first token for that of all"""
    right = rollout.rollout

    def flat(head: FeatureHead, hidden: Tensor, tokens: Tensor, depth: int, starts: Tensor | None = None) -> list:
        positions, first = right(head, hidden, tokens, 1)[0]
        n = tokens.shape[1] - 1 - depth
        return [(positions[:n], first[:, step : step + n]) for step in range(depth)]

    rollout.rollout = flat
