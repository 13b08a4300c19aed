"""Drafters that propose tokens for the rows of a batch.

`BatchedModelDrafter` runs a draft model over all rows in one pass for each token. `RowByRow` asks copies of any drafter
one after the other: right for lookups, which cost next to nothing; what runs a model this way pays for each row.
"""

import copy
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from draft_models import ModelDrafter, as_draft, as_drawn, draft_room
from speclab.core.drafter import Drafter, Lookup
from speclab.core.rounds import Decided, Draft
from speclab.core.sampling import Drawn, Sampling, draw_draft, to_device
from speclab.drafts.lengths import PAUSE
from speclab.extensions.batch.decoding.batched_model import BatchedModel, check_batch
from speclab.extensions.batch.decoding.budget import Budget, Budgeted
from speclab.models.cached import CachedModel, tokens_to_keep
from speclab.system.errors import EnvironmentProblem, UsageProblem


class RowByRow:
    """A copy of a drafter for each row. What it learns of a text it forgets before the next one.

    budget: decides how many tokens the rows draft, before they do; None: as many as they are asked for.
    """

    budget: Budget | None = None

    def __init__(self, drafter: Drafter, n_rows: int):
        self.rows = [copy.deepcopy(drafter) for _ in range(n_rows)]

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        """longest: the most tokens that a row may hold at once, drafted ones included."""
        self._target, self._sampling = target, sampling

    def prefill(self, row: int, prompt: Tensor, committed: list[int]) -> None:
        """A row starts a text: `prompt`, (1, prompt length) ids, which the target has just read, and its first ids."""
        self.rows[row].forget()  # what one text taught must not decide in another
        # What it sees of the target, which makes no pass for one row.
        hidden = functools.partial(self._target.hidden, row=row)
        seen: Any = SimpleNamespace(vocab_size=self._target.vocab_size, hidden=hidden)
        self.rows[row].prefill(seen, prompt, self._sampling)
        self.rows[row].observe(0, committed)

    def propose(self, k: Sequence[int], uniforms: Tensor) -> Draft:
        """Propose at most `k[r]` tokens for each row r, 0 for one without a text. uniforms: (rows, the largest k)."""
        nothing = as_draft([], self._target.device)
        if self.budget:
            pairs = zip(self.rows, k, strict=True)
            found = [len(row.lookup(n)) if n and isinstance(row, Lookup) else n for row, n in pairs]
            self.budget.begin(found, sum(n > 0 for n in k))
            k = self.budget.lengths()
        triples = zip(self.rows, k, uniforms.split(1), strict=True)
        drafts = [row.propose(n, own) if n else nothing for row, n, own in triples]
        return side_by_side(drafts, self._target.vocab_size)

    def observe(self, decided: Mapping[int, Decided]) -> None:
        """Take in the decisions, by row; rows that are missing have ended."""
        if self.budget:
            self.budget.observe(decided)
        for row, of_row in decided.items():
            self.rows[row].observe(of_row.n_accepted, of_row.tokens)


