"""Drafters propose tokens. A drafter may be wrong as often as it likes: the accept rule keeps the output exact.

    model      a smaller causal language model with the target's tokenizer
    ngram      prompt lookup: continue as the longest matching piece of the text so far was continued
    suffix     the longest match, and what followed it most often (speclab/drafts/suffix.py)
    feature    a head of one layer that reads the target's hidden states (speclab/drafts/feature.py)
    hybrid     a lookup where it pays more, a model elsewhere (speclab/drafts/hybrid.py)

A new kind implements `Drafter`, and speclab/drafts/registry.py turns `--draft KIND` into it; the loop stays as it is.
"""

import itertools
import sys
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from speclab.core.drafter import Drafter, Law, Lookup
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import GREEDY, NOT_FINITE, Drawn, Sampling, draw_draft, probability, to_device
from speclab.models.cached import CachedModel, tokens_to_keep
from speclab.models.family import distributions
from speclab.system.errors import EnvironmentProblem


class ModelDrafter(Drafter):
    """Drafts with a causal language model, one cached pass per token.

    Between rounds its cache holds a prefix of the committed tokens, never a rejected one. What is missing (the last
    committed token, and after a fully accepted round also the last drafted one, which was never fed) goes in with the
    first pass of the next round. Ids that it lacks have probability 0, and where its context ends it drafts less.
    """

    is_model = draws = asks_to_go_on = True
    proposes_own_ids = True  # its most probable token is what it proposes, under the same id

    def __init__(self, draft: CachedModel):
        self.draft = draft
        self._sampling, self._vocab_size = GREEDY, 0  # the target's
        self._not_fed: list[int] = []  # committed, not in the draft's cache yet
        self._n_committed = 0

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Read the prompt, (1, prompt length) ids. Raises EnvironmentProblem where the logits are not finite."""
        self._sampling, self._vocab_size = sampling, target.vocab_size
        if not self.draft.prefill(self.draft.replace_unknown(prompt)).amax().isfinite():
            raise EnvironmentProblem("the draft model's logits are not finite; try --dtype float32")
        self._not_fed, self._n_committed = [], self.draft.length

    @property
    def models(self) -> tuple[CachedModel, ...]:
        return (self.draft,)

    @property
    def room(self) -> int:
        return draft_room(self.draft, self._n_committed)

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        k = min(k, self.room)
        if k == 0:
            return as_draft([], self.draft.device)
        with torch.inference_mode():  # once for all passes
            ids, needs_no_logits = self.not_fed(), self._sampling.greedy and self.proposes_own_ids
            if not needs_no_logits or self.keep_drafting or not self.draft.can_chain:
                return as_drawn(self._run(ids, uniforms[:, :k]))
            tokens, highest = self.draft.chain(ids, k)
            tokens = tokens.masked_fill(~highest.isfinite(), NOT_FINITE)
            return as_drawn([Drawn(token, None) for token in tokens.split(1)])

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._n_committed += len(committed)
        kept = tokens_to_keep(self.draft.length, self._n_committed)
        self.draft.crop(kept)
        self._not_fed = (self._not_fed + committed)[-(self._n_committed - kept) :]

    def law(self, target: CachedModel, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        # (n, the target's vocabulary) what the draft proposes at each place, wherever a round begins
        rows = distributions(self.draft, prompt, text, sampling, target.vocab_size)
        return Law(lambda depth: rows[depth:], [min(k, size) for size in self.sizes(prompt, text)])

    def sizes(self, prompt: list[int], text: list[int]) -> list[int]:
        """Return how many tokens it can draft in rounds that begin after 0, 1, ... tokens of `text`."""
        n_before = self.draft.room.length_after(len(prompt))
        return [draft_room(self.draft, n_before + n) for n in range(len(text))]

    def describe(self, name: str, engine: str) -> str:
        from speclab.models import loading  # here: a round does without it

        eager = "; on the eager engine" * (self.draft.engine != engine)
        return loading.describe_model(name, self.draft.model, "draft") + eager

    def check_prompts(self, prompts: Sequence[list[int]]) -> None:
        self.draft.room.check(max(map(len, prompts)), whose="the draft model's")

    def not_fed(self) -> Tensor:
        """Return the committed ids that are not in the draft's cache yet, (1, m)."""
        return self.draft.replace_unknown(to_device(self._not_fed, self.draft.device)[None])

    def draft_ids(self, tokens: Tensor) -> Tensor:
        """Return the ids that the draft reads for drafted ids of the target."""
        return tokens if self._vocab_size <= self.draft.n_ids else self.draft.replace_unknown(tokens)

    def as_target_logits(self, logits: Tensor) -> Tensor:
        """Give ids that the draft lacks no probability.  (m, vocabulary) -> (m, the target's)"""
        missing = self._vocab_size - self.draft.vocab_size
        return nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing > 0 else logits

    def _run(self, ids: Tensor, uniforms: Tensor) -> list[Drawn]:
        """Read (1, m) ids to catch up, and draw with (1, k) uniforms.  -> n <= k drawn tokens"""
        drawn: list[Drawn] = []
        for i in range(uniforms.shape[1]):
            logits = self.as_target_logits(self.draft.forward(ids)[:, -1])  # (1, the target's vocabulary)
            drawn.append(draw_draft(logits, self._sampling, uniforms[:, i]))
            if self.keep_drafting and not self.keep_drafting(probability(logits, drawn[-1])):
                break
            ids = self.draft_ids(drawn[-1].token.clamp(min=0))[:, None]
        return drawn


