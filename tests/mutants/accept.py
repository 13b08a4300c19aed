"""Bugs in speclab/core/accept.py: which drafts are kept, and the token after them."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from speclab.core import accept as accept_module
from speclab.core import rounds, sampling
from speclab.core.accept import accept as right_accept
from speclab.core.accept import accept_from_logits as right_accept_from_logits
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling, draw, most_probable
from tests.mutants.bugs import mutant

# ---------------------------------------------------------------- which drafts are kept


def rows(probs: Tensor, index: Tensor) -> Tensor:
    """(batch, n, vocab), (batch,) -> (batch, vocab)"""
    return probs[torch.arange(len(index)), index]


def draft_rows(draft: Draft, index: Tensor, vocab_size: int) -> Tensor:
    """What the drafted token at `index` (batch,) was drawn from.  -> (batch, vocab)"""
    probs = torch.nn.functional.one_hot(draft.tokens, vocab_size).double() if draft.probs is None else draft.probs
    return rows(probs, index)


def of_tokens(probs: Tensor, tokens: Tensor) -> Tensor:
    """(batch, n, vocab), (batch, n) -> (batch, n)"""
    return probs.gather(-1, tokens[..., None])[..., 0]


def next_token(draft: Draft, target_probs: Tensor, uniforms: Tensor, n_accepted: Tensor) -> Tensor:
    """What follows `n_accepted` kept drafts by the right rule, except that a residual without mass gives NOT_FINITE."""
    n = draft.tokens.shape[1]
    target_here = rows(target_probs, n_accepted)
    residual = (target_here - draft_rows(draft, n_accepted.clamp(max=n - 1), target_here.shape[-1])).clamp(min=0)
    return draw(torch.where((n_accepted == draft.size)[:, None], target_here, residual), uniforms[:, n])


@mutant(3, "each_draft_is_tested_with_its_own_row", "joint_law_of_a_round_is_the_targets")
def tests_drafts_with_the_row_after() -> None:
    """checks each draft against the row after it"""

    def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        later = torch.cat([target_probs[:, 1:], target_probs[:, -1:]], dim=1)
        n_accepted = right_accept(draft, later, uniforms).n_accepted
        return AcceptResult(n_accepted, next_token(draft, target_probs, uniforms, n_accepted))

    accept_module.accept = accept


@mutant(12, "acceptance_tests_of_one_round_are_independent", "joint_law_of_a_round_is_the_targets")
def tests_all_drafts_with_one_uniform() -> None:
    """tests all drafts of a round with one uniform"""

    def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        n = draft.tokens.shape[1]
        return right_accept(draft, target_probs, torch.cat([uniforms[:, :1].expand(-1, n), uniforms[:, n:]], dim=1))

    accept_module.accept = accept


@mutant(22, "token_of_target_probability_zero_is_never_kept")
def accepts_where_u_equals_the_ratio() -> None:
    """accepts with u <= p/q"""

    def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        n = draft.tokens.shape[1]
        target_of_token = of_tokens(target_probs[:, :n], draft.tokens)
        draft_of_token = 1.0 if draft.probs is None else of_tokens(draft.probs, draft.tokens)
        passed = (torch.arange(n) < draft.size[:, None]) & (uniforms[:, :n] <= target_of_token / draft_of_token)
        n_accepted = passed.long().cumprod(-1).sum(-1)
        return AcceptResult(n_accepted, next_token(draft, target_probs, uniforms, n_accepted))

    accept_module.accept = accept


# ---------------------------------------------------------------- the token after the kept drafts


def change_next_token(wrong: Callable[[Draft, Tensor, Tensor, AcceptResult], Tensor]) -> None:
    """Keep and reject as is right; the next token is `wrong(draft, target_probs, uniforms, right result)`."""

    def accept(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        result = right_accept(draft, target_probs, uniforms)
        if draft.tokens.shape[1] == 0:
            return result
        return result._replace(next_token=wrong(draft, target_probs, uniforms, result))

    accept_module.accept = accept


def change_bonus(wrong: Callable[[Draft, Tensor, Tensor], Tensor]) -> None:
    """The same for the next token after full acceptance only: `wrong(draft, target_probs, uniforms)`."""

    def bonus(draft: Draft, target_probs: Tensor, uniforms: Tensor, result: AcceptResult) -> Tensor:
        return torch.where(result.n_accepted == draft.size, wrong(draft, target_probs, uniforms), result.next_token)

    change_next_token(bonus)


@mutant(
    4,
    "correction_comes_from_the_residual",
    "joint_law_of_a_round_is_the_targets",
    "sampled_text_follows_the_targets_law",
)
def draws_the_correction_from_p() -> None:
    """draws the correction from p"""

    def correction(draft: Draft, target_probs: Tensor, uniforms: Tensor, result: AcceptResult) -> Tensor:
        return draw(rows(target_probs, result.n_accepted), uniforms[:, draft.tokens.shape[1]])

    change_next_token(correction)


@mutant(7, "rejected_token_is_not_redrawn_from_target", "joint_law_of_a_one_hot_round_is_the_targets")
def redraws_from_p_after_a_one_hot_draft() -> None:
    """draws from p after a rejected one-hot draft"""

    def correction(draft: Draft, target_probs: Tensor, uniforms: Tensor, result: AcceptResult) -> Tensor:
        if draft.probs is not None:
            return result.next_token
        return draw(rows(target_probs, result.n_accepted), uniforms[:, draft.tokens.shape[1]])

    change_next_token(correction)


@mutant(8, "bonus_token_follows_the_targets_last_row", "sampled_text_follows_the_targets_law")
def takes_the_bonus_by_argmax() -> None:
    """takes the bonus token by argmax"""
    change_bonus(lambda draft, target_probs, uniforms: rows(target_probs, draft.size).argmax(-1))


@mutant(8, "bonus_token_follows_the_targets_last_row", "joint_law_of_a_round_is_the_targets")
def draws_the_bonus_from_q() -> None:
    """draws the bonus token from q"""

    def bonus(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> Tensor:
        last = (draft.size - 1).clamp(min=0)
        return draw(draft_rows(draft, last, target_probs.shape[-1]), uniforms[:, draft.tokens.shape[1]])

    change_bonus(bonus)


@mutant(8, "bonus_token_follows_the_targets_last_row", "joint_law_of_a_round_is_the_targets")
def draws_the_bonus_one_row_early() -> None:
    """draws the bonus token from the row of the last draft"""

    def bonus(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> Tensor:
        return draw(rows(target_probs, (draft.size - 1).clamp(min=0)), uniforms[:, draft.tokens.shape[1]])

    change_bonus(bonus)


@mutant(22, "residual_without_mass_falls_back_to_the_target")
def divides_a_residual_without_mass() -> None:
    """divides a residual without mass by its sum"""
    change_next_token(lambda draft, probs, uniforms, result: next_token(draft, probs, uniforms, result.n_accepted))


# ---------------------------------------------------------------- the greedy rule


@mutant(3, "greedy_output_is_the_targets_own_choice")
def tests_greedy_drafts_with_the_row_after() -> None:
    """checks greedy drafts against the row after each"""

    def accept(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        result = right_accept_from_logits(draft, logits, sampling, uniforms)
        if not sampling.greedy:
            return result
        later = torch.cat([logits[:, 1:], logits[:, -1:]], dim=1)
        n_accepted = right_accept_from_logits(draft, later, sampling, uniforms).n_accepted
        return AcceptResult(n_accepted, most_probable(rows(logits, n_accepted)))

    accept_module.accept_from_logits = functools.singledispatch(accept)  # as kinds of draft register with it


@mutant(8, "greedy_output_is_the_targets_own_choice")
def takes_the_greedy_bonus_one_row_early() -> None:
    """takes the greedy bonus token from the row of the last draft"""

    def accept(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        result = right_accept_from_logits(draft, logits, sampling, uniforms)
        last = max(draft.tokens.shape[1] - 1, 0)
        early = most_probable(rows(logits, result.n_accepted.clamp(max=last)))
        return result._replace(next_token=early) if sampling.greedy else result

    accept_module.accept_from_logits = functools.singledispatch(accept)  # as kinds of draft register with it


@mutant(6, "greedy_keeps_no_draft_but_the_argmax", "greedy_output_is_the_targets_own_choice")
def tests_greedy_drafts_with_the_softmax() -> None:
    """tests drafts with softmax at temperature 0, corrects by argmax"""

    def accept(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        if not sampling.greedy:
            return right_accept_from_logits(draft, logits, sampling, uniforms)
        result = right_accept_from_logits(draft, logits, Sampling(temperature=1.0), uniforms)
        return result._replace(next_token=rows(logits, result.n_accepted).argmax(-1))

    accept_module.accept_from_logits = functools.singledispatch(accept)  # as kinds of draft register with it


@mutant(6, "drafted_positions_are_judged_at_the_texts_temperature")
def tempers_the_bonus_row_alone() -> None:
    """divides only the logits of the bonus token by the temperature"""

    def accept(draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
        if sampling.greedy:
            return right_accept_from_logits(draft, logits, sampling, uniforms)
        uneven = torch.cat([logits[:, :-1] * sampling.temperature, logits[:, -1:]], dim=1)
        return right_accept_from_logits(draft, uneven, sampling, uniforms)

    accept_module.accept_from_logits = functools.singledispatch(accept)  # as kinds of draft register with it


@mutant(8, "the_host_and_a_device_keep_the_same_drafted_tokens", file="core/test_sampling")
def compares_behind_the_drafted_tokens() -> None:
    """goes on behind the drafted tokens of a row where the host compares them"""
    right = rounds._n_equal
    rounds._n_equal = lambda drafted, own, size: right(drafted, own, len(drafted))


@mutant(22, "draw_survives_a_uniform_that_rounds_up_to_the_total", file="core/test_sampling")
def looks_for_the_last_id_never() -> None:
    """takes the id behind the last one where a uniform times the mass rounds up to the mass"""
    sampling._drawn = lambda weights, uniforms: (
        torch.searchsorted(cdf := weights.cumsum(-1), uniforms[:, None] * cdf[:, -1:], right=True)[:, 0],
        cdf[:, -1],
    )
