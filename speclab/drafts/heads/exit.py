"""An adapter for early exit: from the target's own states after some of its layers to what it will say next.

LayerSkip (arXiv 2404.16710) trains a model so that its output layer can read an early state. A model that was not
trained so needs something in between (Kangaroo, arXiv 2404.18911). Here it is one gated MLP beside the state, a norm,
and the target's own output layer. It has no attention: what it says at a position depends on the state there alone, so
it keeps nothing between passes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from speclab.drafts.heads.block import TargetOutput
from speclab.drafts.heads.parts import Norm, Product


@dataclass(frozen=True)
class ExitConfig:
    """What an adapter is.

    exit_layer: N, how many of the target's first layers a draft runs, at least 1 and not all of them.
    target_layers: decoder layers of the target.
    target_hidden: width of its states. intermediate: width of the MLP. vocab: rows of the target's output layer.
    """

    exit_layer: int
    target_layers: int
    target_hidden: int
    intermediate: int
    vocab: int
    eps: float = 1e-6

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layer, from 0, whose output it reads."""
        return (self.exit_layer - 1,)


class ExitAdapter(nn.Module):
    """The weights. output: the target's output layer, (vocab, hidden), which is neither trained nor stored."""

    def __init__(self, config: ExitConfig, output: Tensor):
        super().__init__()
        width = config.target_hidden
        self.config = config
        self.output = TargetOutput(output)
        self.mlp_norm, self.norm = (Norm(width, config.eps) for _ in range(2))
        self.gate_proj = nn.Linear(width, config.intermediate, bias=False)
        self.up_proj = nn.Linear(width, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, width, bias=False)
        self.gate_up = Product(self.gate_proj, self.up_proj)
        self.down, self.of_output = Product(self.down_proj), Product(self.output)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Random weights from this seed; the MLP adds little at first."""
        generator = torch.Generator().manual_seed(seed)
        for matrix, spread in ((self.gate_proj, 0.02), (self.up_proj, 0.02), (self.down_proj, 0.005)):
            matrix.weight.copy_(torch.randn(matrix.weight.shape, generator=generator) * spread)

    def logits(self, states: Tensor) -> Tensor:
        """The target's states after `exit_layer` layers (..., hidden) -> (..., vocab), of the token after each

        Of a padded target's wider states it reads the first dimensions.
        """
        states = states[..., : self.config.target_hidden]
        gate, up = self.gate_up(self.mlp_norm(states)).chunk(2, dim=-1)
        return self.of_output(self.norm(states + self.down(silu(gate) * up)))
