"""An adapter for early exit: from the target's own states after some of its layers to what it will say next.

LayerSkip (arXiv 2404.16710) trains a model so that its output layer can read an early state. A model that was not
trained so needs something in between (Kangaroo, arXiv 2404.18911): here one decoder layer of its own, which reads the
states of the text so far, a norm, and the target's own output layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from speclab.drafts.heads.parts import DecoderLayer, Norm, Rotation, TargetOutput, rotations


@dataclass(frozen=True)
class ExitConfig:
    """The settings of an adapter. exit_layer: N, how many of the target's first layers a draft runs, at least 1 and not
    all of them.
    target_layers: the number of decoder layers of the target. block: the sizes of the adapter's decoder layer; its
    width is that of the target's states, its vocabulary the rows of the target's output layer.
    """

    exit_layer: int
    target_layers: int
    block: Any  # LlamaConfig

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the target's layer, from 0, whose output it reads."""
        return (self.exit_layer - 1,)


class ExitAdapter(nn.Module):
    """The weights, and the steps of a pass: `project`, attention by the caller, `logits`.

    output: the target's output layer, (vocab, hidden), which is neither trained nor stored.
    """

    def __init__(self, config: ExitConfig, output: Tensor):
        super().__init__()
        block = config.block
        self.config = config
        self.layers = nn.ModuleList([DecoderLayer(block, block.hidden_size)])
        self.norm = Norm(block.hidden_size, block.rms_norm_eps)
        self.output = TargetOutput(output)

    @property
    def layer(self) -> DecoderLayer:
        """Return the one decoder layer."""
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Draw random weights from this seed; the layer adds little at first."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                spread = 0.005 if "o_proj" in name or "down_proj" in name else 0.02
                weight.copy_(torch.randn(weight.shape, generator=generator) * spread)

    def project(self, states: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Project the target's states (batch, n, hidden) -> queries, keys, values (batch, heads, n, head size)

        rotation: the rotations of the states' positions.
        """
        return self.layer.self_attn.heads(self.layer.input_layernorm(states), rotation)

    def logits(self, states: Tensor, attended: Tensor) -> Tensor:
        """Return the logits of the token after each, (batch, n, vocab), from the same states and the attention's
        output (batch, heads, n, head size)."""
        return self.output(self.norm(self.layer.finish(states, attended)))

    def narrow(self, states: Tensor) -> Tensor:
        """Cut the wider states of a padded target to what the adapter reads: their first dimensions."""
        return states[..., : self.config.block.hidden_size]

    def chains(self, hidden: Tensor, tokens: Tensor, depth: int) -> Iterator[Tensor]:
        """Return the logits by depth, as a head's `chains`; those of a place do not depend on where the round began."""
        logits, n = self.text_logits(hidden), tokens.shape[1] - 1 - depth
        yield from (logits[:, 1 + j : 1 + j + n] for j in range(depth))

    def text_logits(self, states: Tensor) -> Tensor:
        """Return the logits along a known text, in one pass: states (batch, n, hidden) -> logits (batch, n, vocab)."""
        states = self.narrow(states)
        rotation = rotations(self.config.block, torch.arange(states.shape[1], device=states.device))
        queries, keys, values = self.project(states, rotation)
        shared = queries.shape[1] != keys.shape[1]
        attended = scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=shared)
        return self.logits(states, attended)
