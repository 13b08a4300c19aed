"""Drafts of several drafters merged into one tree: `--draft merge:suffix+model` (SpecInfer, arXiv 2305.09781).

Each drafter proposes a chain of its most probable tokens. Where chains begin with the same tokens these become one
branch, and one pass of the target judges all of them.

Equal children may be merged here, and only here. A token that was drawn gives its node a second chance to be kept: two
nodes with one token are two trials, and the rule counts with the laws of both. Tokens that nothing drew have one-hot
laws: once the first of two equal ones is rejected, the target's row has no mass left for the token, and a second trial
never passes. Both rules are exact for every tree whose tokens were fixed before, at every temperature.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draft_models import as_draft
from speclab.core.drafter import Drafter, Law
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling, to_device, to_host
from speclab.extensions.trees.draft import TreeDraft, TreesDrafter, parents_of
from speclab.extensions.trees.fixed import TreeDrafter

LONGEST = 64  # tokens of a chain


class MergedDrafter(TreesDrafter):
    """Merges the proposals of several drafters: lookups, and drafters that know what follows each of several tokens.

    A chain of the latter is a tree of one branch, so that they take in what was committed on any branch.
    """

    def __init__(self, drafters: Sequence[Drafter]):
        self.drafters = [TreeDrafter(drafter, (1,) * LONGEST) if drafter.draws else drafter for drafter in drafters]
        self._device = torch.device("cpu")

    @property
    def parts(self) -> tuple[Drafter, ...]:
        return tuple(sorted((part for drafter in self.drafters for part in drafter.parts), key=lambda part: part.draws))

    @property
    def models(self) -> tuple[Any, ...]:
        return tuple(model for drafter in self.drafters for model in drafter.models)

    def law(self, target: Any, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        return self.parts[-1].law(target, prompt, text, sampling, k)

    def lengths(self, asked: list[int]) -> list[int]:
        """Every draft has its own tokens."""
        return [len(self.drafters) * k for k in asked]

    def check_prompts(self, prompts: Sequence[list[int]]) -> None:
        for drafter in self.drafters:
            drafter.check_prompts(prompts)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._device = prompt.device
        for drafter in self.drafters:
            drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most as many tokens as there are uniforms, with an equal share from each drafter; at most `k`
        on a branch."""
        n, m = uniforms.shape[1], len(self.drafters)
        shares = [(n + m - 1 - i) // m for i in range(m)]
        pairs = zip(self.drafters, shares, strict=True)
        return merged([drafter.propose(min(k, share), uniforms[:, :share]) for drafter, share in pairs], self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        for drafter in self.drafters:
            drafter.observe(n_accepted, committed)

    def describe(self, name: str, engine: str) -> str:
        return f"{name}: chains of {len(self.drafters)} drafts, merged where they begin with the same tokens"


def merged(drafts: Sequence[Draft], device: torch.device) -> Draft:
    """Merge chains or trees of one row into one tree with all of their branches; a branch that several have is there
    once.

    Their probabilities are dropped: tokens must be fixed, or independent of what the rule draws.
    """
    tokens: list[int] = []
    parents: list[int] = []
    places: dict[tuple[int, int], int] = {}  # (parent, token) -> number
    for draft in drafts:
        ids = draft.tokens[0].tolist()
        if draft.faults is not None:
            to_host(draft.faults)
        before = parents_of(draft)[0].tolist()
        numbers = [-1]  # of the last committed token and of this draft's tokens
        for token, parent in zip(ids, before, strict=True):
            place = numbers[parent + 1], token
            if place not in places:
                places[place] = len(tokens)
                tokens.append(token)
                parents.append(place[0])
            numbers.append(places[place])
    if not tokens:
        return as_draft([], device)
    chain = as_draft(tokens, device)
    return TreeDraft(chain.tokens, chain.size, parents=to_device(parents, device)[None])
