"""Trains a head that drafts blocks: `python -m training.heads block`.

It learns on blocks that begin at some positions of a text, after the text's own tokens.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from speclab.drafts.heads.files import weights_of
from speclab.extensions.blocks.files import read_block
from speclab.extensions.blocks.head import BlockConfig, BlockHead, blocks
from speclab.system.errors import UsageProblem
from training.recipes import Reading, Recipe, distance, draw, layers_to_read, sizes_of
from training.writing import write_head

SLOTS, LAYERS = 7, 2  # tokens and layers of a block
MARKOV_RANK = 64  # the rank of the Markov head, which is a bias by the token before
LAYERS_OF_MANY, RANK_OF_MANY = 1, 16  # the same for many ids: the table of the token before has a row for each
SLOT_DECAY = 0.85  # the weight of each slot in the loss, relative to the slot before
# How a tokenizer of bytes calls bytes that UTF-8 never uses, 255 and 192: with a printable character, or by number.
BYTES = ("\u00ff", "\u00c0", "<0xFF>", "<0xC0>")


def fresh_block(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace, ids: Tensor | None = None
) -> BlockHead:
    """Return a random head; embedding and output layer are the target's. ids: those that it proposes, None: all."""
    table, output = weights_of(target)
    vocab, width = table.shape
    mask = unused_id(tokenizer, vocab)
    n_drafted = vocab if ids is None else len(ids)
    layers, rank = (LAYERS, MARKOV_RANK) if ids is None else (LAYERS_OF_MANY, RANK_OF_MANY)
    besides = 3 * width**2 + rank * (vocab + n_drafted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        block: Any = Qwen3Config(**sizes_of(target, layers, besides, width, ids is not None))
        saved = BlockConfig(block, layers_to_read(target), width, n_drafted, SLOTS, mask, markov_rank=rank)
        head = BlockHead(saved, table, output if ids is None else output[ids])
        draw(head)
    return head


def unused_id(tokenizer: PreTrainedTokenizerBase, vocab: int) -> int:
    """Return an id that no text has, for masks: its embedding is the target's, and engines read it from there."""
    known = tokenizer.get_vocab()
    for name in BYTES:
        if known.get(name, vocab) < vocab and known[name] not in tokenizer(name).input_ids:
            return known[name]
    if len(tokenizer) < vocab:
        return vocab - 1  # rows of the embedding that only fill it up
    raise UsageProblem("every id of this target may be in a text, and none is left for masks; train a feature head")


def block_loss(
    head: BlockHead, read: Reading, tokens: Tensor, starts: Tensor, distance: Callable[..., Tensor] = distance
) -> Tensor:
    """Compute the loss of a block head: the mean over slots, weighted by SLOT_DECAY.

    read: gives what the target computes. tokens: (batch, n). starts: (batch, blocks); the block of position t begins
    with the token after it.
    """
    hidden, target = read(tokens)
    anchors = starts + 1
    states = blocks(head, hidden, tokens, anchors)
    total = torch.zeros((), device=tokens.device)
    for slot in range(head.config.longest):
        drafted = head.biased(head.logits(states[:, :, slot]), tokens.gather(1, anchors + slot))
        total = total + SLOT_DECAY**slot * distance(target.at(anchors + slot), drafted)
    return total / sum(SLOT_DECAY**slot for slot in range(head.config.longest))


def write_block(
    folder: Path, head: BlockHead, target: str, architectures: list[str], ids: Tensor | None = None
) -> None:
    """Write a head; an engine drafts its block. The rest: as `write_feature` of training/writing.py."""
    config = head.config
    entries = {
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.layers],
        "block_size": config.slots,
        "mask_token_id": config.mask,
        "sample_from_anchor": config.from_anchor,
        "causal": False,
        "markov_rank": config.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": False,
    }
    write_head(folder, head, ("dspark", "DSparkSpeculator"), entries, target, architectures, config.longest, ids)


RECIPES = {
    "block": Recipe(
        help="one pass for all tokens of a round (DSpark)",
        fresh=fresh_block,
        loss=block_loss,
        write=write_block,
        trained=lambda target, args: read_block(args.init, target),
        chains=1 / 4,
        narrows=True,
    ),
}
