"""The target's states and logits for the rows that a draft learns from, kept for when a row comes again."""

import contextlib
import functools
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.drafts.heads.rollout import target_pass
from speclab.lab.training.recipes import Reading
from speclab.models.memory import free_memory

KEPT_AS = torch.bfloat16
KEPT_GIB = {"cpu": 4}  # by the target's device; elsewhere its pass is fast
CLOSE = 1e-4  # of the largest logit: how far the output layer alone may be from the target's own logits


def reading(target: PreTrainedModel, layers: tuple[int, ...], gib: float | None) -> Reading:
    """A function that gives the states of these layers, and the logits, of rows of ids.

    gib: of memory on the host for what is computed, 0 for none; None: KEPT_GIB, or half of what is free if that is
    less. Nothing is kept for a target that changes its logits after the output layer.
    """
    if gib is None:
        usual, free = KEPT_GIB.get(target.device.type, 0), free_memory(torch.device("cpu"))
        gib = usual if free is None else min(usual, free / 2**31)
    plain = functools.partial(target_pass, target, layers=layers)
    return Kept(target, layers, int(gib * 2**30)) if gib and _ends_with_output_layer(target) else plain


class Kept:
    """A reading that makes the target's pass once for each row, as long as the memory lasts.

    What is kept of a row are the states, with the input of the output layer: the logits are many more numbers, and one
    product away. All are rounded to bfloat16, so a draft learns from slightly other numbers than without it.
    """

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...], free: int):
        """free: bytes that may be taken."""
        self.target, self.layers, self.free = target, layers, free
        self.rows: dict[bytes, Tensor] = {}  # ids -> (n, layers * hidden + hidden)

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """A row has the same values whether it is new or kept."""
        keys = [row.numpy().tobytes() for row in tokens.cpu()]
        new = [i for i, key in enumerate(keys) if key not in self.rows]
        made = dict(zip([keys[i] for i in new], self._computed(tokens[new]) if new else [], strict=True))
        for key, states in made.items():
            if states.nbytes <= self.free:
                self.rows[key], self.free = states.clone(), self.free - states.nbytes
        states = torch.stack([made[key] if key in made else self.rows[key] for key in keys])
        states = states.to(self.target.device, self.target.dtype)
        output = self.target.get_output_embeddings()
        width = states.shape[-1] * len(self.layers) // (len(self.layers) + 1)
        return states[..., :width], output(states[..., width:])

    def _computed(self, tokens: Tensor) -> Tensor:
        """Compute the part of these ids that is kept: (batch, n) -> (batch, n, layers * hidden + hidden) on the host"""
        with _input_of_output_layer(self.target) as inputs:
            hidden, _ = target_pass(self.target, tokens, self.layers)
        return torch.cat([hidden, *inputs], dim=-1).to("cpu", KEPT_AS)


@contextlib.contextmanager
def _input_of_output_layer(target: PreTrainedModel) -> Iterator[list[Tensor]]:
    """While this is open, each pass of the target appends what its output layer gets, (batch, n, hidden)."""
    inputs: list[Tensor] = []
    handle = target.get_output_embeddings().register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    try:
        yield inputs
    finally:
        handle.remove()


@torch.no_grad()
def _ends_with_output_layer(target: PreTrainedModel) -> bool:
    """Tell whether the logits are the output of the output layer: some targets divide or cap them."""
    output = target.get_output_embeddings()
    if output is None:
        return False
    with _input_of_output_layer(target) as inputs:
        logits = target(input_ids=torch.arange(8, device=target.device)[None], use_cache=False).logits
    return len(inputs) == 1 and bool((output(inputs[0]) - logits).abs().max() <= CLOSE * logits.abs().max())
