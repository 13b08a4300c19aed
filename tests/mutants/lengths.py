"""Bugs in drafts that choose: their length in every round, or which of two drafts."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from draft_models import NgramDrafter
from speclab.core.rounds import Draft
from speclab.drafts import lengths
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.lab import round_costs
from tests.mutants.bugs import mutant

FILE, HYBRID = "drafts/test_lengths", "drafts/test_hybrid"


@mutant(34, "every_token_that_is_drawn_is_handed_over", file=FILE)
def drops_the_token_after_which_it_stops() -> None:
    """does not hand over a drawn token that it is not sure of"""
    right = AutoLength.propose

    def propose(auto: AutoLength, k: int, uniforms: Tensor) -> Draft:
        draft = right(auto, k, uniforms)
        n = draft.tokens.shape[1] - 1
        if not auto._probabilities or n < 0 or auto._acceptance.given(auto._probabilities[-1]) > 0.6:
            return draft
        auto._n_drafted = n
        return Draft(draft.tokens[:, :n], draft.size - 1, None if draft.probs is None else draft.probs[:, :n])

    AutoLength.propose = propose


@mutant(35, "all_lengths_are_compared_since_costs_have_steps", "expectation_and_choice_are_the_definitions", file=FILE)
def looks_one_token_ahead() -> None:
    """goes on while the next token pays, as if costs had no steps"""

    def best_length(costs: RoundCosts, expected: Sequence[float], rate: float, first: int, last: int) -> int:
        n = first
        while n < last and expected[n + 1] - expected[n] > rate * (costs.seconds(n + 1) - costs.seconds(n)):
            n += 1
        return n

    lengths.best_length = best_length


@mutant(35, "acceptance_is_counted_for_tested_tokens_alone", file=FILE)
def counts_tokens_that_were_never_tested() -> None:
    """takes every drafted token that is not kept for a rejected one"""
    right = AutoLength.observe

    def observe(auto: AutoLength, n_accepted: int, committed: list[int]) -> None:
        for depth in range(n_accepted + 1, auto._n_drafted):
            auto._acceptance.add(False, depth, auto._probabilities[depth] if auto._probabilities else None)
        right(auto, n_accepted, committed)

    AutoLength.observe = observe


@mutant(35, "no_text_has_the_random_numbers_of_the_rounds_that_cost", file=FILE)
def measures_costs_by_the_random_numbers_of_a_text() -> None:
    """measures costs in rounds that have the uniforms of the text whose lengths they choose"""
    round_costs.OTHER_SEED = 0


@mutant(36, "the_model_proposes_what_it_would_have_proposed_alone", file=HYBRID)
def tells_the_model_only_of_its_own_rounds() -> None:
    """does not tell the model what was committed in the rounds of the lookup"""
    right = HybridDrafter.observe

    def observe(hybrid: HybridDrafter, n_accepted: int, committed: list[int]) -> None:
        drafter = hybrid.drafter
        if hybrid._found and not hybrid._n_drafted:
            hybrid.drafter = NgramDrafter()
        right(hybrid, n_accepted, committed)
        hybrid.drafter = drafter

    HybridDrafter.observe = observe


@mutant(36, "only_what_a_model_drew_has_probabilities", file=HYBRID)
def takes_a_lookups_tokens_for_drawn_ones() -> None:
    """hands over probabilities with the tokens of a lookup, as if they were drawn evenly"""
    right = HybridDrafter.propose

    def propose(hybrid: HybridDrafter, k: int, uniforms: Tensor) -> Draft:
        draft = right(hybrid, k, uniforms)
        return draft if draft.probs is not None else replace(draft, probs=torch.full((*draft.tokens.shape, 48), 1 / 48))

    HybridDrafter.propose = propose
