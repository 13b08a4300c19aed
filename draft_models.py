"""Drafters propose tokens. A drafter may be wrong as often as it likes: the accept rule keeps the output exact.

    model      a smaller causal language model with the target's tokenizer
    ngram      prompt lookup: continue as the longest matching piece of the text so far was continued
    suffix     the longest match, and what followed it most often (speclab/drafts/suffix.py)
    feature    a head of one layer that reads the target's hidden states (speclab/drafts/feature.py)
    hybrid     a lookup where it pays more, a model elsewhere (speclab/drafts/hybrid.py)

A new kind implements `Drafter`; the loop in optimized_speculative.py does not change. Further kinds are in
speclab/drafts/, and speclab/drafts/registry.py turns `--draft KIND` into one of them.
"""

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from speclab.core.drafter import Drafter, Lookup
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import (
    GREEDY,
    Drawn,
    Sampling,
    are_finite,
    draw_draft,
    faults_in,
    on_host,
    probability,
    repeated,
    to_device,
)
from speclab.models.cached import CachedModel, tokens_to_keep
from speclab.system.errors import EnvironmentProblem, setting

if TYPE_CHECKING:
    from speclab.core.law import Law

__all__ = ["Drafter", "ModelDrafter", "NgramDrafter", "as_draft", "as_drawn", "draft_room"]


class ModelDrafter(Drafter):
    """Drafts with a causal language model, one cached pass per token.

    Between rounds its cache holds a prefix of the committed tokens, never a rejected one. What is missing (the last
    committed token, and after a fully accepted round also the last drafted one, which was never fed) goes in with the
    first pass of the next round.

    The draft may know fewer ids and positions than the target: ids that it lacks have probability 0 in its proposals,
    and where its context ends it drafts fewer tokens, then none.
    """

    is_model = draws = asks_to_go_on = True
    proposes_own_ids = True  # its most probable token is what it proposes, under the same id
    whose = " tokens"  # the words for the tokens of a prompt that does not fit

    def __init__(self, draft: CachedModel):
        self.draft = draft
        self._sampling, self._vocab_size = GREEDY, 0  # the target's
        self._not_fed: list[int] = []  # committed, not in the draft's cache yet
        self._n_committed = 0

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Read the prompt, (1, prompt length) ids. Raises EnvironmentProblem where the logits are not finite."""
        self._sampling, self._vocab_size = sampling, target.vocab_size
        if not self.draft.prefill(self.draft.replace_unknown(prompt)).amax().isfinite():
            raise EnvironmentProblem(
                f"the draft model returned logits that are not finite; try {setting('dtype', 'float32')}"
            )
        self._not_fed, self._n_committed = [], self.draft.length

    @property
    def models(self) -> tuple[CachedModel, ...]:
        return (self.draft,)

    @property
    def room(self) -> int:
        """Return how many tokens it can draft after what is committed."""
        return draft_room(self.draft, self._n_committed)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens; fewer where the context ends. uniforms (1, k), in [0, 1)."""
        k = min(k, self.room)
        if k == 0:
            return as_draft([], self.draft.device)
        with torch.inference_mode():  # once for all passes
            ids, found = self.not_fed(), None
            if self._sampling.greedy and self.proposes_own_ids and not self.keep_drafting:  # nothing asks for logits
                found = self.draft.chain(ids, k)
            if found is None:
                return as_drawn(self._run(ids, uniforms[:, :k]))
            return as_drawn(
                [Drawn(token, None, logit) for token, logit in zip(*(part.split(1) for part in found), strict=True)]
            )

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Crop the cache to what is committed, and note what it lacks."""
        self._n_committed += len(committed)
        kept = tokens_to_keep(self.draft.length, self._n_committed)
        self.draft.crop(kept)
        self._not_fed = (self._not_fed + committed)[-(self._n_committed - kept) :]

    def law(self, target: CachedModel, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> "Law":
        """One uncached pass says what the draft proposes at each place, wherever a round begins."""
        from speclab.core.law import PlaceLaw  # here: a loop alone needs nothing of it
        from speclab.models.checking.uncached import distributions

        n_ids = min(self.draft.vocab_size, target.vocab_size)
        rows = distributions(self.draft.model, prompt, text, sampling, n_ids)
        rows = nn.functional.pad(rows, (0, target.vocab_size - n_ids))  # (n, the target's vocabulary)
        n_before = self.draft.room.length_after(len(prompt))
        return PlaceLaw(rows, self.sizes(range(n_before, n_before + len(text))))

    def sizes(self, n_read: Iterable[int]) -> list[int]:
        """Return how many tokens it can draft after so many of its own."""
        return [draft_room(self.draft, n) for n in n_read]

    def describe(self, name: str, engine: str) -> str:
        """Return a line about the model, and about its engine where that is not the target's."""
        from speclab.models import loading

        eager = "; on the eager engine" * (self.draft.engine != engine)
        return loading.describe_model(name, self.draft.model, "draft") + self.notes() + eager

    def notes(self) -> str:
        """Return words that a subclass adds to this line."""
        return ""

    def check_prompts(self, prompts: Sequence[list[int]], max_new_tokens: int) -> str | None:
        """Raise UsageProblem where a prompt does not fit its context.  -> whether the texts reach its end, or None"""
        from speclab.models.family import check_draft_prompts

        return check_draft_prompts(self.draft.room, prompts, max_new_tokens, self.read_as, self.whose)

    def read_as(self, prompt: list[int]) -> list[int]:
        """Return the ids that it reads for a prompt of the target."""
        return prompt

    def not_fed(self) -> Tensor:
        """Return the ids that are committed and not in the draft's cache yet, (1, m): they go in first."""
        return self.draft.replace_unknown(to_device(self._not_fed, self.draft.device)[None])

    def draft_ids(self, tokens: Tensor) -> Tensor:
        """Return the ids that the draft reads for drafted ids of the target."""
        return tokens if self._vocab_size <= self.draft.n_ids else self.draft.replace_unknown(tokens)

    def as_target_logits(self, logits: Tensor) -> Tensor:
        """Give ids that the draft lacks no probability.  (m, vocabulary) -> (m, the target's)"""
        missing = self._vocab_size - self.draft.vocab_size
        return nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits

    def _run(self, ids: Tensor, uniforms: Tensor) -> list[Drawn]:
        """Read (1, m) ids to catch up, and draw with (1, k) uniforms.

        -> n <= k drawn tokens, as `draw_draft` gives them
        """
        drawn: list[Drawn] = []
        for i in range(uniforms.shape[1]):
            logits = self.as_target_logits(self.draft.forward(ids)[:, -1])  # (1, the target's vocabulary)
            drawn.append(draw_draft(logits, self._sampling, uniforms[:, i]))
            if self.keep_drafting and not self.keep_drafting(probability(logits, drawn[-1])):
                break
            ids = self.draft_ids(drawn[-1].token)[:, None]
        return drawn


