"""Drafts with a model of another family by the tokens that both vocabularies have, at every temperature.

The draft keeps its own ids. Its distribution is restricted to the shared tokens and renormalised, and handed over as
one over the target's whole vocabulary, zero elsewhere: then the usual accept rule is exact, whatever is shared
(token-level intersection: Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
Heterogeneous Vocabularies", arXiv 2502.05202). Temperature, top-k and top-p apply to the restricted distribution, as
they do to a model's. How the draft reads the text is in shared_tokens.py.

The price: tokens of the target that are not shared are never drafted.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from draft_models import ModelDrafter, draft_room
from speclab.core.drafter import Law
from speclab.core.rounds import Target
from speclab.core.sampling import Sampling, to_device
from speclab.extensions.tokenizers.shared_tokens import END, Reading, SharedTokens, shared_tokens, token_bytes
from speclab.models.cached import CachedModel
from speclab.models.loading import eos_ids
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem

LEAST_SHARED = 0.05  # of the tokens of the smaller vocabulary


class IntersectDrafter(ModelDrafter):
    """Drafts shared tokens with a causal language model of another vocabulary.

    It is a ModelDrafter whose cache and catch-up hold the draft's ids, and whose proposals are the target's.
    shared: the pairs; all of the target's ids lie in its vocabulary, all of the draft's among the draft's logits.
    reads: a `Reading`, the way in which the draft reads the target's ids.
    """

    branches_as_base = True  # after each of several tokens comes what the model says, as after the last one
    proposes_own_ids = is_model = False

    def __init__(self, draft: CachedModel, shared: SharedTokens, reads: Any):
        super().__init__(draft)
        self.shared, self._reads = shared, reads
        self._target_ids = torch.tensor(shared.target_ids, device=draft.device)  # (n shared,)
        self._draft_ids = torch.tensor(shared.draft_ids, device=draft.device)
        self._draft_id = torch.zeros(0, dtype=torch.long)  # of every id of the target, 0 where it is not shared

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Read the prompt, (1, prompt length) target ids. Raises EnvironmentProblem where logits are not finite."""
        self._draft_id = self._draft_ids.new_zeros(target.vocab_size)
        self._draft_id[self._target_ids] = self._draft_ids
        super().prefill(target, to_device(self.read_as(prompt[0].tolist()), self.draft.device)[None], sampling)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Crop the cache to what is committed, and note what it lacks; `committed` are ids of the target."""
        # One token of the target may be several of the draft's, so what was rejected has to leave first.
        self.draft.crop(min(self.draft.length, self._n_committed + n_accepted))
        super().observe(n_accepted, [i for token in committed for i in self._reads.token(token)])

    def draft_ids(self, tokens: Tensor) -> Tensor:
        return self._draft_id[tokens]

    def as_target_logits(self, logits: Tensor, vocab_size: int = 0) -> Tensor:
        """Return the logits of the shared tokens alone: (m, the draft's vocabulary) -> (m, the target's)."""
        rows = logits.new_full((len(logits), vocab_size or self._vocab_size), float("-inf"))
        rows[:, self._target_ids] = logits[:, self._draft_ids]
        return rows

    def check_prompts(self, prompts: Sequence[list[int]]) -> None:
        self.draft.room.check(max(len(self.read_as(prompt)) for prompt in prompts), whose="the draft model's")

    def read_as(self, prompt: list[int]) -> list[int]:
        return self._reads.prompt(prompt)

    def describe(self, name: str, engine: str) -> str:
        return f"{super().describe(name, engine)}; {self.shared.describe()}"

    def law(self, target: CachedModel, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        """The draft proposes shared tokens alone; one uncached pass says with which probabilities."""
        rows = self.probs(prompt, text, sampling, target.vocab_size)
        return Law(lambda depth: rows[depth:], [min(k, draft_room(self.draft, n)) for n in self.n_read(prompt, text)])

    def n_read(self, prompt: list[int], tokens: list[int]) -> list[int]:
        """Return how many of its own ids the draft has read before each of `tokens`, all ids of the target."""
        sizes = (len(self._reads.token(token)) for token in tokens)
        return list(itertools.accumulate(sizes, initial=len(self.read_as(prompt))))[:-1]

    @torch.inference_mode()
    def probs(self, prompt: list[int], tokens: list[int], sampling: Sampling, vocab_size: int) -> Tensor:
        """Return the distribution that the token at the place of each of `tokens` is drawn from.

        From one uncached pass.  -> (n, vocab_size), on the CPU; zeros beyond its context. They are the same wherever a
        round begins: a drafted token is read as it was drafted.
        """
        counts, most = self.n_read(prompt, tokens), self.draft.room.text
        counts = [count for count in counts if most is None or count <= most]
        if not counts:
            return torch.zeros(len(tokens), vocab_size)
        text = [*self.read_as(prompt), *(i for token in tokens for i in self._reads.token(token))]
        ids = to_device(text[: max(counts)], self.draft.device)[None]
        logits = self.draft.model(input_ids=self.draft.replace_unknown(ids), use_cache=False).logits
        rows = logits[0, [count - 1 for count in counts], : self.draft.vocab_size]  # (places in its context, its own)
        law = sampling.probs(self.as_target_logits(rows, vocab_size)).cpu()
        return pad(law, (0, 0, 0, len(tokens) - len(law)))


def intersect(draft: CachedModel, own: PreTrainedTokenizerBase, setup: Setup, kind: str) -> IntersectDrafter:
    """Return a drafter with a model whose tokenizer is `own`. Raises UsageProblem where too few tokens are shared.

    kind: what --draft says.
    """
    both = (setup.tokenizer, setup.target), (own, draft)
    target_bytes, draft_bytes = (
        {i: added for i, added in token_bytes(tokenizer).items() if i < model.vocab_size} for tokenizer, model in both
    )
    target_end, draft_end = (_end(tokenizer, model) for tokenizer, model in both)
    if target_end is not None and draft_end is not None:
        target_bytes[target_end], draft_bytes[draft_end] = END, END
    shared = shared_tokens(target_bytes, draft_bytes)
    if shared.share < LEAST_SHARED:
        raise UsageProblem(
            f"--draft {kind}: {shared.describe()}, {shared.share:.1%} of the smaller one; below {LEAST_SHARED:.0%} "
            f"next to nothing can be drafted: give another draft, or --draft retokenize:{kind.partition(':')[2]}"
        )
    reads = Reading(setup.tokenizer, own, shared, target_bytes, draft_bytes, draft.n_ids - 1)
    return IntersectDrafter(draft, shared, reads)


def _end(tokenizer: PreTrainedTokenizerBase, model: CachedModel) -> int | None:
    """Return the id with which a model ends a text: of several the one that its tokenizer names, or the first."""
    ends = frozenset(i for i in eos_ids(model.model.generation_config) if i < model.vocab_size)
    return tokenizer.eos_token_id if tokenizer.eos_token_id in ends else min(ends, default=None)
