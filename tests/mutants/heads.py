"""Bugs in drafts that read the target's hidden states. But for the first of blocks the text stays right: only what is
proposed tells."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import draft_models
import optimized_speculative
from speclab.core.rounds import AcceptResult, Decided, Draft, Target
from speclab.core.sampling import Drawn, Sampling
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads import feature as feature_head
from speclab.drafts.heads import files, rollout
from speclab.drafts.heads.block import BlockHead
from speclab.drafts.heads.drafter import HeadDrafter
from speclab.drafts.heads.feature import FeatureHead
from speclab.engines.c_pass import CBackend
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

    def forward(model: CachedModel, tokens: Tensor, reads: Tensor | None = None) -> Tensor:
        before[id(model)] = dict(model._backend.hidden)
        logits = right(model, tokens, reads)
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
        return [(positions[:, :n], first[:, step : step + n]) for step in range(depth)]

    rollout.rollout = feature_head.rollout = flat


@mutant(33, "a_head_of_a_part_of_the_ids_comes_back", file="drafts/test_head_files")
def writes_ids_in_the_place_of_offsets() -> None:
    """writes the target's ids into d2t, which holds how far they are from the head's"""
    right = files.tables_of

    def tables_of(ids: Tensor, vocab: int) -> dict[str, Tensor]:
        return right(ids, vocab) | {files.TO_TARGET: ids}

    files.tables_of = tables_of


@mutant(33, "a_head_of_a_part_of_the_ids_comes_back", file="drafts/test_head_files")
def lends_the_first_rows_of_the_output_layer() -> None:
    """gives a head without an output layer the target's first rows, not those of its ids"""
    right = files._built

    def built(config, weights, target):
        saved = right(config, weights, target)
        output = files.weights_of(target)[1]
        part = saved.head.lm_head if isinstance(saved.head, FeatureHead) else saved.head.output
        part.weight.data.copy_(output[: config.draft_vocab])
        return saved

    files._built = built


BLOCK = "drafts/test_block"
DEFINITION = "proposals_are_the_definitions"
LEARNT = "a_trained_head_is_often_right_and_stays_in_step"


@mutant(5, "a_round_leaves_the_targets_law[block]", file="test_filtered_laws")
def stores_the_row_without_the_bias() -> None:
    """draws from the Markov head's row, and says that it drew from the pass's own"""
    right = BlockDrafter.propose

    def propose(drafter: BlockDrafter, k: int, uniforms: Tensor) -> Draft:
        kept, biased = [], drafter.head.biased
        drafter.head.biased = lambda logits, before: kept.append(logits) or biased(logits, before)
        try:
            draft = right(drafter, k, uniforms)
        finally:
            del drafter.head.biased
        if draft.probs is None:
            return draft
        rows = drafter.as_target_logits(torch.cat(kept), drafter._vocab_size)
        return replace(draft, probs=drafter._sampling.probs(rows)[None])

    BlockDrafter.propose = propose


@mutant(33, DEFINITION, LEARNT, file=BLOCK)
def biases_by_the_token_before_the_last() -> None:
    """reads the Markov head's row one token too early"""
    honest = BlockDrafter.propose

    def propose(drafter: BlockDrafter, k: int, uniforms: Tensor) -> Draft:
        before, biased = [drafter._anchor], drafter.head.biased

        def late(logits: Tensor, token: Tensor) -> Tensor:
            before.append(token)
            return biased(logits, before[-2])

        drafter.head.biased = late
        try:
            return honest(drafter, k, uniforms)
        finally:
            del drafter.head.biased

    BlockDrafter.propose = propose


@mutant(33, DEFINITION, LEARNT, file=BLOCK)
def begins_a_block_one_position_early() -> None:
    """gives the anchor the position of the last state that was read"""
    right = BlockHead.draft

    def early(head: BlockHead, hidden: Tensor, anchor: Tensor, *inputs: Any) -> Tensor:
        cos, sin, slot_cos, slot_sin, *others = inputs
        slots = (torch.cat([read[:, -1:], part[:, :-1]], dim=1) for read, part in ((cos, slot_cos), (sin, slot_sin)))
        return right(head, hidden, anchor, cos, sin, *slots, *others)

    BlockHead.draft = early


