"""Bugs in block verification and in the lossy rules, and in the distribution that they judge by."""

from collections.abc import Callable

import torch
from torch import Tensor

from speclab.core import accept as accept_module
from speclab.core.accept import accept as right_accept
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling, draw
from speclab.extensions.rules import block as block_module
from speclab.extensions.rules import lossy
from tests.mutants.accept import draft_rows, of_tokens, rows
from tests.mutants.bugs import mutant
from tests.mutants.settings import unfiltered

BUGS = {16: "block verification that ends early, or corrects wrongly"}

BLOCK_ROUND = "a_round_of_block_verification_leaves_the_targets_law"
STATED = "a_lossy_rule_has_its_stated_law"


# ---------------------------------------------------------------- block verification


def change_block(wrong: Callable[..., Tensor]) -> None:
    """Judge with `wrong(draft, target_probs, uniforms, b, h)` instead: how many are kept, (batch,). b, h (batch, n)"""

    def accept_block(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        n = draft.tokens.shape[1]
        if draft.probs is None or n == 0:
            return right_accept(draft, target_probs, uniforms)
        ratios = of_tokens(target_probs[:, :n], draft.tokens) / of_tokens(draft.probs, draft.tokens)
        so_far, products = torch.ones_like(ratios[:, 0]), []
        for i in range(n):
            so_far = (so_far * ratios[:, i]).clamp(max=1)
            products.append(so_far)
        b = torch.stack(products, dim=1)  # (batch, n)
        mass = (b[:, :-1, None] * target_probs[:, 1:n] - draft.probs[:, 1:]).clamp(min=0).sum(-1)
        rest = mass + 1 - b[:, :-1]
        h = torch.cat([torch.where(rest > 0, mass / rest, 1.0), b[:, -1:]], dim=1)
        n_accepted, kept = wrong(draft, uniforms, b, h)
        target_here = rows(target_probs, n_accepted)
        draft_here = draft_rows(draft, n_accepted.clamp(max=n - 1), target_here.shape[-1])
        residual = (kept[:, None] * target_here - draft_here).clamp(min=0)
        whole = (n_accepted == n) | (residual.sum(-1) <= 0)
        return AcceptResult(n_accepted, draw(torch.where(whole[:, None], target_here, residual), uniforms[:, n]))

    block_module.accept_block = accept_block


def last_pass(passed: Tensor) -> Tensor:
    """(batch, n) -> (batch,): the place after the last test that is passed"""
    return (passed * torch.arange(1, passed.shape[1] + 1)).amax(-1)


def kept_mass(b: Tensor, n_accepted: Tensor) -> Tensor:
    """b of what is kept, (batch,)."""
    return torch.cat([torch.ones_like(b[:, :1]), b], dim=1).gather(1, n_accepted[:, None])[:, 0]


BLOCK_LAW = "one_round_emits_the_targets_joint_law"


@mutant(16, BLOCK_LAW, file="test_rules_exact")
def stops_at_the_first_failure() -> None:
    """ends block verification at the first test that fails"""

    def wrong(draft: Draft, uniforms: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        n_accepted = (uniforms[:, : b.shape[1]] < h).long().cumprod(-1).sum(-1)
        return n_accepted, kept_mass(b, n_accepted)

    change_block(wrong)


@mutant(16, BLOCK_LAW, file="test_rules_exact")
def forgets_the_running_product() -> None:
    """draws the correction of a block from norm(max(0, p - q))"""

    def wrong(draft: Draft, uniforms: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        n_accepted = last_pass(uniforms[:, : b.shape[1]] < h)
        return n_accepted, torch.ones_like(b[:, 0])

    change_block(wrong)


@mutant(16, "a_block_of_impossible_tokens_is_not_kept_at_zero", file="test_rules_exact")
def keeps_at_equality() -> None:
    """keeps a block where the uniform equals the bound, so a zero keeps what the target forbids"""

    def wrong(draft: Draft, uniforms: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        n_accepted = last_pass(uniforms[:, : b.shape[1]] <= h)
        return n_accepted, kept_mass(b, n_accepted)

    change_block(wrong)


# ---------------------------------------------------------------- lossy rules


@mutant(37, "a_lossy_rule_emits_the_law_that_its_distance_is_measured_by", file="test_rules_exact")
def draws_the_lenient_correction_from_p() -> None:
    """draws the correction of a lenient rule from p, and measures another law"""

    def accept_lenient(draft: Draft, target_probs: Tensor, uniforms: Tensor, lenience: float) -> AcceptResult:
        n = draft.tokens.shape[1]
        scaled = torch.cat([uniforms[:, :n] * lenience, uniforms[:, n:]], dim=1)
        n_accepted = right_accept(draft, target_probs, scaled).n_accepted
        return AcceptResult(n_accepted, draw(rows(target_probs, n_accepted), uniforms[:, n]))

    lossy.accept_lenient = accept_lenient


# ---------------------------------------------------------------- what they judge by


def change_probs(name: str, wrong: Callable[[Sampling, Tensor], Tensor]) -> None:
    """The rule `name` gets `wrong(sampling, logits)` for the target's rows."""
    right = accept_module._judged

    def judged(logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Tensor, rule: Callable, *numbers):
        if rule.__name__ == name and not sampling.greedy:
            logits = wrong(sampling, logits).log() * sampling.temperature  # which `probs` gives back
            sampling = unfiltered(sampling)
        return right(logits, draft, sampling, uniforms, rule, *numbers)

    accept_module._judged = judged


@mutant(6, BLOCK_ROUND, file="test_rule_rounds")
def tempers_twice_in_the_block_rule() -> None:
    """divides the logits by the temperature twice where a block is judged"""
    change_probs("accept_block", lambda sampling, logits: sampling.probs(logits / sampling.temperature))


@mutant(6, STATED, file="test_rule_rounds")
def lenient_rule_knows_no_filters() -> None:
    """judges with a lenient rule by the distribution without top-k and top-p"""
    change_probs("accept_lenient", lambda sampling, logits: unfiltered(sampling).probs(logits))


@mutant(6, STATED, file="test_rule_rounds")
def typical_threshold_of_the_unfiltered_row() -> None:
    """takes the threshold of typical acceptance from the entropy of the distribution before the filters"""
    right, threshold = accept_module._judged, lossy.typical_threshold

    def judged(logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Tensor, rule: Callable, *numbers):
        whole = unfiltered(sampling).probs(logits)[:, :-1]
        lossy.typical_threshold = lambda target_probs, epsilon: threshold(whole, epsilon)
        try:
            return right(logits, draft, sampling, uniforms, rule, *numbers)
        finally:
            lossy.typical_threshold = threshold

    accept_module._judged = judged


@mutant(6, "a_round_that_follows_the_target_leaves_its_law", file="test_rule_rounds")
def follows_at_temperature_1() -> None:
    """follows the target with tokens that are drawn at temperature 1"""
    change_probs("accept_follow", lambda sampling, logits: Sampling(1.0, sampling.top_k, sampling.top_p).probs(logits))


@mutant(8, BLOCK_ROUND, file="test_rule_rounds")
def bonus_of_a_block_is_not_filtered() -> None:
    """draws the bonus token of a block from the target's row before the filters"""
    right = accept_module._judged

    def judged(logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Tensor, rule: Callable, *numbers):
        result = right(logits, draft, sampling, uniforms, rule, *numbers)
        if rule.__name__ != "accept_block" or sampling.greedy:
            return result
        rows, n = torch.arange(len(logits)), draft.tokens.shape[1]
        bonus = draw(unfiltered(sampling).probs(logits[rows, draft.size]), uniforms[:, n])
        return result._replace(next_token=torch.where(result.n_accepted == draft.size, bonus, result.next_token))

    accept_module._judged = judged
