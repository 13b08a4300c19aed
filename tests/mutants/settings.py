"""Bugs that show at a temperature other than 1, with both filters."""

from torch import Tensor

import draft_models
from speclab.core.rounds import Draft
from speclab.core.sampling import Drawn, Sampling
from speclab.drafts import feature as feature_module
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.lengths import AutoLength
from tests.mutants.bugs import mutant

LAW, FILE = "a_round_leaves_the_targets_law", "test_filtered_laws"


def unfiltered(sampling: Sampling) -> Sampling:
    """The same temperature, and every token."""
    return Sampling(sampling.temperature)


@mutant(34, f"{LAW}[feature auto]", file=FILE)
def head_drops_the_token_after_which_it_stops() -> None:
    """does not hand over the token of a feature head after which it stops"""
    right = FeatureDrafter.propose

    def propose(drafter: FeatureDrafter, k: int, uniforms: Tensor) -> Draft:
        stopped: list[bool] = []
        asked = drafter.keep_drafting
        if asked:
            drafter.keep_drafting = lambda probability: stopped.append(not asked(probability)) or not stopped[-1]
        draft = right(drafter, k, uniforms)
        n = draft.tokens.shape[1] - 1
        if not (stopped and stopped[-1]) or n < 0:
            return draft
        return Draft(draft.tokens[:, :n], draft.size - 1, None if draft.probs is None else draft.probs[:, :n])

    FeatureDrafter.propose = propose


@mutant(35, "what_lengths_are_chosen_by", file=FILE)
def asks_with_the_probability_at_temperature_1() -> None:
    """chooses a length by the draft's probability at temperature 1, before the filters"""

    def probability(logits: Tensor, drawn: Drawn) -> float:
        return logits.float().softmax(-1)[0, drawn.token[0]].item()

    draft_models.probability = feature_module.probability = probability


@mutant(35, "what_lengths_are_chosen_by", file=FILE)
def learns_for_all_temperatures_at_once() -> None:
    """counts what was accepted at one temperature for all"""
    right = AutoLength._begin

    def begin(auto: AutoLength, temperature: float) -> None:
        if auto.seen:
            auto.seen[temperature] = next(iter(auto.seen.values()))
        right(auto, temperature)

    AutoLength._begin = begin
