"""What passes between a loop, a drafter and the accept rule, and the settings of a decoding."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from speclab.core.sampling import GREEDY, Sampling, to_host


@dataclass(frozen=True)
class DecodeSettings:
    """What stays the same from the first to the last token of one decoding, with either loop.

    max_new_tokens: at most so many ids are generated.
    eos: ids that end the text; the one that ends it is emitted.
    seed: of the random numbers. Greedy decoding draws them too, and does not use them.
    """

    max_new_tokens: int
    sampling: Sampling = GREEDY
    eos: frozenset[int] = frozenset()
    seed: int = 0

    def generator(self, device: torch.device) -> torch.Generator:
        """A new generator on `device`, at the start of this decoding's random numbers."""
        return torch.Generator(device).manual_seed(self.seed)


class Draft(NamedTuple):
    """Proposed tokens, batch first, on the target's device.

    A tree has several guesses for a place. Its n tokens are nodes; parents says for each the number of the node that it
    follows, -1 for the last committed token, which is the root. A parent comes before its children, and the children of
    one parent are in the order in which they were drawn. A chain is the tree with parents -1, 0, 1, ..., n - 2.

    The pass of the target reads the root and then the nodes: row 0 is the root's, row i + 1 node i's. A row stands at
    the position of its depth, and reads the committed text, the nodes before it on its branch, and itself; never a
    sibling.
    """

    tokens: Tensor  # (batch, n) ids
    size: Tensor  # (batch,) the first so many tokens of a row are drafted, the others are padding
    probs: Tensor | None = None  # (batch, n, vocab) what each token was drawn from; None = one-hot
    states: Tensor | None = None  # (batch, n, hidden) early exit: the target's own, see speclab/drafts/exit.py
    parents: Tensor | None = None  # (batch, n) a tree: the token that each follows; None = a chain
    certain: Tensor | None = None  # (batch,) bool: rows whose `probs` are one-hot, beside rows that were drawn
    faults: Tensor | None = (
        None  # (batch,) NOT_FINITE where the draft's logits were not finite, else 0; None: no logits
    )


def reads(parents: Tensor) -> Tensor:
    """Which rows of the target's pass each row may read, itself included.  (batch, n) -> (batch, n + 1, n + 1) bool"""
    batch, n = parents.shape
    seen = torch.eye(n + 1, device=parents.device).repeat(batch, 1, 1)
    seen[:, 1:].scatter_(-1, parents[..., None] + 1, 1.0)  # itself and its parent
    for _ in range(n.bit_length()):  # each time twice as far up
        seen = (seen @ seen).clamp(max=1)
    return seen > 0


def depths(parents: Tensor) -> Tensor:
    """How many tokens after the root each row of the pass stands, 0 for the root.  (batch, n) -> (batch, n + 1)"""
    return reads(parents).sum(-1) - 1


def chain(n: int, device: torch.device | None = None) -> Tensor:
    """The parents of a chain of n tokens, (1, n)."""
    return torch.arange(-1, n - 1, device=device)[None]


def parents_of(draft: Draft) -> Tensor:
    """(batch, n); a chain's where the draft has none."""
    if draft.parents is not None:
        return draft.parents
    return chain(draft.tokens.shape[1], draft.tokens.device).expand_as(draft.tokens)


class AcceptResult(NamedTuple):
    """What the accept rule decided, on the target's device."""

    n_accepted: Tensor  # (batch,) how many drafted tokens are kept
    next_token: Tensor  # (batch,) the target's own token after them: a correction, or the bonus
    path: Tensor | None = None  # (batch, n) of a tree: the kept tokens' numbers first; None = the leading ones


AcceptRule = Callable[[Draft, Tensor, Sampling, Tensor], AcceptResult]
"""(draft, logits (batch, n + 1, vocab), sampling, uniforms (batch, at least n + 1)) -> what is kept"""


class Target(Protocol):
    """What a drafter may ask of the target, a CachedModel."""

    @property
    def vocab_size(self) -> int:
        """Number of ids that it may emit: 0 to vocab_size - 1."""

    def hidden(self, layers: Iterable[int]) -> Tensor:
        """Outputs of these layers in the last pass, side by side: (1, m, layers * hidden)."""

    def forward_first(self, tokens: Tensor, n_layers: int) -> Tensor:
        """Run the first `n_layers` layers alone over further tokens: (1, m) ids -> states (1, m, hidden)."""


