"""Exercise 15 in a decoding with trees: the pass, the path and the cache are a reader's, the draft is the lab's."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import AcceptResult, Draft, Round, Target
from speclab.core.sampling import Sampling, most_probable, to_host
from speclab.extensions.learner.ask import Impossible, each, short, whole
from speclab.extensions.learner.rows_and_trees.asked import Asked
from speclab.extensions.learner.rows_and_trees.rows import yes_or_no
from speclab.lab.instruments import Loop
from speclab.models.cached import CachedModel


@dataclass(frozen=True)
class OwnTree(Draft):
    """A tree that the target reads as a reader says. `parents` is never None here; a chain is a tree of one branch."""

    asked: Asked = field(kw_only=True)

    def verified_by(self, target: Target, last_tokens: Tensor) -> Tensor:
        """Make one pass over the last committed token, (1,), and all nodes.  -> (1, n + 1, vocab) logits"""
        assert isinstance(target, CachedModel)
        parents, before = parents_of(self), target.length
        n_rows = len(parents) + 1
        places = each(f"{n_rows} positions", *[whole(0, before + n_rows - 1)] * n_rows)
        at = self.asked("positions", parents, before, check=lambda answer: places(listed(answer)))
        seen = self.asked("mask", parents, check=yes_or_no((n_rows, n_rows)))
        dtype = target.model.dtype
        mask = torch.zeros(1, 1, n_rows, before + n_rows, dtype=dtype, device=target.device)
        mask[..., before:].masked_fill_(~seen.to(target.device), torch.finfo(dtype).min)
        positions = torch.tensor([at], device=target.device)
        tokens = torch.cat([last_tokens[:, None], self.tokens], dim=1)
        return target.run(n_rows, lambda backend, length: backend.forward_masked(tokens, length, positions, mask))


def parents_of(draft: Draft) -> list[int]:
    """Return the number of the token that each one follows, -1 for the last committed one."""
    return list(range(-1, draft.tokens.shape[1] - 1)) if draft.parents is None else draft.parents[0].tolist()


def listed(answer: Any) -> Any:
    """Return a tensor as a list; anything else stays what it is."""
    return answer.tolist() if isinstance(answer, Tensor) else answer


class Around(Wrapper):
    """A drafter of the lab, of which a subclass changes a part."""

    def __init__(self, drafter: Drafter, asked: Asked):
        self.drafter, self.asked = drafter, asked

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter inside read the prompt."""
        self.drafter.prefill(target, prompt, sampling)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Let the drafter inside propose."""
        return self.drafter.propose(k, uniforms)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Tell the drafter inside what was committed."""
        self.drafter.observe(n_accepted, committed)


class OwnTrees(Around):
    """A drafter of the lab whose drafts are read as a reader says."""

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Return the tokens of the drafter inside as a tree of the reader's."""
        draft = self.drafter.propose(k, uniforms)
        parents = torch.tensor([parents_of(draft)], dtype=torch.long, device=draft.tokens.device)
        return OwnTree(draft.tokens, draft.size, draft.probs, draft.faults, parents, asked=self.asked)


def accept(asked: Asked, draft: Draft, logits: Tensor, sampling: Sampling, uniforms: Tensor) -> AcceptResult:
    """Keep the path that the reader's `best_path` finds. logits: (1, n + 1, vocab)"""
    parents, tokens = parents_of(draft), draft.tokens[0].tolist()
    own = to_host(most_probable(logits)[0])  # n + 1
    path = asked("best_path", parents, tokens, own, check=functools.partial(_path, parents))
    return along(draft, path, own[path[-1] + 1 if path else 0])


def along(draft: Draft, path: list[int], next_token: int) -> AcceptResult:
    """Return the decision of a walk along these tokens, by their numbers."""
    parents, device, n = parents_of(draft), draft.tokens.device, draft.tokens.shape[1]
    went_on = int((path[-1] if path else -1) in parents)  # the place where it ended had a token
    numbers = [len(path), next_token, went_on]
    n_accepted, token, n_rejected = (torch.tensor([number], device=device) for number in numbers)
    kept = torch.tensor([path + [-1] * (n - len(path))], dtype=torch.long, device=device)
    return AcceptResult(n_accepted, token, kept, n_rejected)


def _path(parents: list[int], answer: Any) -> list[int]:
    """For `ask`: the numbers of tokens each of which follows the one before it, from the root on."""
    given = listed(answer)
    path = list(map(whole(0, len(parents) - 1), given)) if isinstance(given, list | tuple) else [-1]
    if [parents[number] for number in path] != [-1, *path][: len(path)] or -1 in path:
        raise Impossible(f"{short(answer)}, not numbers of tokens each of which follows the one before it")
    return path


def with_branches(asked: Asked, decode: Loop, target: CachedModel, *args: Any, **further: Any) -> Iterator[Round]:
    """Yield the same rounds; the reader's `gather` says which places of the target's cache stay in them."""
    keep = functools.partial(_keep, asked, target)
    rounds = decode(target, *args, **further)
    while True:
        replace_function(target, "keep", keep)
        try:
            round_ = next(rounds, None)
        finally:
            del vars(target)["keep"]
        if round_ is None:
            return
        yield round_


def replace_function(whose: object, name: str, function: Callable[..., Any]) -> None:
    """Let an object call a reader's function in the place of its own one of this name.

    Raises AttributeError where it has none: under another name, the lab's own function would run as if it were the
    reader's, and nobody would see it.
    """
    if not callable(getattr(type(whose), name, None)):
        raise AttributeError(f"{type(whose).__name__} has no function {name}, whose place the reader's one could take")
    vars(whose)[name] = function


def _keep(asked: Asked, target: CachedModel, path: list[int]) -> None:
    """Keep the places that the reader names, after a pass over the last committed token and the drafted ones."""
    before = target.length - target.n_last
    places = asked("gather", path, before, check=_places(before, target.length, len(path)))
    CachedModel.keep(target, [place - before - 1 for place in places[before + 1 :]])


def _places(before: int, cached: int, n_path: int) -> Callable[[Any], list[int]]:
    """For `ask`: the places of the text and of the last committed token, then one for each token of the path."""

    def check(answer: Any) -> list[int]:
        n = before + 1 + n_path
        places = each(f"{n} places of {cached}", *[whole(0, cached - 1)] * n)(listed(answer))
        if places[: before + 1] != list(range(before + 1)) or places != sorted(set(places)):
            raise Impossible(
                f"{short(places)}; the {before} places of the text and the one of the last committed token must come "
                "first, and no later token may come before an earlier one"
            )
        return places

    return check
