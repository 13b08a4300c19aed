"""Drafts with a model of another family: its tokens become text, and the text becomes tokens of the target.

The text so far goes into the draft model in the draft's own tokens. What it continues with is read as text, and the
target's tokenizer cuts that into ids that the target can judge (universal assisted generation; string-level exact match
in Timor et al., arXiv 2502.05202). Proposals are certain of their tokens, so every rule is exact with them, greedy and
sampled; the draft itself always takes its most probable token. To the rest of the lab this is a lookup: the text alone
says what is proposed. But the last word of what the draft says is tokenized in another way once it goes on, so a
proposal of fewer tokens is not the beginning of a longer one.

The same text is not always tokenized in the same way, so the draft's cache is kept as far as its tokens are the same
ones, and read anew from there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from draft_models import as_draft, draft_room
from speclab.core.drafter import Lookup
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling, most_probable, to_host
from speclab.extensions.tokenizers.shared_tokens import start_of_text, text_of, tokenized_inside
from speclab.models import loading
from speclab.models.cached import CachedModel

BEFORE = 8  # tokens in front of what is tokenized or decoded, so that it is read as it stands in the text


class RetokenizedDrafter(Lookup):
    """Proposes what a model with another tokenizer says next.

    draft: the model, cut at the ids of `own`, its tokenizer. tokenizer: the target's; n_ids: ids that the target knows.
    """

    def __init__(
        self, draft: CachedModel, own: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase, n_ids: int
    ):
        self.draft, self.own, self.tokenizer, self.n_ids = draft, own, tokenizer, n_ids
        self.matched = 0  # tokens of the last proposal
        self._ids: list[int] = []  # of the text, the target's
        self._fed: list[int] = []  # what the draft's cache holds, its own
        self._context: list[int] = []  # the text as the draft read it last, and
        self._said: list[int] = []  # what it said after that
        self._ended = False  # whether it ended the text there
        self._device = draft.device
        self._start = start_of_text(own)

    shorter_is_beginning = False

    def describe(self, name: str, engine: str) -> str:
        eager = "; on the eager engine" * (self.draft.engine != engine)
        model = loading.describe_model(name, self.draft.model, "draft")
        return f"{model}; its text is tokenized again for the target{eager}"

    def check_prompts(self, prompts: Sequence[list[int]]) -> None:
        self.draft.room.check_draft(len(self.read_as(prompt)) for prompt in prompts)

    def prefill(self, target: Target | None, prompt: Tensor, sampling: Sampling) -> None:
        self._ids, self._fed, self._context, self._device = prompt[0].tolist(), [], [], prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return as_draft(self.lookup(k), self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._ids += committed

    def read_as(self, ids: list[int]) -> list[int]:
        """Return a text of the target, in the draft's tokens."""
        return [*self._start, *self.own.encode(text_of(self.tokenizer, ids), add_special_tokens=False)]

    def lookup(self, k: int) -> list[int]:
        """Return at most k ids of the target, for the text of the draft's next k tokens."""
        context = self.read_as(self._ids)
        said = self._continued(context, min(k, draft_room(self.draft, len(context)))) if context else []
        tail = context[-BEFORE:]
        before, whole = text_of(self.own, tail), text_of(self.own, tail + said)
        found = self._tokenized(whole.removeprefix(before)) if whole.startswith(before) else []
        n_known = next((i for i, token in enumerate(found) if token >= self.n_ids), len(found))
        self.matched = min(k, n_known)
        return found[: self.matched]

    def _continued(self, context: list[int], n: int) -> list[int]:
        """Return at most n of the draft's tokens after the context, the most probable ones; fewer where the draft
        ends the text."""
        if context != self._context:
            self._context, self._said, self._ended = context, [], False
        while len(self._said) < n and not self._ended:
            [token] = to_host(most_probable(self._logits(context + self._said)[None]))
            self._ended = token == self.own.eos_token_id
            self._said += [] if self._ended else [token]
        return self._said[:n]

    def _logits(self, ids: list[int]) -> Tensor:
        """Return the draft's logits after these ids, (vocab,), from one pass over those that its cache lacks."""
        n_fed = len(self._fed)
        differs = (i for i, (old, new) in enumerate(zip(self._fed, ids, strict=False)) if old != new)
        same = min(next(differs, n_fed), len(ids) - 1)
        if same == 0:
            logits = self.draft.prefill(self._as_ids(ids))
        else:
            if same < n_fed:
                self.draft.crop(same)
            logits = self.draft.forward(self._as_ids(ids[same:]))
        self._fed = list(ids)
        return logits[0, -1]

    def _as_ids(self, ids: list[int]) -> Tensor:
        return self.draft.replace_unknown(torch.tensor([ids], device=self.draft.device))

    def _tokenized(self, text: str) -> list[int]:
        """Return the target's ids of a text that follows what is committed."""
        if not text:
            return []
        ids = self._ids[-BEFORE:]
        before = text_of(self.tokenizer, ids)
        together = self.tokenizer.encode(before + text, add_special_tokens=False)
        if together[: len(ids)] == ids:
            return together[len(ids) :]
        # It may begin inside a word, and is tokenized in another way there, but not where it ends.
        for n in reversed(range(len(together))):
            if text_of(self.tokenizer, together[:n]) == before:
                return together[n:]
        return tokenized_inside(self.tokenizer, text)  # the end of what is committed would change
