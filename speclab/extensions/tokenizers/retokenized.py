"""Drafts with a model of another family: its tokens become text, and the text becomes tokens of the target.

The text so far goes into the draft model in the draft's own tokens, and its cache is kept as far as these stay the same
ones. What it continues with is read as text, and the target's tokenizer cuts that into ids that the target can judge
(universal assisted generation; string-level exact match in Timor et al., arXiv 2502.05202). Proposals are certain of
their tokens, so every rule is exact with them, greedy and sampled; the draft always takes its most probable token. To
the rest of the lab this is a lookup: the text alone says what is proposed. But the last word of what the draft says is
tokenized in another way once it goes on: a proposal of fewer tokens is not the beginning of a longer one.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase as Tokenizer

from draft_models import as_draft, draft_room
from speclab.core.drafter import CertainLaw, Law, Lookup, Place
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import GREEDY, Sampling, most_probable, to_host
from speclab.extensions.tokenizers.shared_tokens import start_of_text, tokenized_inside
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.models.pieces import text_of

BEFORE = 8  # tokens in front of what is tokenized or decoded, so that it is read as it stands in the text


class RetokenizedDrafter(Lookup):
    """Proposes what a model with another tokenizer says next.

    draft: the model, cut at the ids of `own`, its tokenizer. tokenizer: the target's; n_ids: ids that the target knows.
    """

    def __init__(self, draft: CachedModel, own: Tokenizer, tokenizer: Tokenizer, n_ids: int):
        self.draft, self.own, self.tokenizer, self.n_ids = draft, own, tokenizer, n_ids
        self._start, self._device = start_of_text(own), draft.device
        self._ids, self._fed = list[int](), list[int]()  # the text, the target's; what the draft's cache holds, its own
        # The text as the draft read it last, what it said after that, and whether it ended the text there.
        self._context, self._said, self._ended = list[int](), list[int](), False

    def __deepcopy__(self, memo: dict) -> Self:
        return type(self)(copy.deepcopy(self.draft, memo), self.own, self.tokenizer, self.n_ids)

    def describe(self, name: str, engine: str) -> str:
        eager = "; on the eager engine" * (self.draft.engine != engine)
        model = loading.describe_model(name, self.draft.model, "draft")
        return f"{model}; its text is tokenized again for the target{eager}"

    def check_prompts(self, prompts: Sequence[list[int]]) -> None:
        self.draft.room.check(max(len(self.read_as(prompt)) for prompt in prompts), whose="the draft model's")

    def prefill(self, target: Target | None, prompt: Tensor, sampling: Sampling) -> None:
        self._ids, self._fed, self._context, self._device = prompt[0].tolist(), [], [], prompt.device

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        return as_draft(self.lookup(k), self._device)

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        self._ids += committed

    def law(self, target: CachedModel, prompt: list[int], text: list[int], sampling: Sampling, k: int) -> Law:
        led, proposals = copy.deepcopy(self), []
        led.prefill(target, torch.tensor([prompt]), GREEDY)
        for token in text:
            proposals.append([led.lookup(n) for n in range(k + 1)])
            led.observe(0, [token])
        return ByLength([CertainLaw(of_one, target.vocab_size) for of_one in zip(*proposals, strict=True)])

    def read_as(self, ids: list[int]) -> list[int]:
        """Return a text of the target, in the draft's tokens."""
        return [*self._start, *self.own.encode(text_of(self.tokenizer, ids), add_special_tokens=False)]

    def lookup(self, k: int) -> list[int]:
        """Return at most k ids of the target, for the text of the draft's next k tokens."""
        context = self.read_as(self._ids)
        said = self._continued(context, min(k, draft_room(self.draft, len(context)))) if context else []
        before, whole = text_of(self.own, context[-BEFORE:]), text_of(self.own, context[-BEFORE:] + said)
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
        pairs = zip(self._fed, ids[:-1], strict=False)
        same = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(self._fed), len(ids) - 1))
        new = self.draft.replace_unknown(torch.tensor([ids[same:]], device=self.draft.device))
        if 0 < same < len(self._fed):
            self.draft.crop(same)
        self._fed = ids
        return (self.draft.forward(new) if same else self.draft.prefill(new))[0, -1]

    def _tokenized(self, text: str) -> list[int]:
        """Return the target's ids of a text that follows what is committed."""
        before = text_of(self.tokenizer, self._ids[-BEFORE:])
        together = self.tokenizer.encode(before + text, add_special_tokens=False)
        # It may begin inside a word, and is tokenized in another way there, but not where it ends.
        for n in reversed(range(len(together) if text else 0)):
            if text_of(self.tokenizer, together[:n]) == before:
                return together[n:]
        return tokenized_inside(self.tokenizer, text) if text else []  # the end of what is committed would change


class ByLength(Law):
    """A law for each number of tokens that a round may ask for: 0, 1, ..."""

    def __init__(self, laws: Sequence[Law]):
        self._laws = laws

    def accept_probs(self, target_probs: Callable[[], Tensor], text: Sequence[int]) -> list[Sequence[float]]:
        return list(map(_Rows, zip(*(law.accept_probs(target_probs, text) for law in self._laws), strict=True)))

    def drawn_from(self, places: Sequence[Place]) -> Tensor:
        return torch.cat([self._laws[0].drawn_from([]), *(self._laws[one[2]].drawn_from([one]) for one in places)])


class _Rows(list[Any]):
    """The acceptance of proposals of at most 0, 1, ... tokens: `rows[:n]` is the one for n."""

    def __getitem__(self, place: Any) -> Any:
        return super().__getitem__(place.stop)