class BatchedModelDrafter:
    """Drafts with a causal language model, one pass over all rows for each token.

    Its cache and the tokens that it has not read are, row by row, those of ModelDrafter in draft_models.py. budget: is
    asked before each pass and after it; None: as many tokens are drafted as are asked for.
    """

    budget: Budget | None = None

    def __init__(self, draft: BatchedModel):
        self.draft = draft

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        self._sampling, self._vocab_size, n_rows = sampling, target.vocab_size, self.draft.n_rows
        self._not_fed: list[list[int]] = [[] for _ in range(n_rows)]  # committed, not in the draft's cache yet
        self._n_committed = [0] * n_rows
        # It catches up with the last committed token and a drafted one before it; after idle steps with more.
        self.draft.start(longest + PAUSE + 2, range(1, 3))

    def prefill(self, row: int, prompt: Tensor, committed: list[int]) -> None:
        """Read the prompt. Raises EnvironmentProblem where the logits are not finite."""
        if not self.draft.prefill(row, self.draft.model.replace_unknown(prompt)).amax().isfinite():
            raise EnvironmentProblem("the draft model returned logits that are not finite; try --dtype float32")
        self._not_fed[row], self._n_committed[row] = list(committed), prompt.shape[1] + len(committed)

    def propose(self, k: Sequence[int], uniforms: Tensor) -> Draft:
        room = [draft_room(self.draft.model, n) for n in self._n_committed]
        n_texts, k = sum(n > 0 for n in k), [min(pair) for pair in zip(k, room, strict=True)]
        device, n = self.draft.device, max(k)
        if not all(room):  # where there is none, a row drafts no more
            self._not_fed = [tokens if left else [] for tokens, left in zip(self._not_fed, room, strict=True)]
            self.draft.crop([length if left else 0 for length, left in zip(self.draft.lengths, room, strict=True)])
        if self.budget:
            self.budget.begin(k, n_texts)
        drawn: list[Drawn] = []
        for i in range(n):
            drafting = self.budget.drafting if self.budget else [i < most for most in k]
            if not any(drafting):
                break
            logits = self._next_logits(drafting, drawn)
            step = draw_draft(logits, self._sampling, uniforms[:, i])
            if self.budget:
                by_token = logits.float().softmax(-1) if step.probs is None else step.probs  # (rows, vocab)
                if not any(self.budget.admits(by_token.amax(-1).tolist())):
                    break
            drawn.append(step)
        sizes = self.budget.verified() if self.budget else k
        if not (n := max(sizes)):
            return side_by_side([as_draft([], device)] * len(k), self._vocab_size)
        size = to_device(sizes, device)
        # A token that does not count has no fault.
        counted = [one._replace(token=one.token.masked_fill(size <= i, 0)) for i, one in enumerate(drawn[:n])]
        draft = replace(as_drawn(counted), size=size)
        if draft.probs is None:
            return draft
        missing = self._vocab_size - self.draft.vocab_size
        return replace(draft, probs=nn.functional.pad(draft.probs, (0, missing)))  # (rows, n, the target's vocabulary)

    def _next_logits(self, drafting: Sequence[bool], drawn: Sequence[Drawn]) -> Tensor:
        """Read what these rows drew last, or have to catch up with.  -> (rows, vocab)"""
        device = self.draft.device
        if drawn:
            return self.draft.forward(drawn[-1].token.clamp(min=0)[:, None], sizes=list(map(int, drafting)))[:, -1]
        not_fed = [tokens if asked else [] for tokens, asked in zip(self._not_fed, drafting, strict=True)]
        sizes = list(map(len, not_fed))
        width = max(sizes)
        ids = to_device([token for tokens in not_fed for token in tokens + [0] * (width - len(tokens))], device)
        last = to_device([max(0, size - 1) for size in sizes], device)
        logits = self.draft.forward(self.draft.model.replace_unknown(ids.view(-1, width)), sizes=sizes)
        return logits[torch.arange(len(sizes), device=device), last]  # of (rows, width, vocab)

    def observe(self, decided: Mapping[int, Decided]) -> None:
        """Crop each row's cache to the committed tokens, and note the tokens that it has not read."""
        if self.budget:
            self.budget.observe(decided)
        kept = [0] * self.draft.n_rows
        for row, length in enumerate(self.draft.lengths):
            if row not in decided:
                self._not_fed[row] = []
                continue
            tokens = decided[row].tokens
            self._n_committed[row] += len(tokens)
            kept[row] = tokens_to_keep(length, self._n_committed[row])
            self._not_fed[row] = (self._not_fed[row] + tokens)[-(self._n_committed[row] - kept[row]) :]
        self.draft.crop(kept)


def side_by_side(drafts: Sequence[Draft], vocab_size: int) -> Draft:
    """One draft from those of several rows, (1, n) tokens each; rows are padded to the longest. Beside a draft that was
    drawn a certain one has one-hot rows."""
    n, size = max(one.tokens.shape[1] for one in drafts), torch.cat([one.size for one in drafts])
    probs = faults = None

    def padded(parts: Iterable[Tensor]) -> Tensor:
        """(1, m, ...) each -> (rows, n, ...), with zeros"""
        return torch.cat([nn.functional.pad(part, (0, 0) * (part.ndim - 2) + (0, n - part.shape[1])) for part in parts])

    if any(one.probs is not None for one in drafts):
        one_hot = functools.partial(nn.functional.one_hot, num_classes=vocab_size)
        probs = padded(one_hot(one.tokens).float() if one.probs is None else one.probs for one in drafts)
    if any(one.faults is not None for one in drafts):
        faults = torch.cat([torch.zeros_like(one.size) if one.faults is None else one.faults for one in drafts])
    return Draft(padded(one.tokens for one in drafts), size, probs, faults)


def shared_model(drafter: Drafter) -> CachedModel | None:
    """The model that drafts for all rows in one pass; None for what goes row by row, as heads and lookups do."""
    drafter = drafter.drafter if isinstance(drafter, Budgeted) else drafter
    return drafter.draft if type(drafter) is ModelDrafter else None  # a subclass drafts in its own way


BatchDrafter = RowByRow | BatchedModelDrafter


def batch_drafter(drafter: Drafter, n_rows: int) -> BatchDrafter:
    model, own = shared_model(drafter), drafter.drafter if isinstance(drafter, Budgeted) else drafter
    return BatchedModelDrafter(BatchedModel(model, n_rows)) if model else RowByRow(own, n_rows)


def check_drafter(name: str, drafter: Drafter) -> None:
    """Raise a Problem for a drafter that has no form for several texts, or whose model has none. name: as typed"""
    if any(part.needs_text for part in drafter.parts):
        raise UsageProblem(f"--draft {name} replays one text, and a batch has several; give --draft model")
    if any(part.runs_target for part in drafter.parts):
        raise UsageProblem(f"--draft {name} runs layers of the target, which a batch does not do; give --draft model")
    if model := shared_model(drafter):
        check_batch(model)
