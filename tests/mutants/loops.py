"""Bugs in draft_models.py and in the two loops."""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

import draft_models
import optimized_speculative
from draft_models import ModelDrafter
from speclab.core.drafter import Drafter
from speclab.core.rounds import Decided, DecodeSettings, Draft, Round, fetch
from speclab.core.sampling import Drawn, Sampling, uniforms
from speclab.models import cached
from speclab.models.cached import CachedModel, tokens_to_keep
from tests.mutants.bugs import mutant

# ---------------------------------------------------------------- what a round commits


def change_committed(wrong: Callable[[list[int], int, int], list[int]]) -> None:
    """Commit `wrong(kept drafts and the target's token, n_drafted, n_accepted)`."""

    def wrong_fetch(*args) -> Decided:
        decided = fetch(*args)
        return decided._replace(tokens=wrong(*decided[:3]))

    optimized_speculative.fetch = wrong_fetch


@mutant(1, "correction_follows_accepted_drafts", "greedy_output_is_the_targets_own_choice")
def commits_the_targets_token_first() -> None:
    """commits the target's token before the accepted drafts"""
    change_committed(lambda tokens, n_drafted, n_accepted: [tokens[-1], *tokens[:-1]])


@mutant(2, "bonus_token_after_full_acceptance", "a_round_commits_one_token_more_than_it_accepts")
def commits_no_bonus() -> None:
    """commits only the drafts where all were accepted"""
    change_committed(lambda tokens, n_drafted, n_accepted: tokens[:-1] if 0 < n_accepted == n_drafted else tokens)


@mutant(23, "correction_is_kept_after_partial_acceptance", "a_round_commits_one_token_more_than_it_accepts")
def throws_the_correction_away() -> None:
    """throws the correction away after a partial acceptance"""
    change_committed(lambda tokens, n_drafted, n_accepted: tokens[:-1] if 0 < n_accepted < n_drafted else tokens)


@mutant(18, "budget_is_met_exactly", "never_drafts_more_than_the_budget_can_take")
def drafts_as_if_the_budget_had_no_end() -> None:
    """drafts k tokens however few are left"""
    right = optimized_speculative.speculative_decode

    def decode(
        target: CachedModel, drafter: Drafter, prompt: Tensor, draft_length: int, settings: DecodeSettings, *others
    ) -> Iterator[Round]:
        n_new, budget = 0, settings.max_new_tokens
        endless = dataclasses.replace(settings, max_new_tokens=budget + draft_length + 1)
        for round_ in right(target, drafter, prompt, draft_length, endless, *others):
            n_new += len(round_.tokens)
            yield round_._replace(finish="length") if n_new >= budget else round_
            if n_new >= budget:
                return

    optimized_speculative.speculative_decode = decode


# ---------------------------------------------------------------- what the target is fed


def remember_the_prompt() -> Callable[[CachedModel], Tensor]:
    """-> what a model has read last in a prefill"""
    right, prompts = CachedModel.prefill, {}

    def prefill(model: CachedModel, prompt: Tensor) -> Tensor:
        prompts[id(model)] = prompt
        return right(model, prompt)

    CachedModel.prefill = prefill
    return lambda model: prompts[id(model)]


@mutant(3, "greedy_output_is_the_targets_own_choice")
def takes_the_first_rows_of_a_pass_over_all() -> None:
    """checks the drafts against the first rows of a pass over prompt and drafts"""
    prompt_of = remember_the_prompt()

    def wrong(target: CachedModel, last_token: int, draft: Draft) -> Tensor:
        n_rows = right(target, last_token, draft).shape[1]
        return target.model(torch.cat([prompt_of(target), draft.tokens], dim=1)).logits[:, :n_rows]

    right, CachedModel.verify = CachedModel.verify, wrong


@mutant(9, "greedy_output_is_the_targets_own_choice")
def feeds_the_prompt_again() -> None:
    """feeds the prompt again in every round"""
    prompt_of = remember_the_prompt()

    def wrong(target: CachedModel, last_token: int, draft: Draft) -> Tensor:
        prompt, last = prompt_of(target), torch.tensor([[last_token]])
        return target.forward(torch.cat([prompt, last, draft.tokens], dim=1))[:, prompt.shape[1] :]

    CachedModel.verify = wrong


@mutant(17, "one_target_pass_per_round")
def passes_twice() -> None:
    """verifies in one pass, then passes again for the next token"""

    def wrong(target: CachedModel, last_token: int, draft: Draft) -> Tensor:
        length = target.length
        right(target, last_token, draft)
        target.crop(length)
        return right(target, last_token, draft)

    right, CachedModel.verify = CachedModel.verify, wrong


# ---------------------------------------------------------------- what stays in the caches

