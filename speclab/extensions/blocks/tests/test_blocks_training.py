"""What a block head starts from, and which of its weights learn how."""

import functools

import pytest
import torch

from speclab.extensions.blocks.block_drafter import BlockDrafter
from speclab.extensions.blocks.recipe import LAYERS, MARKOV_RANK, block_loss, fresh_block, unused_id
from speclab.extensions.blocks.tests.block_heads import trained_block
from speclab.models import loading
from speclab.system.errors import UsageProblem
from tests.heads import read
from tests.tiny_models import VOCAB, tiny
from tests.training.test_recipes import check_score
from training.heads import parse


def test_a_fresh_head_shares_what_it_does_not_learn():
    """Embedding and output layer are the target's own memory, whatever is learnt; the bias by the token before is 0."""
    target = tiny("llama", dtype=torch.float32).requires_grad_(False)
    head = fresh_block(target, Words(), parse(["block"]))
    assert head.table.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    assert head.output.data_ptr() == target.get_output_embeddings().weight.data_ptr()
    assert len(head.layers) == LAYERS
    assert (head.config.mask, head.config.markov_rank) == (VOCAB - 1, MARKOV_RANK)
    assert not head.biased(torch.zeros(VOCAB, VOCAB), torch.arange(VOCAB)).any()
    before = target.get_input_embeddings().weight.clone()
    with torch.enable_grad():
        starts = torch.arange(30)[None]
        block_loss(head, functools.partial(read, target, head), torch.arange(40)[None] % VOCAB, starts).backward()
    learn = {name for name, weight in head.named_parameters() if weight.grad is not None and weight.grad.any()}
    idle = {name for name, _ in head.named_parameters()} - learn
    assert idle == {"markov_head.markov_w1.weight"}, "while the other factor is 0"
    assert torch.equal(before, target.get_input_embeddings().weight)


def test_the_mask_token_is_in_no_text():
    tokenizer = loading.load_tokenizer(loading.LAB_TARGET)
    mask = unused_id(tokenizer, len(tokenizer))
    texts = [
        "\u00ff \u00c0 caf\u00e9 \u6f22\u5b57 \U0001f600",
        tokenizer.convert_ids_to_tokens(mask),
        "def f(x):\n    return x",
    ]
    assert all(mask not in tokenizer(text).input_ids for text in texts)
    assert mask not in tokenizer.all_special_ids


class Words:
    """A tokenizer without bytes: its only words are in its texts."""

    def get_vocab(self):
        return {"\u00ff": 3}

    def __call__(self, text):
        return type("Encoding", (), {"input_ids": [3]})

    def __len__(self):
        return 9


def test_without_unused_bytes_a_row_that_fills_up_is_the_mask_or_none():
    assert unused_id(Words(), 12) == 11
    with pytest.raises(UsageProblem, match="none is left for masks"):
        unused_id(Words(), 9)


def test_a_score_replays_the_rounds_of_the_loop():
    model, head, texts = trained_block(markov_rank=5)
    check_score(model, head, texts, BlockDrafter(head))
