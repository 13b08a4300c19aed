"""Drafts with a head that reads the target's hidden states (speclab/drafts/heads/feature.py), one token a pass.

Between rounds the head's keys and values hold every token that was committed before its last draft. The states that the
target computed for these (of its last committed token then, and of the accepted drafts; never of a rejected one) go in
together with the first pass of the next round, each with the token after it. Within a round the head's own output takes
the place of the states that the target has not computed yet; those keys and values are overwritten in the next round.
"""

from typing import Any, Self

import torch
from torch import Tensor

from draft_models import as_draft, as_drawn
from speclab.core.drafter import Drafter, Law
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import GREEDY, Drawn, Sampling, draw_draft, probability, to_device
from speclab.drafts.heads.feature import FeatureHead, parts_of_head, target_pass
from speclab.drafts.heads.parts import rotations
from speclab.engines.c_pass import CBackend, CModel

SPARE = 512  # rows of new buffers beyond what is needed


class HeadDrafter(Drafter):
    """Reads the target's hidden states: CachedModel.hidden_layers has to name the head's layers.

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
        n, layers = len(self.head.layers), ", ".join(map(str, self._layers))
        millions = sum(weight.numel() for weight in self.head.parameters()) / 1e6
        depth = "one layer" if n == 1 else f"{n} layers"
        return f"{name}: {depth} over the target's states after layers {layers} (from 0), {millions:.1f} M parameters"

    def as_target_logits(self, logits: Tensor, vocab_size: int) -> Tensor:
        """Give ids that the head lacks no probability: (n, draft vocabulary) logits -> (n, vocab_size)"""
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
            for logits in self.head.chains(hidden, ids.clamp(max=self._n_ids - 1), k):
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


class FeatureDrafter(HeadDrafter):
    """Proposes tokens one by one."""

    head: FeatureHead
    asks_to_go_on = True
    packed: CModel | None = None  # the head on the engine `c`, where the target's passes run on it
    _on_c: CBackend | None = None

    def use_c(self) -> None:
        """Run its passes on the engine `c`. Raises NoFastBackend where that cannot be."""
        self.packed = CModel(parts_of_head(self.head))

    def __deepcopy__(self, memo: dict) -> Self:
        twin = super().__deepcopy__(memo)
        twin.packed = self.packed
        return twin

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        super().prefill(target, prompt, sampling)
        self._tokens = prompt[:, 1:]  # (1, rows), the token after each; the last one's comes with `observe`
        self._on_c = self.packed.start((0,)) if self.packed else None

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        if k == 0:
            return as_draft([], self.device)
        drawn: list[Drawn] = []
        with torch.inference_mode():
            output, logits = self._catch_up()
            for i in range(k):
                if i:
                    output, logits = self._forward(output, drawn[-1].token[:, None], self._length + i - 1)
                logits = self.as_target_logits(logits, self._vocab_size)  # (1, the target's vocabulary)
                drawn.append(draw_draft(logits, self._sampling, uniforms[:, i]))
                if self.keep_drafting and not self.keep_drafting(probability(logits, drawn[-1])):
                    break
        return as_drawn(drawn)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        if self._tokens.shape[1] == self._hidden.shape[1]:  # not right after the prompt, whose states are here already
            self._take_states(n_accepted + 1)
        self._tokens = torch.cat([self._tokens, to_device(committed, self.device)[None]], dim=1)

    def _catch_up(self) -> tuple[Tensor, Tensor]:
        """Read what was committed since the last round -> the last position's output, (1, 1, hidden), and logits."""
        output = self._forward(self.head.fuse(self._hidden), self._tokens, self._length)
        self._length += self._tokens.shape[1]
        self._hidden, self._tokens = self._hidden[:, :0], self._tokens[:, :0]
        return output

    def _forward(self, states: Tensor, tokens: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Run a pass over states (1, m, hidden) from position `length` on, with the token after each, which it knows.

        -> the last output, (1, 1, hidden), and its logits, (1, draft vocabulary)
        """
        tokens = tokens.clamp(0, self._n_ids - 1)  # a target may know more ids
        if self._on_c is None:
            rotation = self._rotation(length, tokens.shape[1])
            return self.head.step(states, tokens, rotation, length, self._keys[0], self._values[0])
        logits = self._on_c.run(length, 1, tokens, states)
        output = self._on_c.hidden[0][:, -1:]
        return self.head.norm(output) if self.head.config.norm_output else output, logits[:, 0]
