"""Drafters that propose tokens for the rows of a batch.

`BatchedModelDrafter` runs a draft model over all rows in one pass for each token. `RowByRow` takes any drafter, a copy
for each row, and asks one after the other: right for lookups, which cost next to nothing; what runs a model this way
pays for each row.
"""

import copy
import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from draft_models import ModelDrafter, as_draft, as_drawn, draft_room
from speclab.core.drafter import Drafter, Lookup
from speclab.core.rounds import Decided, Draft
from speclab.core.sampling import GREEDY, Drawn, Sampling, draw_draft, to_device
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
        self._sampling = GREEDY

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        """Drop all texts. longest: the most tokens that a row may hold at once, drafted ones included."""
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
        """Propose at most `k[r]` tokens for each row r, 0 for a row without a text. uniforms: (rows, at least the
        largest k)."""
        nothing = as_draft([], self._target.device)
        if self.budget:
            pairs = zip(self.rows, k, strict=True)
            found = [len(row.lookup(n)) if isinstance(row, Lookup) else n for row, n in pairs]
            self.budget.begin(found, sum(n > 0 for n in k))
            k = self.budget.lengths()
        drafts = [
            drafter.propose(n, uniforms[row : row + 1]) if n else nothing
            for row, (drafter, n) in enumerate(zip(self.rows, k, strict=True))
        ]
        return side_by_side(drafts, self._target.vocab_size)

    def observe(self, decided: Mapping[int, Decided]) -> None:
        """Take in the decisions, by row; rows that are missing have ended."""
        if self.budget:
            self.budget.observe(decided)
        for row, of_row in decided.items():
            self.rows[row].observe(of_row.n_accepted, of_row.tokens)


# Tokens: the last committed one and, before it, a drafted one that was accepted last; after steps without drafts, more.
MOST_TO_CATCH_UP, MOST_AFTER_STEPS = 2, PAUSE + 2


class BatchedModelDrafter:
    """Drafts with a causal language model, one pass over all rows for each token.

    Its cache and the tokens that it has not read are, row by row, those of ModelDrafter in draft_models.py. budget: is
    asked before each pass and after it; None: as many tokens are drafted as are asked for.
    """

    budget: Budget | None = None

    def __init__(self, draft: BatchedModel):
        self.draft = draft
        self._sampling, self._vocab_size = GREEDY, 0  # the target's
        self._not_fed: list[list[int]] = []  # of each row: committed, not in the draft's cache yet
        self._n_committed: list[int] = []

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        self._sampling, self._vocab_size = sampling, target.vocab_size
        self._not_fed, self._n_committed = [[] for _ in range(self.draft.n_rows)], [0] * self.draft.n_rows
        self.draft.start(longest + MOST_AFTER_STEPS, range(1, MOST_TO_CATCH_UP + 1))

    def prefill(self, row: int, prompt: Tensor, committed: list[int]) -> None:
        """Read the prompt. Raises EnvironmentProblem where the logits are not finite."""
        if not self.draft.prefill(row, self.draft.model.replace_unknown(prompt)).amax().isfinite():
            raise EnvironmentProblem("the draft model returned logits that are not finite; try --dtype float32")
        self._not_fed[row], self._n_committed[row] = list(committed), prompt.shape[1] + len(committed)

    def propose(self, k: Sequence[int], uniforms: Tensor) -> Draft:
        room = [draft_room(self.draft.model, n) for n in self._n_committed]
        n_texts, k = sum(n > 0 for n in k), [min(pair) for pair in zip(k, room, strict=True)]
        device, n = self.draft.device, max(k)
        for row in (row for row, left in enumerate(room) if left == 0):  # it drafts no more
            self._forget(row)
        if self.budget:
            self.budget.begin(k, n_texts)
        drawn: list[Drawn] = []
        for i in range(n):
            if self.budget and not self.budget.goes_on(i):
                break
            drafting = self.budget.drafting if self.budget else [i < most for most in k]
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
                self._forget(row)
                continue
            tokens = decided[row].tokens
            self._n_committed[row] += len(tokens)
            kept[row] = tokens_to_keep(length, self._n_committed[row])
            self._not_fed[row] = (self._not_fed[row] + tokens)[-(self._n_committed[row] - kept[row]) :]
        self.draft.crop(kept)

    def _forget(self, row: int) -> None:
        self._not_fed[row] = []
        self.draft.crop([0 if i == row else length for i, length in enumerate(self.draft.lengths)])


def side_by_side(drafts: Sequence[Draft], vocab_size: int) -> Draft:
    """One draft from those of several rows, (1, n) tokens each; rows are padded to the longest.

    Where some are chains and others of one further kind, the chains become that kind (`of`).
    """
    n = max(draft.tokens.shape[1] for draft in drafts)
    size = torch.cat([draft.size for draft in drafts])
    probs = faults = None
    if any(draft.probs is not None for draft in drafts):
        probs = torch.cat([_padded(_probs(draft, vocab_size), n) for draft in drafts])
    if any(draft.faults is not None for draft in drafts):
        faults = torch.cat([torch.zeros_like(one.size) if one.faults is None else one.faults for one in drafts])
    tokens = torch.cat([_padded(draft.tokens, n) for draft in drafts])
    kind: Any = next((type(draft) for draft in drafts if type(draft) is not Draft), Draft)
    alike = [draft if type(draft) is kind else kind.of(draft) for draft in drafts]
    further = {field.name for field in fields(kind)} - {"tokens", "size", "probs", "faults"}
    filled = [name for name in further if getattr(alike[0], name) is not None]
    own = {name: torch.cat([_padded(getattr(draft, name), n) for draft in alike]) for name in filled}
    return kind(tokens, size, probs, faults, **own)


def _padded(tensor: Tensor, n: int) -> Tensor:
    """Pad with zeros: (1, m, ...) -> (1, n, ...)"""
    return nn.functional.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, n - tensor.shape[1]))


def _probs(draft: Draft, vocab_size: int) -> Tensor:
    if draft.probs is not None:
        return draft.probs
    return nn.functional.one_hot(draft.tokens, vocab_size).float()


# --- a drafter of one text becomes one of a batch ---------------------------------------------------------------------

WAY_OUT = "give --draft model"


def shared_model(drafter: Drafter) -> CachedModel | None:
    """The model that drafts for all rows in one pass; None for what goes row by row, as heads and lookups do."""
    drafter = drafter.drafter if isinstance(drafter, Budgeted) else drafter
    return drafter.draft if type(drafter) is ModelDrafter else None  # a subclass drafts in its own way


BatchDrafter = RowByRow | BatchedModelDrafter


def batch_drafter(drafter: Drafter, n_rows: int) -> BatchDrafter:
    if model := shared_model(drafter):
        return BatchedModelDrafter(BatchedModel(model, n_rows))
    return RowByRow(drafter.drafter if isinstance(drafter, Budgeted) else drafter, n_rows)


def check_drafter(name: str, drafter: Drafter) -> None:
    """Raise UsageProblem for a drafter that has no form for several texts, EnvironmentProblem for a draft model that
    cannot run in batches. name: the name as --draft has it"""
    if any(part.needs_text for part in drafter.parts):
        raise UsageProblem(f"--draft {name} replays one text, and a batch has several; {WAY_OUT}")
    if any(part.runs_target for part in drafter.parts):
        raise UsageProblem(f"--draft {name} runs layers of the target ahead, which a batch does not do; {WAY_OUT}")
    if model := shared_model(drafter):
        check_batch(model)
