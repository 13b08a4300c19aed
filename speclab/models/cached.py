"""A Hugging Face language model with a key-value cache that takes tokens in and rolls back.

The one invariant of the lab: the last committed token is never in the cache. A decoder that has committed L tokens
holds L - 1 of them here. A pass takes the last one (and, when it verifies, the drafted ones after it), and then the
cache is rolled back to all but the last of what is committed by then. No token goes in twice, except into layers that
cannot be cropped: their backend reads the accepted tokens again, and counts that pass.

One round with k = 4 drafted tokens of which 2 are accepted, in tokens:

                  committed   target's cache   draft's cache   fed in this step
    before            L           L - 1            L - 1
    1. draft          L           L - 1            L + 3       the last committed token, drafts 1 to 3
    2. verify         L           L + 4            L + 3       the last committed token, drafts 1 to 4
    3. accept       L + 3         L + 4            L + 3       nothing; drafts 1 and 2 and the target's token are final
    4. roll back    L + 3         L + 2            L + 2       nothing; drafts 3 and 4 leave, L + 2 = (L + 3) - 1

Where all 4 are accepted, the target's cache ends with L + 4 tokens and the draft's with L + 3: draft 4 was never fed to
it, and goes in first in the next round.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.core.rounds import Decided, Draft
from speclab.core.sampling import to_device
from speclab.engines.eager import EagerBackend
from speclab.models.family import embedded_ids, family_of, with_table
from speclab.system.errors import EnvironmentProblem, UsageProblem


class CachedModel:
    """Runs passes of a language model over one text, and keeps its cache.

    vocab_size: higher ids are cut off and never emitted: a target's at its tokenizer's ids, a draft's at its target's.
    fast: the same model in the form of another engine than the eager one (speclab/models/setup.py).
    length: tokens in the cache. n_last: those of the last `run`. n_passes: from `prefill` on, replays left out.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int | None = None, fast: Any = None):
        self.model, self.fast = model.eval(), fast
        self.device: torch.device = model.device  # that holds the weights; the library looks through all of them for it
        n_rows = model.config.get_text_config().vocab_size
        self.n_ids = embedded_ids(model)  # no other id can go into a pass
        self.vocab_size = min(vocab_size or n_rows, n_rows, self.n_ids)
        self.family = family_of(model)
        self.room = with_table(self.family.room(model.config), model)
        # Decoder layers whose outputs a draft reads. The baseline keeps them too, so both arms run on the same engine.
        self.hidden_layers: tuple[int, ...] = ()
        self.backend: Any = None  # what runs the passes of this decoding; `prefill` makes it
        self.keeps: Callable[[int, int], int] = tokens_to_keep  # the rule by which `commit` rolls back

    def __deepcopy__(self, memo: object = None) -> "CachedModel":
        """Return a twin that shares the weights, with a cache of its own: a drafter is copied with its model."""
        twin = type(self)(self.model, self.vocab_size, self.fast)
        twin.hidden_layers = self.hidden_layers
        return twin

    with_own_cache = __deepcopy__

    @property
    def engine(self) -> str:
        return "eager" if self.fast is None else self.fast.name

    @property
    def n_replays(self) -> int:
        """Return the passes since `prefill` that read accepted tokens once more."""
        return self.backend.n_replays

    def replace_unknown(self, ids: Tensor) -> Tensor:
        """Return the same ids, with the model's last one in place of those that it has no embedding for."""
        return ids.clamp(max=self.n_ids - 1)

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Take the widths that passes will have, and how long texts become, for CUDA graphs."""
        if self.fast is not None:
            self.fast.prepare(widths, longest)

    def prefill(self, prompt: Tensor) -> Tensor:
        """Drop the cache and read the prompt.  (1, prompt) ids -> (1, 1, vocab) logits of the next token"""
        own, layers = self.family.backend or EagerBackend, self.hidden_layers
        self.backend = self.fast.start(layers) if self.fast else own(self.model, layers)
        with torch.inference_mode():
            logits = self.backend.prefill(prompt)
        self.length, self.n_passes = self.room.length_after(prompt.shape[1]), 1
        self._n_committed = self.length + 1  # tokens that are final
        return logits[..., : self.vocab_size]

    def step(self, token: Tensor) -> Tensor:
        """Append one token, (1,), that stays for good.  -> (1, 1, vocab) logits of the next one"""
        return self.run(1, lambda backend, length: backend.step(token[:, None], length))

    def verify(self, last_token: Tensor, draft: Draft) -> Tensor:
        """Make one pass over the last committed token, (1,), and the n drafted ones.  -> (1, n + 1, vocab) logits"""
        return draft.verified_by(self, last_token)

    def commit(self, decided: Decided) -> None:
        """Roll back after `verify`, to the tokens that are final now without the last of them."""
        self._n_committed += len(decided.tokens)
        if decided.path is not None:
            self.keep(decided.path)
        self.crop(self.keeps(self.length, self._n_committed))

    def forward(self, tokens: Tensor, reads: Tensor | None = None) -> Tensor:
        """Append tokens, which may be rolled back.  (1, m) ids -> (1, m, vocab) logits; row i follows token i

        reads: (1, m, j + m) bool, which of the cache's last j tokens and of these each token reads, itself included;
        its position is behind as many of them. All that stands before them is read by each. None: each reads all.
        """
        if reads is None:
            return self.run(tokens.shape[1], lambda backend, length: backend.forward(tokens, length))
        n, n_among = reads.shape[1:]
        before = self.length - (n_among - n)
        positions = before + reads.sum(-1) - 1  # (1, m)
        mask = torch.zeros(reads.shape, dtype=self.model.dtype, device=reads.device)
        mask.masked_fill_(~reads, torch.finfo(mask.dtype).min)
        mask = torch.nn.functional.pad(mask, (before, 0))[:, None]  # (1, 1, m, before + j + m)
        return self.run(n, lambda backend, length: backend.forward_masked(tokens, length, positions, mask))

    @property
    def can_chain(self) -> bool:
        return hasattr(self.backend, "chain")

    def chain(self, tokens: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Append (1, m) ids, then k - 1 times the most probable next token, in one call of an engine that has such a
        call (`can_chain`).  -> (k,) the most probable tokens and (k,) their logits"""
        assert not self.hidden_layers, "a chain keeps no states"
        with torch.inference_mode():
            found = self.backend.chain(tokens, self.length, k, self.vocab_size)
        self.length += tokens.shape[1] + k - 1
        self.n_passes += k
        return found

    def run(self, n_tokens: int, one_pass: Callable[[Any, int], Tensor]) -> Tensor:
        """Append `n_tokens` tokens by a pass of the backend, which also gets the number of tokens before them.
        -> (1, n_tokens, vocab) logits, as `one_pass` gives them, of the ids that may be emitted"""
        # To enter the mode again takes as long as three kernels.
        with contextlib.nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode():
            logits = one_pass(self.backend, self.length)
        self.length, self.n_last = self.length + n_tokens, n_tokens
        self.n_passes += 1
        return logits if logits.shape[-1] == self.vocab_size else logits[..., : self.vocab_size]

    def keep(self, path: list[int]) -> None:
        """Keep only the drafted tokens of one path, after a pass over the last committed token and the drafted ones.
        path: their numbers, in rising order. Keys, values and hidden states move into this order."""
        rows = [0, *(i + 1 for i in path)]
        before, n_dropped = self.length - self.n_last, self.n_last - len(rows)
        assert rows[-1] < self.n_last, f"drafted token {path[-1]} of {self.n_last - 1}"
        if rows[-1] >= len(rows):  # else they are in their places
            with torch.inference_mode():
                self.backend.keep(before, to_device(rows, self.device))
        self.backend.crop(n_dropped, self.length)
        self.length, self.n_last = self.length - n_dropped, len(rows)

    def hidden(self, layers: Iterable[int]) -> Tensor:
        """Return the outputs of these layers, side by side, in the last pass: (1, m, layers * hidden); `hidden_layers`
        names them all. The next pass may write to the same place."""
        return torch.cat([self.backend.hidden[layer] for layer in layers], dim=-1)

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache, in every layer; the backend may read some of them again."""
        extra = self.length - length
        if extra < 0:
            raise RuntimeError(f"cannot crop to {length} tokens: the cache holds {self.length}")
        self.backend.crop(extra, self.length)
        self.length = length


def tokens_to_keep(n_cached: int, n_committed: int) -> int:
    """Return how many tokens of a cache stay once `n_committed` are final: all of these but the last."""
    return min(n_cached, n_committed - 1)


def check_prompt(model: CachedModel, prompt: Tensor, max_new_tokens: int) -> None:
    """Raise a Problem for a prompt (1, length) that is empty, has ids that the model lacks, or leaves no room."""
    if prompt.shape[1] == 0:
        raise UsageProblem("the prompt is empty; give at least one token, for example 'def main():'")
    if (largest := int(prompt.max())) >= model.n_ids:
        what = f"the prompt has token {largest} and the model knows {model.n_ids} ids"
        raise EnvironmentProblem(f"{what}: tokenizer and model do not belong together; give another target")
    model.room.check(prompt.shape[1], max_new_tokens)