class Drafter(Protocol):
    """Proposes tokens for one row of text. Its state is its own; the loop tells it what was committed."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Drop all state and read a prompt, (1, prompt length) ids. The target has just read it."""

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose tokens after everything committed, so that at most `k` of them can be accepted.

        uniforms: (1, n) in [0, 1) with n >= k. A tree has at most n tokens, and branches of at most k tokens.
        """

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """`n_accepted` proposals were kept; `committed` are the ids now final: those, then one from the target."""


class Decided(NamedTuple):
    """What a round decided, on the host."""

    tokens: list[int]  # committed: the accepted drafts, then one token of the target's own
    n_drafted: int
    n_accepted: int
    n_rejected: int  # 1 where the target was asked about a further drafted token, and took none
    path: list[int] | None = None  # of a tree: the numbers of the accepted drafts


def fetch(draft: Draft, result: AcceptResult) -> Decided:
    """Copy one row's decision to the host: the loop's one wait for the device in a round."""
    return fetch_rows(draft, result)[0]


def fetch_rows(draft: Draft, result: AcceptResult) -> list[Decided]:
    """Copy the decisions of all rows to the host: the loop's one wait for the device in a round."""
    n_rows, n = draft.tokens.shape
    parts = [draft.tokens]  # (batch, n) each
    if draft.parents is not None and result.path is not None:
        # + 1: `to_host` takes -1 for logits that are not finite, and here it is the root or an empty place of the path.
        parts += [draft.parents + 1, result.path + 1]
    counts = [draft.size, result.n_accepted, result.next_token]  # (batch,) each
    faults = [] if draft.faults is None else [draft.faults]  # `to_host` notices them
    host = iter(to_host(torch.cat([*(part.flatten() for part in parts), *counts, *faults])))
    widths = [n] * len(parts) + [1] * len(counts)
    columns = [[list(islice(host, width)) for _ in range(n_rows)] for width in widths]
    return [_decided(*of_row) for of_row in zip(*columns, strict=True)]


def _decided(drafted: list[int], *others: list[int]) -> Decided:
    """What was fetched for one row; others: of a tree its parents and its path, then the three counts."""
    *tree, (n_drafted,), (n_accepted,), (next_token,) = others
    if not tree:
        return Decided([*drafted[:n_accepted], next_token], n_drafted, n_accepted, int(n_accepted < n_drafted))
    parent_rows, kept_rows = tree[0][:n_drafted], tree[1][:n_accepted]
    n_rejected = int((kept_rows[-1] if kept_rows else 0) in parent_rows)  # after a leaf there was nothing to reject
    tokens = [*(drafted[i - 1] for i in kept_rows), next_token]
    return Decided(tokens, n_drafted, n_accepted, n_rejected, [i - 1 for i in kept_rows])


class Round(NamedTuple):
    """What one round emitted. Counts only: every ratio is computed from them in speclab/core/counts.py or theory."""

    tokens: list[int]  # in order
    n_drafted: int = 0
    n_accepted: int = 0  # drafted tokens among `tokens`
    n_rejected: int = 0  # 1 if the target rejected one, else 0
    prefill: bool = False  # the first token: it comes from the pass over the prompt
    finish: str | None = None  # "eos" or "length" in the last round
    seconds: dict[str, float] | None = None  # by phase; an instrument fills it in (speclab/lab/instruments.py)
    detail: object = None  # the numbers that the accept rule used; the same (speclab/lab/tracing/follow.py)
    n_after_eos: int = 0  # ids that were generated after an end token and dropped
    text: str = ""  # what `tokens` add to the text; speclab/models/prompts.py fills it in
    n_replays: int = 0  # target passes after it that read accepted tokens once more (recurrent layers); an instrument
    looked_up: bool | None = None  # a hybrid's lookup drafted, not its model; an instrument fills it in

    @classmethod
    def committing(
        cls,
        tokens: list[int],
        n_new: int,
        settings: DecodeSettings,
        n_drafted: int = 0,
        n_accepted: int = 0,
        n_rejected: int = 0,
        prefill: bool = False,
    ) -> "Round":
        """The round that commits `tokens`, after which the text has `n_new` new ones.

        What follows an end token is dropped: it is counted in `n_after_eos` alone, and what the target decided about it
        is not counted.
        """
        if n_new > settings.max_new_tokens:
            raise RuntimeError(f"{n_new} new tokens: the drafter proposed more than it was asked for")
        n_after_eos = 0
        finish = "length" if n_new == settings.max_new_tokens else None
        end = next((i for i, token in enumerate(tokens) if token in settings.eos), None)
        if end is not None:
            n_after_eos, tokens, finish = len(tokens) - end - 1, tokens[: end + 1], "eos"
            if end < n_accepted:
                n_accepted, n_rejected = end + 1, 0
        return cls(list(tokens), n_drafted, n_accepted, n_rejected, prefill, finish, n_after_eos=n_after_eos)


def tokens_of(rounds: Iterable[Round]) -> list[int]:
    """The ids of all rounds: the text that they make."""
    return [token for round_ in rounds for token in round_.tokens]
