"""Drafters with a head have this in common: the place of its keys and values, and the target's ids of its own ids."""

from typing import Any, Self

import torch
from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.core.law import Law
from speclab.core.rounds import Target
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.heads.parts import rotations
from speclab.drafts.heads.rollout import target_pass

SPARE = 512  # rows of new buffers beyond what is needed


class HeadDrafter(Drafter):
    """Reads the target's hidden states: its passes have to keep the outputs of the head's layers
    (CachedModel.hidden_layers).

    ids: (draft vocabulary,) the target's id of each of the head's; None where they are the same.
    """

    draws = True
    _target: Target

    def __init__(self, head: Any, ids: Tensor | None = None):
        self.head, self.ids = head, ids
        head.eval()
        self._layers = head.config.layers
        self._n_ids = head.config.block.vocab_size  # that it can read; a library's settings are slow to read
        self._sampling, self._vocab_size = GREEDY, 0  # the target's
        self._keys: list[Tensor] = []  # of each layer, (rows, key heads, head size)
        self._values: list[Tensor] = []
        self._length = 0  # rows of keys and values that stay
        self._reserve(SPARE, 0)

    def __deepcopy__(self, memo: dict) -> Self:
        return type(self)(self.head, self.ids)

    @property
    def device(self) -> torch.device:
        return self.head.norm.weight.device

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._target, self._sampling, self._vocab_size = target, sampling, target.vocab_size
        self._length = 0
        self._hidden = target.hidden(self._layers)  # (1, rows, layers * width), not read yet

    def _take_states(self, n: int) -> None:
        """Take the target's states of the first n tokens of its last pass."""
        self._hidden = torch.cat([self._hidden, self._target.hidden(self._layers)[:, :n]], dim=1)

    def describe(self, name: str, engine: str) -> str:
        return f"{name}: {self.in_words()}"

    def in_words(self) -> str:
        n, layers = len(self.head.layers), ", ".join(map(str, self._layers))
        millions = sum(weight.numel() for weight in self.head.parameters()) / 1e6
        depth = "one layer" if n == 1 else f"{n} layers"
        return f"{depth} over the target's states after layers {layers} (from 0), {millions:.1f} M parameters"

    def as_target_logits(self, logits: Tensor, vocab_size: int) -> Tensor:
        """Return the head's logits (n, draft vocabulary) -> (n, vocab_size); ids that the head lacks have no
        probability"""
        n_ids = max(vocab_size, self._n_ids)
        if self.ids is not None or logits.shape[1] < n_ids:
            ids = torch.arange(logits.shape[1], device=logits.device) if self.ids is None else self.ids
            logits = logits.new_full((len(logits), n_ids), float("-inf")).index_copy_(1, ids, logits)
        return logits if logits.shape[1] == vocab_size else logits[:, :vocab_size]

    def law(self, target: Any, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        """One pass of the target gives the states; the proposals depend on where the round began."""
        k = min(k, self.longest_draft)
        ids, rows = torch.tensor([[*prompt, *text]], device=target.device), list[Tensor]()
        with torch.inference_mode():
            hidden, _ = target_pass(target.model, ids, self._layers)
            # The head goes on behind the text, where the target may have no positions. These rows mean nothing.
            hidden, ids = (torch.cat([x, x[:, :1].expand(-1, k, *x.shape[2:])], dim=1) for x in (hidden, ids))
            # These rows are those of a round that begins after the prompt; after a prompt of one token none does.
            first = len(prompt) - 2
            for logits in self.head.chains(hidden, ids, k):
                of_text = logits[0, max(0, first) : first + len(text)]
                of_text = torch.cat([logits[0, :1], of_text]) if first < 0 else of_text
                rows.append(sampling.probs(self.as_target_logits(of_text, target.vocab_size)).cpu())
        return Law(rows.__getitem__, [k] * len(text))

    def _rotation(self, length: int, n: int) -> tuple[Tensor, Tensor]:
        """Return the rotations of n positions from `length` on, and make room for their keys and values."""
        if length + n > len(self._keys[0]):
            self._reserve(2 * (length + n), length)
        return self._cos[:, length : length + n], self._sin[:, length : length + n]

    def _reserve(self, rows: int, length: int) -> None:
        """Make new buffers of so many rows with the first `length` old ones, and the rotations of their positions."""
        block, weight = self.head.config.block, self.head.norm.weight
        shape = (rows, block.num_key_value_heads, block.head_dim)
        for old in (self._keys, self._values):
            new = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in self.head.layers]
            for rows_of_new, rows_of_old in zip(new, old, strict=False):
                rows_of_new[:length] = rows_of_old[:length]
            old[:] = new
        cos, sin = rotations(block, torch.arange(rows, device=weight.device))
        self._cos, self._sin = cos.to(weight.dtype), sin.to(weight.dtype)