def as_drawn(drawn: list[Drawn], size: Tensor | None = None) -> Draft:
    """Make a draft from at least one token of each row.

    size: (rows,) how many tokens of each row count; None: all of them.
    """
    tokens = torch.stack([step.token for step in drawn], dim=1)  # (rows, n)
    probs = [step.probs for step in drawn if step.probs is not None]
    laws = torch.stack(probs, dim=1) if probs else None
    whole = repeated(len(drawn), len(tokens), tokens.device) if size is None else size
    if on_host(tokens) and all(are_finite(step.check) for step in drawn):
        return Draft(tokens, whole, laws)
    checks = torch.stack([step.check for step in drawn], dim=1)
    if size is not None:
        checks = checks.masked_fill(torch.arange(len(drawn), device=size.device) >= size[:, None], 0.0)
    # checks - checks is 0, or NaN where it is not finite.
    return Draft(tokens, whole, laws, faults=faults_in(checks - checks))


def as_draft(tokens: list[int], device: torch.device) -> Draft:
    """Return a draft of one row that is certain of its tokens."""
    return Draft(to_device(tokens, device)[None], repeated(len(tokens), 1, device))


def draft_room(draft: CachedModel, n_committed: int) -> int:
    """Return how many tokens this model can draft after `n_committed`: its context must hold these and all drafted
    ones but the last."""
    return sys.maxsize if draft.max_length is None else max(0, draft.max_length - n_committed + 1)


class NgramDrafter(Lookup):
    """Prompt lookup: find the last n tokens earlier in the text, propose what followed. No model, no cost, one-hot.

    The longest match wins (n from `longest` down to `shortest`), among equals the most recent. Proposes fewer than k
    tokens where the match is close to the end, none where there is no match.

    n_ids: the target emits ids 0 to n_ids - 1. A prompt may have higher ids; they are never proposed.
    """

    def __init__(self, longest: int = 4, shortest: int = 2, n_ids: int = sys.maxsize):
        if not 1 <= shortest <= longest:
            raise ValueError(f"need 1 <= shortest <= longest, got {shortest} and {longest}")
        self.longest, self.shortest, self.n_ids = longest, shortest, n_ids
        self.matched = 0  # tokens of the last match
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token that last followed it
        self._device = torch.device("cpu")

    def prefill(self, target: Target | None, prompt: Tensor, sampling: Sampling) -> None:
        """Index the prompt, (1, prompt length) ids."""
        self._tokens, self._after, self._device = [], {}, prompt.device
        self._append(prompt[0].tolist())

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens, none where nothing matches; `uniforms` are not used."""
        return as_draft(self.lookup(k), self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Index what was committed."""
        self._append(committed)

    def lookup(self, k: int) -> list[int]:
        """Return at most k ids that followed the longest, then most recent, earlier occurrence of the text's end."""
        for n in range(min(self.longest, len(self._tokens)), self.shortest - 1, -1):
            start = self._after.get(tuple(self._tokens[-n:]))
            if start is not None:
                self.matched = n
                tokens = self._tokens[start : start + k]
                return list(itertools.takewhile(lambda token: token < self.n_ids, tokens))
        self.matched = 0
        return []

    def _append(self, tokens: list[int]) -> None:
        for token in tokens:
            # The n-grams that end just before this token now have a follower.
            end = len(self._tokens)
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(self._tokens[end - n : end])] = end
            self._tokens.append(token)
