"""The cost of a round of a batch without its passes: the loop itself runs over models whose passes cost nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from draft_models import as_drawn
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptRule, Decided, DecodeSettings, Draft
from speclab.core.sampling import Drawn, Sampling
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.decodings import BatchDecoding
from speclab.extensions.batch.decoding.drafters import BatchDrafter, BatchedModelDrafter, shared_model
from speclab.extensions.batch.decoding.loops import autoregressive_decode_batch, speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from speclab.lab.instruments import PhaseClock
from speclab.models.cached import CachedModel

ROUNDS = 8  # of a text; then it begins anew
SEED = 0  # of the logits


class NoPasses(BatchedModel):
    """A batch whose passes cost nothing and always give the same logits. keeps: with caches, for drafts that are no
    chains."""

    def __init__(self, model: CachedModel, n_rows: int, widest: int, keeps: bool = False):
        super().__init__(model, n_rows)
        self._keeps = keeps
        generator, shape = torch.Generator(model.device).manual_seed(SEED), (n_rows, widest, model.vocab_size)
        self._logits = torch.randn(shape, dtype=model.model.dtype, device=model.device, generator=generator)

    def start(self, longest: int) -> None:
        """Drop all texts."""
        self.lengths, self.n_passes = [0] * self.n_rows, 0
        if self._keeps:
            super().start(longest)

    def prefill(self, row: int, prompt: Tensor) -> Tensor:
        """The same logits, (1, 1, vocab)."""
        self.lengths = [prompt.shape[1] if i == row else length for i, length in enumerate(self.lengths)]
        return self._logits[:1, :1]

    def forward(self, tokens: Tensor, reads: Tensor | None = None) -> Tensor:
        """The same logits, (rows, m, vocab)."""
        self._starts = self.lengths
        self.lengths = [length + tokens.shape[1] for length in self.lengths]
        return self._logits[:, : tokens.shape[1]]


def _is_no_chain(draft: Draft | None) -> TypeGuard[Draft]:
    """Tell whether the target reads this draft in a way of its own, not as a chain."""
    return draft is not None and type(draft) is not Draft


class SameDraft:
    """A drafter that always proposes the same tokens and costs nothing. seen: a draft of one text, whose branches and
    kind of law these have."""

    def __init__(self, seen: Draft | None):
        self._seen = seen

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        """Make the proposals."""
        self._n_rows, token = target.n_rows, torch.zeros(target.n_rows, dtype=torch.long, device=target.device)
        law = None
        if self._seen is not None and self._seen.probs is not None:
            law = torch.full((target.n_rows, target.vocab_size), 1 / target.vocab_size, device=target.device)
        self._drawn = Drawn(token, law, torch.zeros(target.n_rows, device=target.device))

    def prepare(self, longest: int) -> None:
        """There is nothing to record."""

    def prefill(self, row: int, prompt: Tensor, committed: list[int]) -> None:
        """A prompt changes nothing."""

    def propose(self, k: Sequence[int], uniforms: Tensor) -> Draft:
        """Propose the draft that was seen, for every row, or a chain of the same token again and again."""
        sizes, seen, n = torch.tensor(k, device=uniforms.device), self._seen, self._n_rows
        if _is_no_chain(seen):
            parts = {name: part for name, part in vars(seen).items() if part is not None}
            return replace(seen, **{name: part.expand(n, *part.shape[1:]) for name, part in parts.items()})
        if not any(k):
            return Draft(torch.zeros(len(k), 0, dtype=torch.long, device=uniforms.device), sizes)
        return replace(as_drawn([self._drawn] * max(k)), size=sizes)

    def observe(self, decided: object) -> None:
        """A decision changes nothing."""


class EmptyLoop:
    """The loop over `n_texts` texts with nothing in its passes; a call does a round and gives its seconds.

    What is left: the accept rule, copying to the host, drawing, rolling back, a draft model's own work between its
    passes. Without a draft: the baseline's loop, and the seconds of one of its passes.

    drafter: None, or what proposes `k` tokens, a model with empty passes, too; of all others the proposals cost nothing
    and are like `seen`, one that was made for one text.
    """

    def __init__(
        self,
        target: CachedModel,
        accept: AcceptRule,
        n_texts: int,
        sampling: Sampling,
        chunk: int = 1,
        k: int = 0,
        drafter: Drafter | None = None,
        seen: Draft | None = None,
    ):
        self._target, self._accept, self._n_texts, self._sampling = target, accept, n_texts, sampling
        self._chunk, self._k, self._drafter, self._seen = chunk, k, drafter, seen
        self._n_left = 0  # rounds until the texts begin anew

    def __call__(self) -> float:
        """The seconds of the next round."""
        if self._n_left == 0:
            self._start()
        self._n_left -= 1
        self._decoding.advance()
        return self._decoding.passes[-1].seconds / (1 if self._k else self._chunk)

    def _start(self) -> None:
        """Start new texts, up to their first tokens."""
        widest = self._k + 1 if self._k else self._chunk
        room = (self._target.max_length or 1 + (ROUNDS + 1) * widest) - 1
        budget = min((ROUNDS + 1) * widest, room)
        self._n_left = max(1, (budget - 1) // widest - bool(self._k))
        batch = NoPasses(self._target, self._n_texts, widest, keeps=_is_no_chain(self._seen))
        prompt = torch.zeros(1, 1, dtype=torch.long, device=self._target.device)
        requests = [Request(prompt, DecodeSettings(budget, self._sampling))] * self._n_texts
        rounds = (
            speculative_decode_batch(batch, self._batch_drafter(), requests, self._k, self._accept)
            if self._k
            else autoregressive_decode_batch(batch, requests, self._chunk)
        )
        self._decoding = BatchDecoding(rounds, self._n_texts)
        for _ in range(self._n_texts):  # the prompts
            self._decoding.advance()

    def _batch_drafter(self) -> BatchDrafter:
        if self._drafter and (model := shared_model(self._drafter)):
            return BatchedModelDrafter(NoPasses(model, self._n_texts, 2))
        return SameDraft(self._seen)


# --- a drafter with a clock on it -------------------------------------------------------------------------------------

DRAFT = "draft"  # the phase


class WatchedDrafter:
    """A drafter for a batch of one text; it is started before anything else.

    seen: its longest draft so far, None before there is one.
    """

    def __init__(self, drafter: BatchDrafter):
        self._drafter = drafter
        self.seen: Draft | None = None

    def start(self, target: BatchedModel, sampling: Sampling, longest: int) -> None:
        """Drop all texts, and what the clock has counted."""
        self._clock, self._n_rounds = PhaseClock(target.device), 0
        self._drafter.start(target, sampling, longest)

    def prepare(self, longest: int) -> None:
        """Prepare the drafter inside."""
        self._drafter.prepare(longest)

    def prefill(self, row: int, prompt: Tensor, committed: list[int]) -> None:
        """The row starts a text."""
        self._drafter.prefill(row, prompt, committed)

    def propose(self, k: Sequence[int], uniforms: Tensor) -> Draft:
        """Let the drafter inside propose, with the clock running."""
        draft = self._clock.timed(DRAFT, self._drafter.propose)(k, uniforms)
        self._n_rounds += 1
        if draft.tokens.shape[1] and (self.seen is None or draft.tokens.shape[1] > self.seen.tokens.shape[1]):
            self.seen = draft
        return draft

    def observe(self, decided: Mapping[int, Decided]) -> None:
        """Let the drafter inside take in the decisions, with the clock running."""
        self._clock.timed(DRAFT, self._drafter.observe)(decided)

    def take(self) -> float:
        """The mean seconds of a round, for proposing and for following the text. The count begins anew."""
        seconds, n = self._clock.reader()().get(DRAFT, 0.0), self._n_rounds
        self._n_rounds = 0
        return seconds / max(1, n)