def as_drawn(drawn: list[Drawn]) -> Draft:
    """Make a draft from at least one token of each row."""
    tokens = torch.stack([step.token for step in drawn], dim=1)  # (rows, n)
    laws = [step.probs for step in drawn if step.probs is not None]
    size = torch.full_like(tokens[:, 0], len(drawn))
    probs = torch.stack(laws, dim=1) if laws else None
    return Draft(tokens.clamp(min=0), size, probs, faults=tokens.amin(-1).clamp(max=0))


def as_draft(tokens: list[int], device: torch.device) -> Draft:
    """Return a draft of one row that is certain of its tokens."""
    ids = to_device([*tokens, len(tokens)], device)[None]
    return Draft(ids[:, :-1], ids[:, -1])


def draft_room(draft: CachedModel, n_committed: int) -> int:
    """Return how many tokens it can draft: its context must hold the committed and all drafted ones but the last."""
    return sys.maxsize if draft.room.text is None else max(0, draft.room.text - n_committed + 1)


class NgramDrafter(Lookup):
    """Prompt lookup: find the last n tokens earlier in the text, propose what followed. No model, no cost, one-hot.

    The longest match wins (n from `longest` down to `shortest`), among equals the most recent. n_ids: the target emits
    ids 0 to n_ids - 1. A prompt may have higher ids; they are never proposed.
    """

    def __init__(self, longest: int = 4, shortest: int = 2, n_ids: int = sys.maxsize):
        assert 1 <= shortest <= longest
        self.longest, self.shortest, self.n_ids = longest, shortest, n_ids
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token that last followed it

    def prefill(self, target: Target | None, prompt: Tensor, sampling: Sampling) -> None:
        self._tokens, self._after, self._device = [], {}, prompt.device
        self.observe(0, prompt[0].tolist())

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return as_draft(self.lookup(k), self._device)

    def lookup(self, k: int) -> list[int]:
        for n in range(min(self.longest, len(self._tokens)), self.shortest - 1, -1):
            start = self._after.get(tuple(self._tokens[-n:]))
            if start is not None:
                self.matched = n
                tokens = self._tokens[start : start + k]
                return list(itertools.takewhile(lambda token: token < self.n_ids, tokens))
        self.matched = 0
        return []

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        for token in committed:
            # The n-grams that end just before this token now have a follower.
            end = len(self._tokens)
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(self._tokens[end - n : end])] = end
            self._tokens.append(token)
