"""Bugs of drafts whose tokenizer is not the target's."""

import sys

import torch
from torch import Tensor

from speclab.core.sampling import Drawn, draw_draft
from speclab.extensions.tokenizers.intersect import IntersectDrafter
from speclab.extensions.tokenizers.retokenized import BEFORE, RetokenizedDrafter
from speclab.extensions.tokenizers.shared_tokens import text_of
from tests.mutants.bugs import mutant

LAW, TEXT = "test_intersect", "test_intersect_text"
RETOKENIZED, CUTTING = "test_retokenized", "test_retokenized_text"


@mutant(25, "a_round_emits_the_targets_joint_law", file=LAW)
def does_not_renormalise_over_the_shared_tokens() -> None:
    """hands over the probabilities that shared tokens had before the draft's distribution was restricted to them"""
    right, restricted = IntersectDrafter._run, IntersectDrafter._restricted
    shares: list[Tensor] = []

    def note_share(drafter: IntersectDrafter, logits: Tensor, vocab_size: int) -> Tensor:
        shares.append(logits.softmax(-1)[:, drafter._draft_ids].sum(-1, keepdim=True))
        return restricted(drafter, logits, vocab_size)

    def run(drafter: IntersectDrafter, ids: Tensor, uniforms: Tensor) -> list[Drawn]:
        shares.clear()
        drawn = right(drafter, ids, uniforms)
        return [
            one if one.probs is None else one._replace(probs=one.probs * share)
            for one, share in zip(drawn, shares, strict=True)
        ]

    IntersectDrafter._restricted, IntersectDrafter._run = note_share, run


@mutant(25, "where_all_is_shared_it_is_the_model", file=TEXT)
def proposes_the_drafts_own_ids() -> None:
    """proposes a shared token by the draft's id, not by the target's"""
    right = IntersectDrafter._run

    def run(drafter: IntersectDrafter, ids: Tensor, uniforms: Tensor) -> list[Drawn]:
        return [one._replace(token=drafter._draft_id[one.token]) for one in right(drafter, ids, uniforms)]

    IntersectDrafter._run = run


@mutant(25, "text_cache_and_laws", "where_all_is_shared_it_is_the_model", file=TEXT)
def feeds_the_draft_the_targets_ids() -> None:
    """feeds the draft a token that it drafted by the target's id"""
    right = IntersectDrafter.prefill

    def prefill(drafter: IntersectDrafter, *arguments) -> None:
        right(drafter, *arguments)
        drafter._draft_id = torch.arange(len(drafter._draft_id)) % drafter.draft.vocab_size

    IntersectDrafter.prefill = prefill


@mutant(25, "a_round_emits_the_targets_joint_law", file=LAW)
def draws_from_what_is_not_restricted() -> None:
    """draws from the draft's whole distribution, and judges by the one over the shared tokens"""

    def run(drafter: IntersectDrafter, ids: Tensor, uniforms: Tensor) -> list[Drawn]:
        target_id = torch.full((drafter.draft.vocab_size,), drafter.shared.target_ids[0])
        target_id[drafter._draft_ids] = drafter._target_ids
        drawn: list[Drawn] = []
        for i in range(uniforms.shape[1]):
            logits = drafter.draft.forward(ids)[:, -1]
            token = target_id[draw_draft(logits, drafter._sampling, uniforms[:, i]).token]
            said = draw_draft(drafter.as_target_logits(logits), drafter._sampling, uniforms[:, i])
            drawn.append(said._replace(token=token))
            ids = drafter._draft_id[token][:, None]
        return drawn

    IntersectDrafter._run = run


@mutant(25, "ids_that_the_target_lacks_end_the_proposal", file=RETOKENIZED)
def keeps_ids_that_the_target_lacks() -> None:
    """proposes ids of the tokenizer that the target has no logits for"""
    right = RetokenizedDrafter.__init__

    def init(drafter: RetokenizedDrafter, draft, own, tokenizer, n_ids: int) -> None:
        right(drafter, draft, own, tokenizer, sys.maxsize)

    RetokenizedDrafter.__init__ = init


@mutant(25, "a_text_that_is_read_otherwise_later[gemma3_window]", file=CUTTING)
def goes_back_further_than_a_window() -> None:
    """crops a cache with sliding windows to a length at which what stood in the window is dropped already"""
    right = RetokenizedDrafter.__init__

    def init(drafter: RetokenizedDrafter, *arguments) -> None:
        right(drafter, *arguments)
        drafter._window = sys.maxsize

    RetokenizedDrafter.__init__ = init


@mutant(
    25,
    "a_draft_that_is_right_proposes_the_targets_own_tokens",
    "a_text_whose_end_would_be_cut_otherwise_gets_no_space_before_it",
    file=CUTTING,
)
def cuts_a_proposal_as_the_beginning_of_a_text() -> None:
    """cuts by itself what follows a window that begins inside a word; some tokenizers put a space before it"""

    def cut(drafter: RetokenizedDrafter, text: str) -> list[int]:
        before = drafter._ids[-BEFORE:]
        together = drafter.tokenizer.encode(text_of(drafter.tokenizer, before) + text, add_special_tokens=False)
        if together[: len(before)] == before:
            return together[len(before) :]
        return drafter.tokenizer.encode(text, add_special_tokens=False)

    RetokenizedDrafter._tokenized = cut


@mutant(25, "the_forecast_asks_for_the_lengths_that_rounds_ask_for", file="test_retokenized_text")
def takes_short_proposals_from_long_ones() -> None:
    """forecasts a draft of k tokens by the first k of a longer proposal, whose last word is cut in another way"""
    RetokenizedDrafter.shorter_is_beginning = True


@mutant(25, "the_sums_are_the_definition", file="test_outside")
def counts_the_token_of_the_prompts_own_pass() -> None:
    """adds what is not shared at the place of a text's first token, which no round decoded"""
    right = IntersectDrafter.own_rates

    def own_rates(drafter: IntersectDrafter, target, prompt: list, text: list, *more) -> dict[str, float]:
        return right(drafter, target, prompt[:-1], prompt[-1:] + text, *more)

    IntersectDrafter.own_rates = own_rates