@mutant(33, f"{DEFINITION}[c-False-flags0]", file=FILE)
def reads_states_beside_the_tokens_before() -> None:
    """gives the engine c each state of a head beside the token before its own"""
    right = CBackend.read

    def read(backend: CBackend, tokens: Tensor, length: int, states: Tensor | None = None, only_last=False) -> Tensor:
        if states is not None and states.shape[1] > 1:
            tokens = tokens.roll(1, dims=1)
        return right(backend, tokens, length, states, only_last)

    CBackend.read = read


@mutant(33, "blocks_of_a_text_are_the_definitions", file=BLOCK)
def trains_on_the_states_of_anchors() -> None:
    """lets a block of the training read the state of its anchor, which no round has yet"""
    right = BlockHead.forward

    def forward(head: BlockHead, anchors: Tensor, rotation: tuple, mask: Tensor | None, seen) -> Tensor:
        if mask is not None and anchors.shape[1] > 1:
            n_text = mask.shape[-1] - mask.shape[-2]
            text = mask[..., :n_text]
            mask = torch.cat([text | text.roll(1, dims=-1), mask[..., n_text:]], dim=-1)
        return right(head, anchors, rotation, mask, seen)

    BlockHead.forward = forward


@mutant(33, DEFINITION, LEARNT, file=BLOCK)
def keeps_the_states_of_rejected_tokens() -> None:
    """reads the states of all rows of a verification, rejected tokens' among them"""
    right = BlockDrafter.observe

    def observe(drafter: BlockDrafter, n_accepted: int, committed: list[int]) -> None:
        right(drafter, 10**6, committed)

    BlockDrafter.observe = observe


@mutant(33, DEFINITION, LEARNT, file=BLOCK)
def never_reads_the_prompt_of_a_block() -> None:
    """gives a block no states of the prompt"""
    right = HeadDrafter.prefill

    def prefill(drafter: HeadDrafter, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        right(drafter, target, prompt, sampling)
        drafter._hidden = drafter._hidden[:, :0]

    HeadDrafter.prefill = prefill


ENTRIES = "drafts/test_head_entries"


@mutant(25, "tables_that_disagree_are_refused", file=ENTRIES)
def believes_one_table_of_ids() -> None:
    """takes a head's d2t table without looking at its t2d table"""
    right = files._target_ids
    files._target_ids = lambda config, offsets, chosen, target: right(config, offsets, None, target)


@mutant(24, "names_shapes_and_types_are_compared_before_a_number_is_read", file=ENTRIES)
def reads_weights_before_their_shapes_are_compared() -> None:
    """reads every tensor of a head's file, and compares the header with its config afterwards"""
    right = files.read_weights

    def read_weights(path, *more):
        with files.safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no dict
                file.get_tensor(name)
        return right(path, *more)

    files.read_weights = read_weights


@mutant(24, "every_way_of_drafting_says_that_logits_are_not_finite", file="drafts/test_overflows")
def forgets_that_a_drafts_logits_were_not_finite() -> None:
    """fetches a round's decision without the draft's mark"""
    right = optimized_speculative.fetch

    def fetch(draft: Draft, result: AcceptResult) -> Decided:
        return right(replace(draft, faults=None), result)

    optimized_speculative.fetch = fetch


@mutant(24, "a_damaged_draft_still_proposes_an_id_that_can_be_fed", file="core/test_sampling")
def looks_at_the_logits_of_the_last_token_alone() -> None:
    """looks whether the logits of a draft's last token are finite, and not at those of the others"""
    right = draft_models.as_drawn

    def as_drawn(drawn: list[Drawn], size: Tensor | None = None) -> Draft:
        return replace(right(drawn, size), faults=right(drawn[-1:]).faults)

    draft_models.as_drawn = as_drawn
