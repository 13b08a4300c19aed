"""What a rejection teaches (Carryover, arXiv 2609.14717; DFlow, 2609.06498): states of rejected tokens as context.

The target's pass computes states at the rejected positions, too. Here a head reads them in its next draft, at the
positions that they had, and drops them after it. They are of tokens that are not in the text, so what is proposed gets
worse or better, and the text stays the target's.

`stays` is the same with a bug that the text does not show: the states stay for all later rounds.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.models.setup import Setup


class CarriedBlock(BlockDrafter):
    """A block head whose next draft also reads the states of what was rejected."""

    stays, most = False, 99  # most: states that are carried, the first ones behind the accepted tokens

    def prefill(self, target, prompt, sampling) -> None:
        """Take the target's states of the prompt, (1, prompt length) ids."""
        super().prefill(target, prompt, sampling)
        self._n_drafted = 0
        self._rejected = self._hidden[:, :0]

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens. uniforms (1, k), in [0, 1)."""
        draft = super().propose(k, uniforms)
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take the states of the tokens that are final, and those of the rejected ones."""
        if self._anchor is not None:
            rows = self._target.hidden(self._layers)
            self._rejected = rows[:, n_accepted + 1 : self._n_drafted + 1][:, : self.most].clone()
        super().observe(n_accepted, committed)

    def _logits(self) -> Tensor:
        """Read what is new and what was rejected, and run a block."""
        head, n = self.head, self._hidden.shape[1]
        hidden = torch.cat([self._hidden, self._rejected], dim=1)
        begin, slots = self._length + n, head.config.slots
        rotation = self._rotation(self._length, max(hidden.shape[1], n + slots))
        cos, sin = rotation
        of_hidden, of_slots = (
            (cos[:, : hidden.shape[1]], sin[:, : hidden.shape[1]]),
            (cos[:, n : n + slots], sin[:, n : n + slots]),
        )
        context = head.context(head.fuse(hidden), of_hidden)
        kept = hidden.shape[1] if self.stays else n
        for layer, pair in enumerate(context):
            for rows, part in zip((self._keys[layer], self._values[layer]), pair, strict=True):
                rows[self._length : self._length + kept] = part[0, :, :kept].transpose(0, 1)
        self._carried = [tuple(part[:, :, n:] for part in pair) for pair in context]
        if self.stays:
            self._old = [
                tuple(torch.cat(both, dim=2) for both in zip(a, b, strict=True))
                for a, b in zip(getattr(self, "_old", self._carried), self._carried, strict=True)
            ]

        def seen(layer: int, *own: Tensor) -> tuple[Tensor, Tensor]:
            parts = (self._keys[layer], self._values[layer])
            before = [rows[:begin].transpose(0, 1)[None] for rows in parts]
            more = self._old[layer] if self.stays else self._carried[layer]
            keys, values = (torch.cat(three, dim=2) for three in zip(before, more, own, strict=True))
            return keys, values

        assert self._anchor is not None
        states = head(self._anchor[:, None], of_slots, None, seen)[:, 0]
        self._length, self._hidden = begin, self._hidden[:, :0]
        return head.logits(states[:, slots - head.config.longest :])


class CarriedOne(CarriedBlock):
    """The same with the state of the first rejected token alone."""

    most = 1


class StayingBlock(CarriedBlock):
    """The same with states that stay too long."""

    stays = True

    def prefill(self, target, prompt, sampling) -> None:
        """Take the target's states of the prompt, (1, prompt length) ids."""
        super().prefill(target, prompt, sampling)
        self.__dict__.pop("_old", None)


class CarriedFeature(FeatureDrafter):
    """A feature head whose next draft also attends to the states of what was rejected, each with the drafted token
    after it."""

    def prefill(self, target, prompt, sampling) -> None:
        """Take the target's states of the prompt, (1, prompt length) ids."""
        super().prefill(target, prompt, sampling)
        self._drafted = prompt[:, :0]
        self._pairs = (self._hidden[:, :0], prompt[:, :0])

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens. uniforms (1, k), in [0, 1)."""
        draft = super().propose(k, uniforms)
        self._drafted = draft.tokens
        return draft

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take the states that are final, and those of the rejected tokens that another one followed."""
        n = self._drafted.shape[1]
        if self._tokens.shape[1] == self._hidden.shape[1]:
            rows = self._target.hidden(self._layers)
            self._pairs = rows[:, n_accepted + 1 : n].clone(), self._drafted[:, n_accepted + 1 :]
        super().observe(n_accepted, committed)

    def _catch_up(self) -> tuple[Tensor, Tensor]:
        """Read the rejected pairs behind the place where new ones begin, then the new ones, which attend to both."""
        head, (hidden, tokens) = self.head, self._pairs
        n = self._tokens.shape[1]
        m, begin = tokens.shape[1], self._length + n
        if not m:
            self._extra = None
            return super()._catch_up()
        _, _, *self._extra = head.project(head.fuse(hidden), self._known(tokens), self._rotation(begin, m))
        found = super()._catch_up()
        self._pairs = hidden[:, :0], tokens[:, :0]
        return found

    def _forward(self, states: Tensor, tokens: Tensor, length: int, step: str = "step") -> tuple[Tensor, Tensor]:
        """Run a pass whose last row also reads the rejected pairs."""
        if self._extra is None:
            return super()._forward(states, tokens, length, step)
        head, n = self.head, tokens.shape[1]
        rotation = self._rotation(length, n)
        states = head.fuse(states) if step == "first_step" else states
        residual, queries, *written = head.project(states, self._known(tokens), rotation)
        read = []
        for rows, part, extra in zip((self._keys[0], self._values[0]), written, self._extra, strict=True):
            rows[length : length + n] = part[0].transpose(0, 1)
            read.append(torch.cat([rows[: length + n].transpose(0, 1)[None], extra], dim=2))
        keys, values = read
        shared = queries.shape[1] != keys.shape[1]
        attended = scaled_dot_product_attention(queries[:, :, -1:], keys, values, enable_gqa=shared)
        output = head.finish(residual[:, -1:], attended)
        return output, head.logits(output)[:, 0]


def arms(setup: Setup, block: BlockDrafter, feature: FeatureDrafter) -> dict[str, tuple[Drafter, int]]:
    """Return the drafters of this method by name, each with its draft length."""
    n = block.head.config.longest
    return {
        "block": (BlockDrafter(block.head, block.ids), n),
        "block, carried": (CarriedBlock(block.head, block.ids), n),
        "block, one carried": (CarriedOne(block.head, block.ids), n),
        "block, stays": (StayingBlock(block.head, block.ids), n),
        "feature": (FeatureDrafter(feature.head, feature.ids), 6),
        "feature, carried": (CarriedFeature(feature.head, feature.ids), 6),
    }
