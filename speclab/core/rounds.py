"""The values that pass between a loop, a drafter and the accept rule, and the settings of a decoding."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from speclab.core.sampling import GREEDY, Sampling, to_host

Target = Any  # what drafts and drafters are given: a CachedModel (speclab/models/cached.py), or a row of a batch


@dataclass(frozen=True)
class DecodeSettings:
    """The settings that stay the same from the first to the last token of one decoding, with either loop."""

    max_new_tokens: int
    sampling: Sampling = GREEDY
    eos: frozenset[int] = frozenset()  # ids that end the text; the one that ends it is emitted
    seed: int = 0  # of the random numbers. Greedy decoding draws them too, and does not use them

    def generator(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(self.seed)


class AcceptResult(NamedTuple):
    """The decision of the accept rule, on the target's device."""

    n_accepted: Tensor  # (batch,) how many drafted tokens are kept
    next_token: Tensor  # (batch,) the target's own token after them: a correction, or the bonus
    path: Tensor | None = None  # (batch, n) the kept tokens' numbers, then -1; None = the leading ones are kept
    n_rejected: Tensor | None = None  # (batch,) 1 where a drafted token was rejected; None: wherever one was not kept


@dataclass(frozen=True)
class Draft:
    """Proposed tokens, batch first, on the target's device: a chain. What is read in another way is a subclass."""

    tokens: Tensor  # (batch, n) ids
    size: Tensor  # (batch,) the first so many tokens of a row are drafted, the others are padding
    probs: Tensor | None = None  # (batch, n, vocab) what each token was drawn from; None = one-hot
    faults: Tensor | None = None  # (batch,) NOT_FINITE where the logits were not finite, else 0; None: nowhere
    parents: Tensor | None = None  # (batch, n) the number of the token that each follows; None: the one before it

    def verified_by(self, target: Target, last_tokens: Tensor) -> Tensor:
        """Let the target read the last committed token of each row, (batch,), and these tokens, in one pass.

        -> (batch, n + 1, vocab) logits: row i is what it says after i drafted tokens, and judges token i + 1.
        """
        return target.forward(torch.cat([last_tokens[:, None], self.tokens], dim=1))

    def bare(self) -> "Draft":
        """The same without the fields that no accept rule reads."""
        return Draft(self.tokens, self.size, self.probs)

    def depths(self) -> Tensor:
        """Count the drafted tokens that each row of the target's pass has read: (batch, n + 1)."""
        batch, n = self.tokens.shape
        return torch.arange(n + 1, device=self.tokens.device).expand(batch, -1)

    def matching(self, own: Tensor) -> AcceptResult:
        """Keep drafted tokens as long as each is the target's own.  own: (batch, n + 1), its choice in every row."""
        n_accepted = n_leading(self.tokens == own[:, :-1], self.size)
        return AcceptResult(n_accepted, own.gather(-1, n_accepted[:, None])[:, 0])


def n_leading(passed: Tensor, size: Tensor) -> Tensor:
    """Count a row's first `size` tests that were passed before one failed.  (batch, n) bool, (batch,) -> (batch,)"""
    return torch.minimum(passed.cumprod(-1, dtype=torch.long).sum(-1), size)


AcceptRule = Callable[[Draft, Tensor, Sampling, Tensor], AcceptResult]
"""(draft, logits (batch, n + 1, vocab), sampling, uniforms (batch, at least n + 1)) -> what is kept"""


class Decided(NamedTuple):
    """The decision of a round, on the host."""

    tokens: list[int]  # committed: the accepted drafts, then one token of the target's own
    n_drafted: int
    n_accepted: int
    n_rejected: int  # 1 where the target was asked about a further drafted token, and took none
    path: list[int] | None = None  # the numbers of the accepted drafts; None: the leading ones


def fetch(draft: Draft, result: AcceptResult) -> list[Decided]:
    """Copy the decisions of all rows to the host: the loop's one wait for the device in a round."""
    n, path = draft.tokens.shape[1], result.path
    one_each = [draft.size, result.n_accepted, result.next_token, result.n_rejected, draft.faults]  # (batch,) each
    places = [] if path is None else [path + 1]  # `to_host` takes -1, an empty place, for logits that are not finite
    numbers = torch.cat([draft.tokens, *(part[:, None] for part in one_each if part is not None), *places], dim=1)
    ids, width, decided = to_host(numbers.flatten()), numbers.shape[1], []
    for row in (ids[start : start + width] for start in range(0, len(ids), width)):
        n_drafted, n_accepted, next_token, *more = row[n:]
        n_rejected = int(n_accepted < n_drafted) if result.n_rejected is None else more[0]
        kept = list(range(n_accepted)) if path is None else [i - 1 for i in row[width - n :][:n_accepted]]
        tokens = [*(row[i] for i in kept), next_token]
        decided.append(Decided(tokens, n_drafted, n_accepted, n_rejected, None if path is None else kept))
    return decided


class Round(NamedTuple):
    """The tokens and counts of one round; speclab/core/counts.py and speclab/theory compute ratios from them."""

    tokens: list[int]  # in order
    n_drafted: int = 0
    n_accepted: int = 0  # drafted tokens among `tokens`
    n_rejected: int = 0  # 1 if the target rejected one, else 0
    prefill: bool = False  # the first token: it comes from the pass over the prompt
    finish: str | None = None  # "eos" or "length" in the last round
    seconds: Mapping[str, float] | None = None  # by phase; an instrument fills it in (speclab/lab/instruments.py)
    detail: object = None  # the numbers that the accept rule used; the same
    n_after_eos: int = 0  # ids that were generated after an end token and dropped
    text: str = ""  # what `tokens` add to the text; speclab/models/pieces.py fills it in
    n_replays: int = 0  # further target passes that its roll-back took; an instrument fills it in
    looked_up: bool = False  # a hybrid's lookup drafted, not its model; the hybrid fills it in (Drafter.described)

    @classmethod
    def committing(
        cls, tokens: list[int], n_new: int, settings: DecodeSettings, *counts: int, prefill: bool = False
    ) -> "Round":
        """Return the round that commits `tokens`, after which the text has `n_new` new ones, without what follows an
        end token. counts: drafted, accepted, rejected."""
        n_drafted, n_accepted, n_rejected = counts or (0, 0, 0)
        if n_new > settings.max_new_tokens:
            raise RuntimeError(f"{n_new} new tokens: the drafter proposed more than it was asked for")
        n_after_eos, finish = 0, "length" if n_new == settings.max_new_tokens else None
        end = next((i for i, token in enumerate(tokens) if token in settings.eos), None)
        if end is not None:
            n_after_eos, tokens, finish = len(tokens) - end - 1, tokens[: end + 1], "eos"
            if end < n_accepted:
                n_accepted, n_rejected = end + 1, 0
        return cls(list(tokens), n_drafted, n_accepted, n_rejected, prefill, finish, n_after_eos=n_after_eos)


def tokens_of(rounds: Iterable[Round]) -> list[int]:
    return [token for round_ in rounds for token in round_.tokens]
