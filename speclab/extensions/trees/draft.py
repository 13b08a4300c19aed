"""A draft with several guesses for a place: its fields, and which of its tokens each one reads."""

import importlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, Draft, Target


@dataclass(frozen=True)
class TreeDraft(Draft):
    """A tree of proposed tokens, batch first, on the target's device.

    Its n tokens are nodes. `parents` says for each the number of the node that it follows, -1 for the last committed
    token, which is the root. A parent comes before its children, and the children of one parent are in the order in
    which they were drawn. A chain is the tree with parents -1, 0, 1, ..., n - 2.

    The pass of the target reads the root and then the nodes: row 0 is the root's, row i + 1 node i's. A row stands at
    the position of its depth, and reads the committed text, the nodes before it on its branch, and itself; never a
    sibling.
    """

    parents: Tensor = field(kw_only=True)  # (batch, n) the node that each follows

    @classmethod
    def of(cls, draft: Draft) -> "TreeDraft":
        """Return the same tokens as a tree; a chain becomes the tree with one branch."""
        return cls(draft.tokens, draft.size, draft.probs, draft.faults, parents=parents_of(draft))

    def verified_by(self, target: Target, last_tokens: Tensor) -> Tensor:
        """Make one pass over the last committed token of each row, (batch,), and all nodes.

        -> (batch, n + 1, vocab)
        """
        return target.forward(torch.cat([last_tokens[:, None], self.tokens], dim=1), reads(self.parents))

    def bare(self) -> "TreeDraft":
        """Return the same tree without the fields that no accept rule reads."""
        return TreeDraft(self.tokens, self.size, self.probs, parents=self.parents)

    def depths(self) -> Tensor:
        """Return how many drafted tokens stand before each row of the pass on its branch: (batch, n + 1)."""
        return reads(self.parents).sum(-1) - 1

    def matching(self, own: Tensor) -> AcceptResult:
        """Keep, from the root on, the child that carries the target's own token of the row. own: (batch, n + 1)

        The first of several children with the same token is kept.
        """
        tokens, size, parents, n = self.tokens, self.size, self.parents, self.tokens.shape[1]
        number = torch.arange(n, device=tokens.device)
        siblings = (parents[:, :, None] == parents[:, None]) & (tokens[:, :, None] == tokens[:, None])  # (batch, n, n)
        again = (siblings & (number < number[:, None])).any(-1)  # one before it carries the same token
        right = (number < size[:, None]) & ~again & (tokens == own.gather(-1, parents + 1))
        on_path = ~(reads(parents)[:, 1:, 1:] & ~right[:, None]).any(-1)  # (batch, n) all of its branch is right
        last = torch.where(on_path, number + 1, 0).amax(-1) if n else size  # (batch,) the row where the walk ends
        return along(self, on_path, own.gather(-1, last[:, None])[:, 0])


def along(draft: Draft, on_path: Tensor, next_token: Tensor) -> AcceptResult:
    """Return the decision of a walk. on_path: (batch, n), whether each node is on the path; their numbers rise along
    it."""
    n = on_path.shape[1]
    number = torch.arange(n, device=on_path.device)
    path = torch.where(on_path, number, n).sort(-1).values  # (batch, n) those on the path first
    path = path.masked_fill(path == n, -1)
    here = path.amax(-1, keepdim=True) if n else path.new_full((len(path), 1), -1)  # (batch, 1) where the walk ended
    rejected = ((parents_of(draft) == here) & (number < draft.size[:, None])).any(-1)  # it had a child there
    return AcceptResult(on_path.sum(-1), next_token, path, rejected.long())


def reads(parents: Tensor) -> Tensor:
    """Tell which rows of the target's pass each row may read, itself included.

    (batch, n) -> (batch, n + 1, n + 1) bool
    """
    batch, n = parents.shape
    seen = torch.eye(n + 1, device=parents.device).repeat(batch, 1, 1)
    seen[:, 1:].scatter_(-1, parents[..., None] + 1, 1.0)  # itself and its parent
    for _ in range(n.bit_length()):  # each time twice as far up
        seen = (seen @ seen).clamp(max=1)
    return seen > 0


def chain(n: int, device: torch.device | None = None) -> Tensor:
    """Return the parents of a chain of n tokens, (1, n)."""
    return torch.arange(-1, n - 1, device=device)[None]


def parents_of(draft: Draft) -> Tensor:
    """Return the parents of a draft's tokens, (batch, n); those of a chain where the draft is one."""
    if isinstance(draft, TreeDraft):
        return draft.parents
    return chain(draft.tokens.shape[1], draft.tokens.device).expand_as(draft.tokens)


class TreesDrafter(Drafter):
    """A drafter whose drafts are trees. Models read whole levels, and all that was accepted."""

    branches = True

    def pass_widths(self, most: int) -> set[int]:
        """Return the powers of two up to which the passes of a draft model have tokens, for trees of up to `most`
        tokens."""
        return {2**i for i in range(1, most.bit_length() + 1)}

    def as_drafted(self, chain: Draft) -> Draft:
        """Return a chain as a tree of one branch."""
        return TreeDraft.of(chain)


# By its name and at the end, since that module imports this one: whoever can make a tree has the rules that judge it.
importlib.import_module("speclab.extensions.trees.accept")
