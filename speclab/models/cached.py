"""A Hugging Face language model with a key-value cache that takes tokens in and rolls back.

The one invariant of the lab: the last committed token is never in the cache. A decoder that has committed L tokens
holds L - 1 of them here. A pass takes the last one (and, when it verifies, the drafted ones after it), and then the
cache is rolled back to all but the last of what is committed by then. No token goes in twice, except into recurrent
layers, which cannot be cropped: they replay what was accepted (speclab/models/backends/eager.py).

One round with k = 4 drafted tokens of which 2 are accepted, in tokens:

                  committed   target's cache   draft's cache   fed in this step
    before            L           L - 1            L - 1
    1. draft          L           L - 1            L + 3       the last committed token, drafts 1 to 3
    2. verify         L           L + 4            L + 3       the last committed token, drafts 1 to 4
    3. accept       L + 3         L + 4            L + 3       nothing; drafts 1 and 2 and the target's token are final
    4. roll back    L + 3         L + 2            L + 2       nothing; drafts 3 and 4 leave, L + 2 = (L + 3) - 1

Where all 4 are accepted, the target's cache ends with L + 4 tokens and the draft's with L + 3: draft 4 was never fed to
it, and goes in first in the next round.

With early exit the draft is the target's first layers, and the draft's cache is their part of the target's:

                  committed   first layers   other layers   fed in this step
    before            L           L - 1          L - 1
    1. draft          L           L + 3          L - 1      first layers: the last committed token, drafts 1 to 3
    2. verify         L           L + 4          L + 4      first layers: draft 4; then the others: all five
    4. roll back    L + 3         L + 2          L + 2      nothing; both parts by the same length

Behind an encoder (T5, BART) this is about the decoder alone; a start token stands in the place of the prompt.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.core.rounds import Draft, reads
from speclab.core.sampling import to_device
from speclab.models.backends.eager import EagerBackend, EncoderDecoderBackend, RecurrentBackend
from speclab.models.limits import Room, check_room, embedded_ids, is_encoder_decoder, is_recurrent, room_of
from speclab.system.errors import EnvironmentProblem, UsageProblem

if TYPE_CHECKING:  # what a backend is, for the checker of types alone
    from speclab.models.backends.protocols import Backend, FastModel


class CachedModel:
    """Runs passes of a causal LM, or of an encoder-decoder, and keeps its cache. Batch size 1.

    vocab_size: logits of higher ids are cut off, so those are never emitted: a target is cut at its tokenizer's ids, a
    draft at its target's. Models of one family may pad their output layers differently (Qwen2.5 7B: 152,064 rows, 0.5B:
    151,936).
    n_ids: ids that have an embedding; no other can go into a pass.
    max_length: positions of a text, prompt and output together; of an encoder-decoder the start token and the output.
    None where the model has no limit.
    fast: the same model exported, or with CUDA graphs; without it passes run eagerly.
    hidden_layers: decoder layers, from 0, whose outputs a draft reads; every decoding keeps them, the baseline too, so
    that both arms run on the same engine.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int | None = None, fast: "FastModel | None" = None):
        self.model, self.fast = model.eval(), fast
        n_rows = model.config.get_text_config().vocab_size
        self.n_ids = embedded_ids(model)
        self.vocab_size = min(vocab_size or n_rows, n_rows, self.n_ids)
        self._room = room_of(model)
        self.max_length = self._room.text
        self._n_calls = 0  # of passes since `prefill`, that one included
        self.hidden_layers: tuple[int, ...] = ()
        self._backend: Backend | None = None
        self._length = 0  # tokens in the cache of every layer
        self._n_ahead = 0  # tokens behind those in the cache of the first `_n_first` layers alone
        self._n_first = 0
        self._n_of_tree = 0  # tokens of the last pass over a tree, with the one before it

    def with_own_cache(self) -> "CachedModel":
        """The same weights with a cache of their own, so that two decoders can work side by side."""
        twin = type(self)(self.model, self.vocab_size, self.fast)
        twin.hidden_layers = self.hidden_layers
        return twin

    def __deepcopy__(self, memo: dict) -> "CachedModel":
        """A drafter is copied with its model; the weights are shared."""
        return self.with_own_cache()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def engine(self) -> str:
        """The backend's name for users: eager or fast."""
        return "eager" if self.fast is None else "fast"

    @property
    def length(self) -> int:
        """Tokens in the cache, of every layer; of an encoder-decoder in that of its self-attention."""
        return self._length

    @property
    def room(self) -> Room:
        """Positions that the model has, and whether an encoder reads the prompt."""
        return self._room._replace(text=self.max_length)

    @property
    def n_replays(self) -> int:
        """Passes since `prefill` in which recurrent layers read accepted tokens once more."""
        return 0 if self._backend is None else self._backend.n_replays

    @property
    def n_passes(self) -> int:
        """Forward passes since `prefill`, that one and replays included."""
        return self._n_calls + self.n_replays + (0 if self._backend is None else self._backend.n_single)

    def replace_unknown(self, ids: Tensor) -> Tensor:
        """The same ids, with the model's last one in the place of those that it has no embedding for."""
        return ids.clamp(max=self.n_ids - 1)

    @property
    def graphed(self) -> bool:
        """Whether passes run as CUDA graphs."""
        return self.fast is not None and self.fast.graphed

    def prepare(self, widths: Iterable[int], longest: int) -> None:
        """Say which widths passes have, and how long texts become; CUDA graphs of them are recorded with a prefill."""
        if self.fast is not None:
            self.fast.prepare(widths, longest)

    def prefill(self, prompt: Tensor, rolls_back: bool = False) -> Tensor:
        """Drop the cache and read the prompt.  (1, prompt) ids -> (1, 1, vocab) logits of the next token

        rolls_back: `crop` or `keep` will be called, so sliding-window layers keep what has just left the window.
        """
        self._backend = None  # a graph cache is given back first, and the next backend may take it
        if self.fast:
            self._backend = self.fast.start(self.hidden_layers)
        else:
            self._backend = eager_backend(self.model, rolls_back, self.hidden_layers)
        with torch.inference_mode():
            logits = self._backend.prefill(prompt)
        self._length, self._n_ahead, self._n_calls = self.room.length_after(prompt.shape[1]), 0, 1
        return logits[..., : self.vocab_size]

    def forward(self, tokens: Tensor, states: Tensor | None = None) -> Tensor:
        """Append tokens.  (1, m) ids -> (1, m, vocab) logits; row i follows token i

        states: (1, j, hidden), what `forward_first` gave for the first j of them, all that it was given since the last
        pass; the other layers go on from there. RuntimeError where these are not as many.
        """
        backend, n_given = self._running(), 0 if states is None else states.shape[1]
        if n_given != self._n_ahead:
            raise RuntimeError(f"the first layers are {self._n_ahead} tokens ahead, and states of {n_given} are given")
        with torch.inference_mode():
            if states is None or not n_given:
                logits = backend.forward(tokens, self._length)
            else:
                if n_given < tokens.shape[1]:
                    states = torch.cat([states, self.forward_first(tokens[:, n_given:], self._n_first)], dim=1)
                logits = backend.forward_rest(states, self._length, self._n_first)
                if (layer := self._n_first - 1) in self.hidden_layers:
                    backend.hidden[layer] = states
        self._length, self._n_ahead = self._length + tokens.shape[1], 0
        self._n_calls += 1
        return logits[..., : self.vocab_size]

    def forward_first(self, tokens: Tensor, n_layers: int) -> Tensor:
        """Append tokens to the cache of the first `n_layers` layers alone.  (1, m) ids -> their outputs (1, m, hidden)

        The next `forward` takes these up. RuntimeError where other layers are ahead already.
        """
        backend = self._running()
        if self._n_ahead and n_layers != self._n_first:
            raise RuntimeError(f"the first {self._n_first} layers are ahead, not the first {n_layers}")
        with torch.inference_mode():
            states = backend.forward_first(tokens, self._length + self._n_ahead, n_layers)
        self._n_first, self._n_ahead = n_layers, self._n_ahead + tokens.shape[1]
        return states

    def forward_tree(self, tokens: Tensor, reads: Tensor) -> Tensor:
        """Append tokens that do not all follow each other.  (1, m) ids -> (1, m, vocab) logits

        reads: (m, j + m) bool, which of the cache's last j tokens and of these each token reads, itself included; all
        that stands before them is read by each. A token's position is behind as many of them as it reads.
        """
        backend, before = self._running(), self._length - (reads.shape[1] - reads.shape[0])
        if self._n_ahead:
            raise RuntimeError(f"a tree after the first {self._n_first} layers went ahead")
        positions = before + reads.sum(-1)[None] - 1
        mask = torch.zeros(reads.shape, dtype=self.model.dtype, device=reads.device)
        mask.masked_fill_(~reads, torch.finfo(mask.dtype).min)
        with torch.inference_mode():
            mask = torch.nn.functional.pad(mask, (before, 0))[None, None]  # (1, 1, m, before + j + m)
            logits = backend.forward_tree(tokens, self._length, positions, mask)
        self._length, self._n_of_tree = self._length + tokens.shape[1], tokens.shape[1]
        self._n_calls += 1
        return logits[..., : self.vocab_size]

    def keep(self, path: list[int]) -> None:
        """After a pass over the last committed token and the tokens of a tree: drop all tokens of the tree but these.

        path: their numbers, those of a branch in its order. Keys, values and hidden states move into this order.
        """
        backend, rows = self._running(), [0, *(i + 1 for i in path)]
        before, n_dropped = self._length - self._n_of_tree, self._n_of_tree - len(rows)
        if rows[-1] >= self._n_of_tree:
            raise RuntimeError(f"token {path[-1]} of a tree of {self._n_of_tree - 1}")
        if rows[-1] >= len(rows):  # else they are in their places
            with torch.inference_mode():
                backend.keep(before, to_device(rows, self.device))
        backend.crop(n_dropped, self._length)
        self._length, self._n_of_tree = self._length - n_dropped, len(rows)

    def hidden(self, layers: Iterable[int]) -> Tensor:
        """Outputs of these layers side by side, in the last pass: (1, m, layers * hidden).

        The next pass may write to the same place. RuntimeError for a layer that is not in `hidden_layers`.
        """
        hidden = self._running().hidden
        if missing := [layer for layer in layers if layer not in hidden]:
            raise RuntimeError(f"no pass keeps the output of layer {missing[0]}; name it in hidden_layers")
        return torch.cat([hidden[layer] for layer in layers], dim=-1)

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache, in every layer; recurrent ones may replay some of them."""
        if self._n_ahead:
            raise RuntimeError(f"cannot crop: the first {self._n_first} layers are {self._n_ahead} tokens ahead")
        extra = self._length - length
        if extra < 0:
            raise RuntimeError(f"cannot crop to {length} tokens: the cache holds {self._length}")
        self._running().crop(extra, self._length)
        self._length = length

    def _running(self) -> "Backend":
        if self._backend is None:
            raise RuntimeError("call prefill() with a prompt before any other pass")
        return self._backend


def eager_backend(model: PreTrainedModel, rolls_back: bool, hidden_layers: Iterable[int] = ()) -> EagerBackend:
    """The eager backend for one decoding of this model."""
    if is_encoder_decoder(model):
        return EncoderDecoderBackend(model, rolls_back, hidden_layers)
    kind = RecurrentBackend if is_recurrent(model) else EagerBackend
    return kind(model, rolls_back, hidden_layers)


RollBack = Callable[[CachedModel, int], None]


def verify(target: CachedModel, last_token: Tensor, draft: Draft) -> Tensor:
    """One pass over the last committed token, (1,), and the n drafted ones.  -> (1, n + 1, vocab) logits

    Row i is what the target says after i drafted tokens: it judges draft i + 1, and the last row gives the bonus token.
    A draft by early exit brings the states of all of them but the last: the pass goes on from there. In a tree row
    i + 1 is what the target says after token i and those before it on its branch.
    """
    tokens = torch.cat([last_token[:, None], draft.tokens], dim=1)
    if draft.parents is not None:
        return target.forward_tree(tokens, reads(draft.parents)[0])
    return target.forward(tokens) if draft.states is None else target.forward(tokens, draft.states)


def roll_back(target: CachedModel, n_committed: int) -> None:
    """Crop the cache to all but the last of the tokens that are final now, the prompt's (or the start) included."""
    target.crop(tokens_to_keep(target.length, n_committed))


def tokens_to_keep(n_cached: int, n_committed: int) -> int:
    """Of the `n_cached` tokens in a cache, those that stay once `n_committed` are final: all of these but the last."""
    return min(n_cached, n_committed - 1)


def check_prompt(model: CachedModel, prompt: Tensor, max_new_tokens: int) -> None:
    """Raise UsageProblem or EnvironmentProblem for a prompt (1, length) that is empty, has ids that the model lacks, or
    leaves no room for the output."""
    if prompt.shape[1] == 0:
        raise UsageProblem("the prompt is empty; give at least one token, for example --prompt 'def main():'")
    if (largest := int(prompt.max())) >= model.n_ids:
        raise EnvironmentProblem(
            f"the prompt has token {largest} and the model knows {model.n_ids} ids: tokenizer and model do not belong "
            "together; give another --target"
        )
    check_room(prompt.shape[1], max_new_tokens, model.room)
