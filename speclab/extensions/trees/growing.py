"""How each kind of draft grows a tree: what comes after each of several tokens, level by level.

A kind that can is in GROWING, or has these methods itself, as drafts of blocks have. A model reads a whole level in one
pass, and so does a feature head.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from draft_models import ModelDrafter
from speclab.core.drafter import Drafter
from speclab.core.rounds import Target
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.parts import appended
from speclab.system.errors import UsageProblem


class Growing(Protocol):
    """It says what comes after each of several tokens."""

    @property
    def drafter(self) -> Drafter:
        """Return the drafter whose proposals these are."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Drop all state and read a prompt, (1, prompt length) ids."""

    def start_tree(self) -> Tensor:
        """Return the logits of the token after everything committed, (1, the target's vocabulary)."""

    def grow(self, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        """Return the logits of the token after each of these, (m, the target's vocabulary).

        tokens: (m,), each `depth` tokens after the last committed one. parents: (m,), which token of this tree each
        follows, by the order in which they were given here, -1 for none. reads: (m, j + m) bool, which of the j tokens
        given before and of these stand on the branch of each.
        """

    def end_tree(self) -> None:
        """Forget the tokens of this tree: the drafter's `observe` says which of them were committed."""


def growing(drafter: Drafter) -> Growing:
    """Return the drafter in the form that grows trees. Raises UsageProblem for a class that does not say how.

    A subclass is not taken for its base, which may draft other tokens, unless it says `branches_as_base`.
    """
    kind: type = type(drafter)
    while kind not in GROWING and "start_tree" not in vars(kind) and vars(kind).get("branches_as_base"):
        kind = kind.__mro__[1]
    if "start_tree" in vars(kind):
        return drafter  # type: ignore[return-value]  # it grows trees by itself
    if kind not in GROWING:
        raise UsageProblem(
            f"{type(drafter).__name__} does not say what comes after each of several tokens; set branches_as_base "
            "where it is the same as of its base class, or draft chains"
        )
    return GROWING[kind](drafter)


class GrowingModel:
    """A draft model: the cache holds the tree's tokens behind the committed ones until the tree ends."""

    def __init__(self, drafter: ModelDrafter):
        self.drafter = drafter
        self._n_before: int | None = None  # tokens in the cache, while it holds a tree behind them

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the model read the prompt."""
        self._n_before = None
        self.drafter.prefill(target, prompt, sampling)

    def start_tree(self) -> Tensor:
        """Return the logits of the token after everything committed, (1, the target's vocabulary)."""
        logits = self.drafter.draft.forward(self.drafter.not_fed())[:, -1]
        self._n_before = self.drafter.draft.length
        return self.drafter.as_target_logits(logits)

    def grow(self, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        """Return the logits of the token after each of these (m,), (m, the target's vocabulary): one pass for all."""
        ids = self.drafter.draft_ids(tokens)[None]
        return self.drafter.as_target_logits(self.drafter.draft.forward(ids, reads[None])[0])

    def end_tree(self) -> None:
        """Crop the cache to what was committed before the tree: its accepted tokens are fed again with the others."""
        if self._n_before is not None:
            self.drafter.draft.crop(self._n_before)
            self._n_before = None


class GrowingFeature(FeatureDrafter):
    """A feature head: a token's pass gets the head's output for its parent, at the position of its depth."""

    @property
    def drafter(self) -> Drafter:
        """Return this drafter itself."""
        return self

    def start_tree(self) -> Tensor:
        """Return the logits of the token after everything committed, (1, the target's vocabulary)."""
        # The outputs are (1, 1 + j, hidden), of the committed text and of the tree's tokens.
        self._outputs, logits = self._catch_up()
        return self.as_target_logits(logits, self._vocab_size)

    def grow(self, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        """Return the logits of the token after each of these (m,), (m, the target's vocabulary): one pass for all."""
        n, before = len(tokens), self._outputs.shape[1] - 1  # tokens of this tree that have keys and values already
        start = self._length + before
        self._rotation(start, n)  # makes room
        at_depth = slice(self._length + depth - 1, self._length + depth)
        rotation = self._cos[:, at_depth].expand(1, n, -1), self._sin[:, at_depth].expand(1, n, -1)
        residual, queries, keys, values = self.head.project(
            self._outputs[:, parents + 1], tokens[None].clamp(0, self._n_ids - 1), rotation
        )
        shared = queries.shape[1] != keys.shape[1]
        keys, values = appended((self._keys[0], self._values[0]), (keys, values), start)
        mask = nn.functional.pad(reads, (self._length, 0), value=True)  # (m, committed + j + m)
        attended = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=shared)
        outputs = self.head.finish(residual, attended)
        self._outputs = torch.cat([self._outputs, outputs], dim=1)
        return self.as_target_logits(self.head.logits(outputs)[0], self._vocab_size)

    def end_tree(self) -> None:
        """Do nothing: rows behind the committed text are overwritten."""


GROWING: dict[type, Callable[[Any], Growing]] = {
    ModelDrafter: GrowingModel,
    FeatureDrafter: lambda drafter: GrowingFeature(drafter.head, drafter.ids),
}
