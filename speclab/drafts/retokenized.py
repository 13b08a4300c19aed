"""Drafts with a model of another family: its tokens become text, and the text becomes tokens of the target.

The text so far goes into the draft model in the draft's own tokens. What it continues with is read as text, and the
target's tokenizer cuts that into ids that the target can judge (universal assisted generation; string-level exact match
in Timor et al., arXiv 2502.05202). Proposals are certain of their tokens, so every rule is exact with them, greedy and
sampled; the draft itself always takes its most probable token. To the rest of the lab this is a lookup: the text alone
says what is proposed.

Text that comes twice is not cut twice in the same way, so the draft's cache is kept as far as its tokens are the same
ones, and read anew from there.
"""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from draft_models import as_draft
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel
from speclab.models.shared_tokens import text_of

BEFORE = 8  # tokens of the target in front of what is cut, so that it is cut as it stands in the text


class RetokenizedDrafter:
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
        self._device = draft.device
        begins = own.encode("a")[:1] == [own.bos_token_id]
        self._start = [own.bos_token_id] if begins and own.bos_token_id is not None else []

    def prefill(self, target: Target | None, prompt: Tensor, sampling: Sampling) -> None:
        """Note the prompt, (1, prompt length) ids of the target; the draft reads it with the first proposal."""
        self._ids, self._fed, self._device = prompt[0].tolist(), [], prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """At most `k` tokens; `uniforms` are not used."""
        return as_draft(self.lookup(k), self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Note what was committed."""
        self._ids += committed

    def lookup(self, k: int) -> list[int]:
        """At most k ids of the target: what the draft's next k tokens say."""
        context = [*self._start, *self.own.encode(text_of(self.tokenizer, self._ids), add_special_tokens=False)]
        room = k if self.draft.max_length is None else min(k, self.draft.max_length - len(context) + 1)
        said = self._continued(context, room) if context and room > 0 else []
        whole, before = text_of(self.own, context + said), text_of(self.own, context)
        new = whole.removeprefix(before) if whole.startswith(before) else ""
        found = self._cut(new) if new else []
        n_known = next((i for i, token in enumerate(found) if token >= self.n_ids), len(found))
        self.matched = min(k, n_known)
        return found[: self.matched]

    def _continued(self, context: list[int], n: int) -> list[int]:
        """At most n of the draft's tokens after the context, the most probable ones; fewer where it ends the text."""
        same = next((i for i, pair in enumerate(zip(self._fed, context, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(self._fed), len(context) - 1) if same is None else min(same, len(context) - 1)
        if same == 0:
            logits = self.draft.prefill(self._as_ids(context), rolls_back=True)
        else:
            self.draft.crop(same)
            logits = self.draft.forward(self._as_ids(context[same:]))
        self._fed = list(context)
        said: list[int] = []
        while True:
            token = int(logits[0, -1].argmax())
            if token == self.own.eos_token_id:
                return said
            said.append(token)
            if len(said) == n:
                return said
            logits = self.draft.forward(self._as_ids([token]))
            self._fed.append(token)

    def _as_ids(self, ids: list[int]) -> Tensor:
        return self.draft.replace_unknown(torch.tensor([ids], device=self.draft.device))

    def _cut(self, text: str) -> list[int]:
        """The target's ids of a text that follows what is committed."""
        before = self._ids[-BEFORE:]
        together = self.tokenizer.encode(text_of(self.tokenizer, before) + text, add_special_tokens=False)
        if together[: len(before)] == before:
            return together[len(before) :]
        return self.tokenizer.encode(text, add_special_tokens=False)  # the end of the text would be cut otherwise
