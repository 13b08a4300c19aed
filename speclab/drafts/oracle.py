"""An instrument, not a method: a draft that replays the baseline's output, right with a chosen probability.

It turns acceptance from 0 to 1 while everything else stays what it is. Greedy decoding only. On the command line:
`dial:A` (at the cost of the lab's draft model), `dial:A:MODEL` (at the cost of another one), `dial:A:free`.
"""

import torch
from torch import Tensor

from draft_models import ModelDrafter, as_draft
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem

NEEDS_GREEDY = "the dial replays greedy output; use --temperature 0"


class OracleDraft:
    """An instrument, not a method: it replays the baseline's output, each token right with probability `accuracy`.

    So it turns acceptance from 0 to 1 while everything else stays what it is. Greedy decoding only.
    """

    def __init__(self, accuracy: float, seed: int = 0):
        if not 0 <= accuracy <= 1:
            raise ValueError(f"accuracy must lie in 0 … 1, got {accuracy}")
        self.accuracy, self.seed = accuracy, seed
        self._reference: list[int] = []

    def replay(self, reference: list[int]) -> None:
        """Set the baseline's output for the prompt that comes next."""
        self._reference = list(reference)

    def _follow(self, position: int, committed: list[int]) -> None:
        """Text that leaves the reference (a near-tie in a low precision) cannot be replayed from there on."""
        if committed != self._reference[position : position + len(committed)]:
            self._reference = []

    def _begin(self, prompt: Tensor, sampling: Sampling) -> None:
        if not sampling.greedy:
            raise UsageProblem(NEEDS_GREEDY)
        # Another seed for every prompt, or all prompts would be right and wrong at the same places.
        self._generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(prompt.sum()))

    def _replayed(self, position: int, vocab_size: int) -> int | None:
        """A right or a wrong token for this position of the output; None after its end."""
        if position >= len(self._reference):
            return None
        hit = torch.rand((), generator=self._generator).item() < self.accuracy
        return self._reference[position] if hit else (self._reference[position] + 1) % vocab_size


class OracleModelDrafter(OracleDraft, ModelDrafter):
    """The oracle draft at the cost of a real draft model, which makes all its passes over the proposed tokens."""

    def __init__(self, draft: CachedModel, accuracy: float, seed: int = 0):
        OracleDraft.__init__(self, accuracy, seed)
        ModelDrafter.__init__(self, draft)

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Start at the first new token. UsageProblem unless greedy."""
        self._begin(prompt, sampling)
        super().prefill(target, prompt, sampling)
        self._n_prompt = prompt.shape[1]
        self._position = 0

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """The baseline's tokens, right or wrong, after as many passes of the draft model."""
        self._position = self._n_committed - self._n_prompt
        return super().propose(k, uniforms)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Follow the text, and crop the draft model's cache."""
        self._follow(self._n_committed - self._n_prompt, committed)
        super().observe(n_accepted, committed)

    def _run(self, not_fed: Tensor, uniforms: Tensor) -> tuple[Tensor, ...]:
        """The draft model's passes, whose tokens are replaced; that it reads its own proposals does not matter."""
        own, *probs = super()._run(not_fed, uniforms)
        replayed = [self._replayed(self._position + i, self.draft.vocab_size) for i in range(own.shape[1])]
        chosen = [own[0, i] if token is None else own.new_tensor(token) for i, token in enumerate(replayed)]
        return torch.stack(chosen)[None], *probs


class FreeOracleDrafter(OracleDraft):
    """The oracle draft at no cost: what a draft would be worth if drafting took no time."""

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Start at the first new token. UsageProblem unless greedy."""
        self._begin(prompt, sampling)
        self._position, self._vocab_size, self._device = 0, target.vocab_size, prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """The baseline's tokens, right or wrong; fewer where its text ends."""
        replayed = [self._replayed(self._position + i, self._vocab_size) for i in range(k)]
        return as_draft([token for token in replayed if token is not None], self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Follow the text."""
        self._follow(self._position, committed)
        self._position += len(committed)
