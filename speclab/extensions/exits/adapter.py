"""The lab's adapter for early exit: from the target's own states after two layers to what it will say next.

LayerSkip (arXiv 2404.16710) trains a model so that its output layer can read an early state. A model that was not
trained so needs something in between (Kangaroo, arXiv 2404.18911): here one decoder layer of its own, which reads the
states of the text so far, a norm, and the target's own output layer. config.json says after which layer of which target
it reads, and model.safetensors holds its weights; the output layer is the target's and is not in it.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from speclab.drafts.heads.files import decoder_of, read_files, read_tensors, weights_of
from speclab.drafts.heads.parts import DecoderLayer, Norm, Rotation, TargetOutput, rotations
from speclab.engines.eager import decoder_layers
from speclab.models import loading
from speclab.system.errors import UsageProblem

PLACE = str(loading.LAB_PAIR / "exit")


class ExitConfig(NamedTuple):
    """The settings of an adapter. exit_layer: N, how many of the target's first layers a draft runs. target_layers:
    the number of its decoder layers. block: the sizes of the adapter's own one, with the target's width and vocabulary.
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

    def project(self, states: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Project the target's states (batch, n, hidden) -> queries, keys, values (batch, heads, n, head size)

        rotation: the rotations of the states' positions.
        """
        layer: Any = self.layers[0]
        return layer.self_attn.heads(layer.input_layernorm(states), rotation)

    def logits(self, states: Tensor, attended: Tensor) -> Tensor:
        """Return the logits of the token after each, (batch, n, vocab), from the same states and the attention's
        output (batch, heads, n, head size)."""
        layer: Any = self.layers[0]
        return self.output(self.norm(layer.finish(states, attended)))

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


def read_adapter(target: PreTrainedModel, padded: bool = False) -> ExitAdapter:
    """Return the lab's adapter, on the device of this target and in its number format.

    padded: the target is padded (lab:SIZE): the adapter reads what the small model computes, the first dimensions of
    the states. Raises UsageProblem for another target than the lab's.
    """
    found, weights = read_files(PLACE)
    block = decoder_of(found, "llama")
    config = ExitConfig(found["exit_layer"], found["target_layers"], block)
    table = weights_of(target)[1]
    has, wants = (
        (len(decoder_layers(target)), *table.shape),
        (config.target_layers, block.vocab_size, block.hidden_size),
    )
    if any(a < b for a, b in zip(has, wants, strict=True)) or (has != wants and not padded):
        raise UsageProblem("--draft exit: the lab's adapter reads the lab's own target; give another --draft")

    def built() -> ExitAdapter:
        with torch.device("meta"):
            adapter = ExitAdapter(config, table[: block.vocab_size, : block.hidden_size])
        adapter.load_state_dict(read_tensors(weights, adapter, target)[0], assign=True)
        return adapter.eval().requires_grad_(False)

    return loading.loaded(PLACE, "its weights", built)
