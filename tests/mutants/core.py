"""Bugs in the rest of speclab/core: probabilities, draws, rounds and counts."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from speclab.core import accept as accept_module
from speclab.core import sampling as sampling_module
from speclab.core.counts import Counts
from speclab.core.rounds import DecodeSettings, Round
from speclab.core.sampling import NOT_FINITE, Sampling, draw
from tests.mutants.bugs import mutant

# ---------------------------------------------------------------- probabilities and draws


def change_draw(wrong: Callable[[Tensor, Tensor], Tensor]) -> None:
    """`draw` is used where it is defined and in the accept rule."""
    sampling_module.draw = accept_module.draw = wrong


@mutant(
    13,
    "token_id_zero_can_be_drawn",
    "token_id_zero_is_a_token_like_any_other",
    raises="EnvironmentProblem",
)
def takes_id_0_for_a_failed_draw() -> None:
    """takes a drawn id 0 for a failed draw"""

    def wrong(weights: Tensor, uniforms: Tensor) -> Tensor:
        token = draw(weights, uniforms)
        return torch.where(token > 0, token, NOT_FINITE)

    change_draw(wrong)


@mutant(22, "token_of_weight_zero_is_never_drawn", "token_of_target_probability_zero_is_never_kept")
def draws_a_first_id_of_weight_0() -> None:
    """draws the first id, whatever its weight, where u is 0"""
    change_draw(lambda weights, uniforms: torch.where(uniforms == 0, 0, draw(weights, uniforms)))


@mutant(14, "nucleus_keeps_the_crossing_token", "kept_mass_reaches_top_p")
def drops_the_crossing_token() -> None:
    """keeps tokens while the mass with them is at most top_p"""
    right = Sampling.probs

    def probs(sampling: Sampling, logits: Tensor) -> Tensor:
        if sampling.greedy or sampling.top_p == 1:
            return right(sampling, logits)
        ordered, order = right(dataclasses.replace(sampling, top_p=1.0), logits).sort(dim=-1, descending=True)
        beyond = ordered.cumsum(-1) > sampling.top_p
        beyond[..., 0] = False
        kept = torch.zeros_like(ordered).scatter(-1, order, ordered.masked_fill(beyond, 0.0))
        return kept / kept.sum(-1, keepdim=True)

    Sampling.probs = probs


# ---------------------------------------------------------------- where the text ends


@mutant(13, "token_id_zero_is_a_token_like_any_other")
def ends_the_text_at_id_0() -> None:
    """ends the text at id 0"""
    right = Round.committing

    def committing(tokens: list[int], n_new: int, settings: DecodeSettings, *more, **others) -> Round:
        return right(tokens, n_new, dataclasses.replace(settings, eos=settings.eos | {0}), *more, **others)

    Round.committing = staticmethod(committing)


@mutant(18, "nothing_follows_an_eos_inside_a_block", "drafts_after_an_eos_are_not_counted_as_accepted")
def looks_for_eos_at_the_end_of_a_block() -> None:
    """looks for EOS at the end of a block only"""
    right = Round.committing

    def committing(tokens: list[int], n_new: int, settings: DecodeSettings, *more, **others) -> Round:
        round_ = right(tokens, n_new, dataclasses.replace(settings, eos=frozenset()), *more, **others)
        return round_._replace(finish="eos") if tokens[-1] in settings.eos else round_

    Round.committing = staticmethod(committing)


@mutant(18, "drafts_after_an_eos_are_not_counted_as_accepted")
def counts_drafts_after_an_eos_as_accepted() -> None:
    """counts drafts after an EOS as accepted"""
    right = Round.committing

    def committing(
        tokens: list[int],
        n_new: int,
        settings: DecodeSettings,
        n_drafted: int = 0,
        n_accepted: int = 0,
        *more,
        **others,
    ) -> Round:
        round_ = right(tokens, n_new, settings, n_drafted, n_accepted, *more, **others)
        return round_._replace(n_accepted=n_accepted, n_rejected=int(n_accepted < n_drafted))

    Round.committing = staticmethod(committing)


# ---------------------------------------------------------------- counts


@mutant(20, "prompt_pass_is_no_round_of_decoding", "scripts_count_the_decoded_tokens_alone")
def counts_the_prompts_pass_as_a_round() -> None:
    """counts the prompt's pass as a round and its token as decoded"""
    right = Counts.add
    Counts.add = lambda counts, round_: right(counts, round_._replace(prefill=False))


@mutant(20, "emitted_counts_tokens_of_the_text_not_of_the_draft")
def counts_drafted_tokens_as_generated() -> None:
    """counts drafted tokens as generated"""
    right = Counts.add

    def add(counts: Counts, round_: Round) -> None:
        right(counts, round_)
        if not round_.prefill:
            counts.n_emitted += round_.n_drafted + 1 - len(round_.tokens)

    Counts.add = add


@mutant(21, "alpha_divides_by_tested_positions", "formula_of_tau_fed_with_alpha_gives_tau")
def calls_the_drafted_fraction_alpha() -> None:
    """calls accepted / drafted alpha"""
    Counts.acceptance_rate = Counts.drafted_fraction