ROLLED_BACK = ("target_cache_holds_all_but_the_last_committed_token", "greedy_output_is_the_targets_own_choice")


@mutant(10, *ROLLED_BACK)
def never_rolls_the_target_back() -> None:
    """never rolls the target's cache back"""
    cached.tokens_to_keep = lambda n_cached, n_committed: n_cached


@mutant(10, *ROLLED_BACK)
def leaves_the_first_rejected_token() -> None:
    """leaves the first rejected token in the target's cache"""
    cached.tokens_to_keep = lambda n_cached, n_committed: min(n_cached, n_committed)


@mutant(10, *ROLLED_BACK)
def rolls_the_target_back_too_far() -> None:
    """rolls the target's cache back one token too far"""
    cached.tokens_to_keep = lambda n_cached, n_committed: n_committed - 2


@mutant(10, "proposals_are_the_draft_models_own_continuation")
def never_rolls_the_draft_back() -> None:
    """never rolls the draft's cache back"""

    def observe(drafter: ModelDrafter, n_accepted: int, committed: list[int]) -> None:
        drafter._n_committed += len(committed)
        kept = tokens_to_keep(drafter.draft.length, drafter._n_committed)
        drafter._not_fed = (drafter._not_fed + committed)[-(drafter._n_committed - kept) :]

    ModelDrafter.observe = observe


@mutant(11, "proposals_are_the_draft_models_own_continuation")
def feeds_the_draft_the_newest_token_only() -> None:
    """feeds the draft the newest token only, also after full acceptance"""
    right = ModelDrafter.observe

    def observe(drafter: ModelDrafter, n_accepted: int, committed: list[int]) -> None:
        right(drafter, n_accepted, committed)
        drafter._not_fed = committed[-1:]

    ModelDrafter.observe = observe


# ---------------------------------------------------------------- randomness

DIFFERENT_UNIFORMS = ("every_uniform_is_used_once", "sampled_text_follows_the_targets_law")


@mutant(12, *DIFFERENT_UNIFORMS)
def resets_the_seed() -> None:
    """resets the seed in every round"""

    def wrong(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        return uniforms(shape, generator.manual_seed(0), device)

    optimized_speculative.uniforms = wrong


@mutant(12, *DIFFERENT_UNIFORMS)
def tests_drafts_with_the_uniforms_that_drew_them() -> None:
    """tests drafts with the uniforms that drew them"""

    def wrong(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
        numbers = uniforms(shape, generator, device)
        k = shape[-1] // 2  # the first k draw, the other k + 1 accept
        return torch.cat([numbers[..., :k], numbers[..., : shape[-1] - k]], dim=-1)

    optimized_speculative.uniforms = wrong


@mutant(5, "proposals_follow_the_probabilities_they_are_scored_with", "sampled_text_follows_the_targets_law")
def proposes_the_argmax() -> None:
    """proposes the argmax, reports the softmax"""
    right = draft_models.draw_draft

    def draw_draft(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Drawn:
        return right(logits, sampling, uniforms)._replace(token=logits.argmax(-1))

    draft_models.draw_draft = draw_draft


# ---------------------------------------------------------------- a draft with fewer ids and a shorter context

LACKING = "ids_that_the_draft_lacks_have_probability_0_and_can_be_committed"


@mutant(25, LACKING, file="drafts/test_drafts")
def gives_lacking_ids_the_last_ones_probability() -> None:
    """gives ids that the draft lacks the probability of its last one"""
    right = ModelDrafter.propose

    def propose(drafter: ModelDrafter, k: int, uniforms: Tensor) -> Draft:
        draft = right(drafter, k, uniforms)
        if draft.probs is None:
            return draft
        known = draft.probs[..., : drafter.draft.vocab_size]
        n_lacking = draft.probs.shape[-1] - known.shape[-1]
        return replace(draft, probs=torch.cat([known, known[..., -1:].expand(-1, -1, n_lacking)], dim=-1))

    ModelDrafter.propose = propose


SHORT = "at_the_end_of_its_context_a_model_drafts_fewer_tokens_then_none"


@mutant(29, SHORT, file="drafts/test_drafts", raises="IndexError")
def drafts_on_where_the_context_ends() -> None:
    """drafts on where the draft's context ends"""
    draft_models.draft_room = lambda draft, n_committed: sys.maxsize


@mutant(29, SHORT, file="drafts/test_drafts", raises="IndexError")
def drafts_one_token_too_many() -> None:
    """drafts one token more than the draft's context holds"""

    def room(draft: CachedModel, n_committed: int) -> int:
        return sys.maxsize if draft.max_length is None else max(0, draft.max_length - n_committed + 2)

    draft_models.draft_room = room
