"""A draft that proposes a whole block in one pass (DFlash, arXiv 2602.06036; DSpark, 2607.05147).

A block is the last committed token, the anchor, and mask tokens behind it. Every layer attends to the block and to what
the target computed at the positions before the anchor: the outputs of some of its layers, fused into one state, from
which each layer makes keys and values of its own. Embedding and output layer are the target's.

A slot knows nothing of the tokens that are drawn from the others. A Markov head (DSpark) adds to its logits a bias that
depends on the token before, of low rank; rank 0 is DFlash.

Names of modules and options are those of the `speculators` checkpoint format (dflash and dspark).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, scaled_dot_product_attention

from speclab.drafts.heads.parts import DecoderLayer, Norm, Rotation, rotations

# (number of the layer, keys and values of the slots) -> the keys and values that are read
Seen = Callable[[int, Tensor, Tensor], Iterable[Tensor]]
BLOCKS_AT_ONCE = 64  # the blocks of a pass take memory by the square of their number


@dataclass(frozen=True)
class BlockConfig:
    """The settings of a head. block: the sizes of its decoder layers, the target's vocabulary, rotary positions.
    layers: decoder layers of the target whose outputs it reads, from 0. target_hidden: width of the target's hidden
    states, and its own. draft_vocab: ids that it can propose. slots: of a block, the anchor included. mask: the id in
    all other slots, which no text has. markov_rank: of the bias by the token before; 0 = none. from_anchor: the
    anchor's slot predicts the token after it, and so on; else the slot behind the anchor does.
    """

    block: Any  # Qwen3Config
    layers: tuple[int, ...]
    target_hidden: int
    draft_vocab: int
    slots: int
    mask: int
    markov_rank: int = 0
    from_anchor: bool = True

    @property
    def longest(self) -> int:
        """Return the largest number of tokens that a block proposes."""
        return self.slots - (not self.from_anchor)


class BlockHead(nn.Module):
    """The weights, and the steps of a pass: `context`, the pass over the slots, `logits`.

    table: the target's embedding, (vocabulary, hidden). output: its output layer, (draft_vocab, hidden). Neither is
    trained or stored.
    """

    table: Tensor
    output: Tensor

    def __init__(self, config: BlockConfig, table: Tensor, output: Tensor):
        super().__init__()
        block = config.block
        self.config = config
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("output", output, persistent=False)
        self.fc = nn.Linear(len(config.layers) * config.target_hidden, block.hidden_size, bias=False)
        self.hidden_norm, self.norm = (Norm(block.hidden_size, block.rms_norm_eps) for _ in range(2))
        self.layers = nn.ModuleList([DecoderLayer(block, block.hidden_size) for _ in range(block.num_hidden_layers)])
        self.markov_head = None
        if rank := config.markov_rank:  # the bias of the logits is one row of a table of low rank
            parts = nn.Embedding(block.vocab_size, rank), nn.Linear(rank, config.draft_vocab, bias=False)
            self.markov_head = nn.ModuleDict(dict(zip(("markov_w1", "markov_w2"), parts, strict=True)))

    def context(self, hidden: Tensor, rotation: Rotation) -> list[tuple[Tensor, Tensor]]:
        """Fuse the target's outputs (batch, n, layers * target_hidden), and turn them into the keys and values of each
        layer, (batch, key heads, n, head size) each."""
        states = self.hidden_norm(self.fc(hidden))
        return [layer.self_attn.keys_and_values(states, rotation) for layer in self.layers]  # type: ignore[operator, union-attr]

    def forward(self, anchors: Tensor, rotation: Rotation, mask: Tensor | None, seen: Seen) -> Tensor:
        """Run the pass over all slots: ids (batch, blocks) -> states (batch, blocks, longest, hidden) of those that
        predict.

        rotation: of all slots, block by block. mask: what each slot reads of what `seen` gives, None for everything.
        """
        config = self.config
        tokens = anchors[..., None].expand(-1, -1, config.slots).clone()  # (batch, blocks, slots)
        tokens[..., 1:] = config.mask
        x = embedding(tokens.flatten(1), self.table)  # (batch, blocks * slots, hidden)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            queries, *own = layer.self_attn.heads(layer.input_layernorm(x), rotation)
            keys, values = seen(i, *own)
            shared = queries.shape[1] != keys.shape[1]
            x = layer.finish(x, scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=shared))
        return x.unflatten(1, (-1, config.slots))[:, :, config.slots - config.longest :]

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits, (..., hidden) -> (..., draft_vocab), without the Markov head's bias."""
        return linear(self.norm(states), self.output)

    def biased(self, logits: Tensor, before: Tensor) -> Tensor:
        """Add the Markov head's bias to logits (..., draft_vocab), by the token before each, (...)."""
        if self.markov_head is None:
            return logits
        parts: Any = self.markov_head.values()
        rows, turned = parts
        return logits + turned(rows(before.clamp(max=rows.num_embeddings - 1)))

    def chains(self, hidden: Tensor, tokens: Tensor, depth: int) -> Iterator[Tensor]:
        """Return the logits by depth j, at most `depth` of them: (batch, n - 1 - depth, draft vocabulary). Row t
        predicts token t + 2 + j in a round whose last committed token is t + 1.

        hidden: (batch, n, layers * target_hidden). tokens: (batch, n), a known text.
        """
        anchors = torch.arange(1, tokens.shape[1] - depth, device=tokens.device)
        parts = [blocks(self, hidden, tokens, some.expand(len(tokens), -1)) for some in anchors.split(BLOCKS_AT_ONCE)]
        for j, states in enumerate(torch.cat(parts, dim=1)[:, :, :depth].unbind(2)):
            yield self.biased(self.logits(states), tokens[:, anchors + j])


def blocks(head: BlockHead, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor:
    """Run blocks that begin at positions of a known text, in one pass -> states (batch, anchors, longest, hidden).

    State j of a block belongs to token anchor + 1 + j. hidden: (batch, n, layers * target_hidden). tokens: (batch, n).
    anchors: (batch, anchors); the last block may reach beyond the text.
    """
    config, n, device = head.config, tokens.shape[1], tokens.device
    cos, sin = (part[0] for part in rotations(config.block, torch.arange(n + config.slots, device=device)))
    positions = (anchors[..., None] + torch.arange(config.slots, device=device)).flatten(1)  # (batch, anchors * slots)
    before_anchor = torch.arange(n, device=device) < anchors[..., None]  # its own state does not exist yet
    block = torch.arange(anchors.shape[1], device=device).repeat_interleave(config.slots)
    own = (block[:, None] == block).expand(len(anchors), -1, -1)
    # (batch, 1, anchors * slots, n + the same)
    mask = torch.cat([before_anchor.repeat_interleave(config.slots, dim=1), own], dim=2).unsqueeze(1)
    context = head.context(hidden, (cos[None, :n], sin[None, :n]))

    def seen(layer: int, *pair: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = (torch.cat(parts, dim=2) for parts in zip(context[layer], pair, strict=True))
        return keys, values

    return head(tokens.gather(1, anchors), (cos[positions], sin[positions]), mask, seen)
