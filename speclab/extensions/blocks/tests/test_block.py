"""A draft that proposes a block in one pass: what it reads, what it proposes, and that it learns."""

import pytest
import torch

from speclab.core.sampling import Sampling
from speclab.drafts.heads.feature import target_pass
from speclab.drafts.heads.parts import rotations
from speclab.extensions.blocks.block_drafter import BlockDrafter
from speclab.extensions.blocks.head import blocks
from speclab.extensions.blocks.tests.block_heads import block_rows, tiny_block_head, trained_block
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds
from tests.heads import LEARNT, N_NEW, Keeping, learnt_texts, prompts
from tests.tiny_models import VOCAB, tiny

TRAINED = {"markov_rank": 3}  # the one that test_blocks_elsewhere.py trains, too
SHAPES = [{}, TRAINED, {"markov_rank": 5, "from_anchor": False}, {"from_anchor": False, "layers": 1}]


def reading(model, fast=None) -> CachedModel:
    target = CachedModel(model, fast=fast)
    target.hidden_layers = (0, 1)
    return target


class Kept(Keeping, BlockDrafter):
    """Keeps what it proposes."""


def check(model, drafter: Kept) -> None:
    """All proposals of a decoding, from hidden states of the whole text; and what the buffers hold."""
    with torch.inference_mode():
        hidden, _ = target_pass(model, torch.tensor([drafter.text]), (0, 1))
        for so_far, draft in drafter.proposed:
            tokens = draft.tokens[0].tolist()
            rows = drafter.as_target_logits(block_rows(drafter.head, hidden, so_far, tokens), VOCAB)
            if draft.probs is None:
                assert tokens == rows.argmax(-1).tolist()
            else:
                assert torch.allclose(draft.probs[0], drafter._sampling.probs(rows))
        n = drafter._length
        assert n > 9, "nothing but the prompt was read"
        cos, sin = rotations(drafter.head.config.block, torch.arange(n))
        context = drafter.head.context(hidden[:, :n], (cos.double(), sin.double()))
        for layer, (keys, values) in enumerate(context):
            assert torch.allclose(drafter._keys[layer][:n], keys[0].transpose(0, 1))
            assert torch.allclose(drafter._values[layer][:n], values[0].transpose(0, 1))


@pytest.mark.parametrize("options", SHAPES)
def test_proposals_are_the_definitions(options):
    """Whatever was accepted: what a block reads, at which positions, and which row each token was drawn from."""
    model = tiny("llama")
    head = tiny_block_head(model, **options)
    for temperature in (0.0, 1.0):
        drafter = Kept(head)
        rounds = list(speculative_rounds(reading(model), drafter, prompts(1), 3, 40, Sampling(temperature), 3))
        if not temperature:
            assert [t for r in rounds for t in r.tokens] == plain_text(CachedModel(model), prompts(1), 40)
        assert len({tuple(draft.tokens[0].tolist()) for _, draft in drafter.proposed}) > 5
        check(model, drafter)


def test_a_trained_head_is_often_right_and_stays_in_step():
    """Rounds of every kind. What it learnt by heart in the pass of the training is drafted through the cached loop."""
    model, head, texts = trained_block(**TRAINED)
    accepted = drafted = 0
    for learnt, text in zip(LEARNT, texts, strict=True):
        drafter = Kept(head)
        rounds = list(speculative_rounds(reading(model), drafter, text[None, :9], 3, N_NEW))
        assert [t for r in rounds for t in r.tokens] == text[9:].tolist()
        check(model, drafter)
        if learnt:
            accepted += sum(r.n_accepted for r in rounds)
            drafted += sum(r.n_drafted for r in rounds)
    assert accepted / drafted > 0.8, "a shift of one position in training or in the loop costs most of this"


@pytest.mark.parametrize("options", SHAPES)
def test_blocks_of_a_text_are_the_definitions(options):
    """The pass that a head is trained with, for all its blocks at once."""
    model = tiny("llama")
    head, tokens = tiny_block_head(model, **options), learnt_texts(model)[:2]
    hidden, _ = target_pass(model, tokens, (0, 1))
    anchors = torch.tensor([1, 2, 9, 20])
    states = blocks(head, hidden, tokens, anchors.expand(len(tokens), -1))
    for row, text in enumerate(tokens.tolist()):
        for i, anchor in enumerate(anchors.tolist()):
            after = text[anchor + 1 : anchor + 1 + head.config.longest]
            before = torch.tensor(text[anchor : anchor + len(after)])
            found = head.biased(head.logits(states[row, i]), before)
            assert torch.allclose(found, block_rows(head, hidden[row : row + 1], text[: anchor + 1], after))


def test_what_is_proposed_does_not_depend_on_the_draft_length():
    model, found = tiny("llama"), []
    head = tiny_block_head(model, **TRAINED)
    for k in (1, 2, 3, 9):
        drafter = Kept(head)
        next(rounds := speculative_rounds(reading(model), drafter, prompts(1), k, 40))
        next(rounds)
        found.append(drafter.proposed[0][1].tokens[0].tolist())
    assert [len(tokens) for tokens in found] == [1, 2, 3, head.config.longest], "never more than a block has"
    assert all(tokens == found[-1][: len(tokens)] for tokens in found[:-1])


def test_buffers_grow(monkeypatch):
    monkeypatch.setattr("speclab.drafts.feature.SPARE", 16)
    model, head, texts = trained_block(**TRAINED)
    drafter = Kept(head)
    list(speculative_rounds(reading(model), drafter, texts[:1, :9], 3, N_NEW))
    assert len(drafter._keys[0]) > 32
    check(model, drafter)
