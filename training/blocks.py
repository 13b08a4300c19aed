"""How a block head learns: on blocks that begin at some positions of a text, after the text's own tokens."""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from speclab.drafts.heads.block import BlockHead, blocks
from speclab.system.errors import UsageProblem
from training.passes import Reading
from training.rollouts import Distance, distance

SLOTS = 7  # of a block
# Blocks of a row. More of them cost little, for the target's pass over the row is most of a step; what they take of the
# memory grows with their number times the vocabulary.
ANCHORS = 64
DECAY = 0.85  # weight of each slot in the loss, of the one before
# How a tokenizer of bytes calls bytes that UTF-8 never uses, 255 and 192: with a printable character, or by number.
BYTES = ("\u00ff", "\u00c0", "<0xFF>", "<0xC0>")


def unused_id(tokenizer: PreTrainedTokenizerBase, vocab: int) -> int:
    """An id that no text has, for masks: its embedding is the target's, and engines read it from there."""
    known = tokenizer.get_vocab()
    for name in BYTES:
        if name in known and known[name] not in tokenizer(name).input_ids:
            return known[name]
    if len(tokenizer) < vocab:
        return vocab - 1  # rows of the embedding that only fill it up
    raise UsageProblem("every id of this target's tokenizer may be in a text; give the mask token with --mask ID")


def block_loss(head: BlockHead, read: Reading, tokens: Tensor, seed: Tensor, distance: Distance = distance) -> Tensor:
    """The mean over slots, weighted by DECAY.

    read: gives what the target computes. tokens: (batch, n). seed: a number on the host, of the positions where blocks
    begin. distance: maybe compiled.
    """
    hidden, logits = read(tokens)
    n, longest = tokens.shape[1] - head.config.longest, head.config.longest
    order = torch.randperm(n, generator=torch.Generator().manual_seed(int(seed)))
    anchors = order[:ANCHORS].sort().values.to(tokens.device)
    states = blocks(head, hidden, tokens, anchors)
    total = torch.zeros((), device=tokens.device)
    for slot in range(longest):
        drafted = head.biased(head.logits(states[:, :, slot]), tokens[:, anchors + slot])
        total = total + DECAY**slot * distance(logits[:, anchors + slot], drafted)
    return total / sum(DECAY**slot for slot in range(longest))
