"""An instrument, not a method: a draft that replays the baseline's output, right with a chosen probability.

It sets acceptance to any value from 0 to 1 and changes nothing else. Greedy decoding only. On the command line:
`dial:A` (at the cost of the lab's draft model), `dial:A:MODEL` (at the cost of another one), `dial:A:free`.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from torch import Tensor

from draft_models import ModelDrafter, as_draft
from speclab.core.drafter import Drafter
from speclab.core.law import ConstantLaw, Law
from speclab.core.rounds import DecodeSettings, Draft, Round, Target, tokens_of
from speclab.core.sampling import Sampling, to_device
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem, setting


def needs_greedy() -> str:
    """Return why a dial does not sample, and what to do."""
    return f"the dial replays greedy output; use {setting('temperature', 0)}"


class OracleDraft(Drafter):
    """An instrument, not a method: it replays the baseline's output, each token right with probability `accuracy`.

    So it turns acceptance from 0 to 1 while everything else stays what it is. Greedy decoding only.
    """

    def __init__(self, accuracy: float, seed: int = 0):
        if not 0 <= accuracy <= 1:
            raise ValueError(f"accuracy must lie in 0 … 1, got {accuracy}")
        self.accuracy, self.seed = accuracy, seed
        self._reference: list[int] = []

    needs_text = True

    def law(self, target: CachedModel, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        """Return the law of tokens that are each right with one probability."""
        return ConstantLaw(self.accuracy, [len(text)] * len(text))

    def take_text(self, reference: list[int]) -> None:
        """Set the baseline's output for the prompt that comes next."""
        self._reference = list(reference)

    def _follow(self, position: int, committed: list[int]) -> None:
        """Follow the text. One that leaves the reference (a near-tie in a low precision) cannot be replayed from
        there on."""
        if committed != self._reference[position : position + len(committed)]:
            self._reference = []

    def _begin(self, prompt: Tensor, sampling: Sampling) -> None:
        if not sampling.greedy:
            raise UsageProblem(needs_greedy())
        # Another seed for every prompt, or all prompts would be right and wrong at the same places.
        self._random = random.Random(self.seed * 1_000_003 + int(prompt.sum()))

    def _token_at(self, position: int, vocab_size: int) -> int | None:
        """Return a right or a wrong token for this position of the output; None after its end."""
        if position >= len(self._reference):
            return None
        hit = self._random.random() < self.accuracy
        return self._reference[position] if hit else (self._reference[position] + 1) % vocab_size


class OracleModelDrafter(OracleDraft, ModelDrafter):
    """The oracle draft at the cost of a real draft model, which makes all its passes over the proposed tokens."""

    is_model = False

    def __init__(self, draft: CachedModel, accuracy: float, seed: int = 0):
        OracleDraft.__init__(self, accuracy, seed)
        ModelDrafter.__init__(self, draft)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Start at the first new token. Raises UsageProblem unless greedy."""
        self._begin(prompt, sampling)
        super().prefill(target, prompt, sampling)
        self._n_prompt = self._n_committed

    def law(self, target: CachedModel, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        """Each token is right with one probability, as far as the model's context goes."""
        n_before = self.draft.room.length_after(len(prompt))
        return ConstantLaw(self.accuracy, self.sizes(range(n_before, n_before + len(text))))

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Return the baseline's tokens, right or wrong, after as many passes of the draft model; that this reads its
        own proposals does not matter."""
        start = self._n_committed - self._n_prompt
        draft = super().propose(k, uniforms)
        replayed = [self._token_at(start + i, self.draft.vocab_size) for i in range(draft.tokens.shape[1])]
        given = to_device([-1 if token is None else token for token in replayed], self.draft.device)
        return replace(draft, tokens=torch.where(given >= 0, given, draft.tokens))

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Follow the text, and crop the draft model's cache."""
        self._follow(self._n_committed - self._n_prompt, committed)
        super().observe(n_accepted, committed)


class FreeOracleDrafter(OracleDraft):
    """The oracle draft at no cost: what a draft would be worth if drafting took no time."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Start at the first new token. Raises UsageProblem unless greedy."""
        self._begin(prompt, sampling)
        self._position, self._vocab_size, self._device = 0, target.vocab_size, prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Return the baseline's tokens, right or wrong; fewer where its text ends."""
        replayed = [self._token_at(self._position + i, self._vocab_size) for i in range(k)]
        return as_draft([token for token in replayed if token is not None], self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Follow the text."""
        self._follow(self._position, committed)
        self._position += len(committed)


class ConstantDrafter(Drafter):
    """An instrument: it proposes the same id again and again, so that every pass of the target has k + 1 tokens."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Note the device of the prompt."""
        self._device = prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose id 0, `k` times."""
        return as_draft([0] * k, self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """There is nothing to do."""


def reference_text(
    decode: Callable[..., Iterable[Round]],
    target: Target,
    prompt: Tensor,
    draft_length: int,
    settings: DecodeSettings,
) -> list[int]:
    """Return the target's own text for an OracleDraft to replay, by the speculative loop `decode`.

    It is made with passes as wide as those that will judge the replay: in bfloat16 the logits of another width differ
    enough to turn a near-tie, and a text that leaves the reference cannot be replayed.
    """
    return tokens_of(decode(target, ConstantDrafter(), prompt, draft_length, settings))
