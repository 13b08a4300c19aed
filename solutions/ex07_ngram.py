"""Solution 7: a draft without a model.

Chapter: docs/chapters/07-ngram.md. Check: python check.py 7 --impl solutions
"""

import torch
from torch import Tensor

from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel


def lookup(tokens: list[int], k: int, longest: int = 4, shortest: int = 2) -> list[int]:
    """Prompt lookup: what followed when the text last stood where it stands now? At most k ids, perhaps none.

    tokens: the ids of the text so far, prompt included. Leave the list as it is.
    k: how many ids are wanted, 0 or more. longest, shortest: lengths of a match, with 1 <= shortest <= longest.

    A match of length n is an earlier position where the same n ids stand as at the end of `tokens`, with at least one
    id after them. It may overlap the end, but the end itself is no match. Longer matches win over shorter ones: try the
    lengths from `longest` down to `shortest`, and leave out those that the text is too short for. Among matches of one
    length the last in the text wins.

    Returns the ids after the match, in order: k of them, or fewer where the text ends before. No match: [].

    >>> lookup([1, 2, 3, 9, 1, 2, 3], k=2)
    [9, 1]
    >>> lookup([1, 2, 5, 1, 2, 6, 1, 2], k=8)
    [6, 1, 2]
    >>> lookup([1, 2, 3, 4], k=4)
    []
    """
    for n in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        ending = tokens[-n:]
        # `after` is the index right after a candidate. It starts one short of the end, so the end does not find
        # itself, and goes down, so the first hit is the most recent one.
        for after in range(len(tokens) - 1, n - 1, -1):
            if tokens[after - n : after] == ending:
                return tokens[after : after + k]  # a slice stops at the end of the text by itself
    return []


class MyDrafter:
    """A drafter of the lab: proposes what `lookup` finds, with its default lengths. Made without arguments.

    The loop calls prefill once for every text, then propose and observe in turns. For the first token, which comes from
    the prompt's own pass, it calls observe without a propose before it.
    """

    def prefill(self, target: CachedModel, prompt: Tensor, sampling: Sampling) -> None:
        """Begin a new text: forget the one before, and take in the prompt.

        prompt: (1, n) ids, n >= 1. What you propose later has to live on prompt.device. A lookup needs neither the
        target nor the sampling settings; ignore them.
        """
        self._text: list[int] = prompt[0].tolist()  # a new list, so nothing of the last text is left
        self._device = prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most k tokens, those that follow everything committed so far. k may be 0.

        uniforms: (1, k) random numbers; nothing is drawn here, so ignore them.

        Returns a Draft with n <= k tokens, all on the prompt's device: tokens (1, n), dtype torch.long also for n = 0;
        size (1,), the number n; probs None, which means that each token was proposed with certainty. Without a match n
        is 0: never fill up with made-up tokens. A proposal is not text yet, so it changes nothing in the drafter.
        """
        ids = lookup(self._text, k)
        # An empty list says nothing about its type, and torch would take it for floats.
        tokens = torch.tensor([ids], dtype=torch.long, device=self._device)  # (1, n)
        return Draft(tokens, torch.tensor([len(ids)], device=self._device))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Take note of what became text.

        committed: all ids that were added to the text since the last call, in order: first the accepted proposals, then
        the one token of the target. n_accepted: how many of them are accepted proposals; they are in `committed`
        already. Leave the list as it is: it belongs to the loop.
        """
        self._text.extend(committed)  # the accepted proposals are among them: adding those as well would double them
