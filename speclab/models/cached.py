"""A Hugging Face causal language model with a key-value cache that takes tokens in and rolls back.

The one invariant of the lab: the last committed token is never in the cache. A decoder that has committed L tokens
holds L - 1 of them here. It feeds the last one (and, when it verifies, the drafted ones behind it), reads the logits,
and then rolls the cache back to all but the last of what it has committed by then. Nothing is fed twice.
"""

import sys

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PreTrainedModel

from speclab.models.backends.cuda_graphs import GraphBackend, Program
from speclab.models.backends.exported import ExportedModel, WrittenInPlace, causal_mask, context_length
from speclab.system.errors import EnvironmentProblem, UsageProblem


class CachedModel:
    """Feeds tokens to a causal LM and keeps its cache. Batch size 1.

    vocab_size: logits above it are cut off, so those ids are never emitted: a target is cut at its tokenizer's ids, a
    draft at its target's. Models of one family may pad their output layers differently (Qwen2.5 7B: 152,064 rows, 0.5B:
    151,936).
    n_ids: ids that have an embedding; no other can be fed.
    max_length: positions, prompt and output together; None where the model has no limit.
    flat: the same model flattened; with it the fast gear runs, without it the eager one.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int | None = None, flat: ExportedModel | None = None):
        self.model, self.flat = model.eval(), flat
        n_rows = model.config.get_text_config().vocab_size
        self.n_ids = embedded_ids(model)
        self.vocab_size = min(vocab_size or n_rows, n_rows, self.n_ids)
        self.max_length = context_length(model)
        self.n_passes = 0  # forward passes since `start`, the first one included
        self._gear: EagerBackend | ExportedBackend | GraphBackend | None = None
        self._length = 0

    def __deepcopy__(self, memo: dict) -> "CachedModel":
        """A cache of its own over the same weights: decoders can work side by side without a second model."""
        return type(self)(self.model, self.vocab_size, self.flat)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def engine(self) -> str:
        return "eager" if self.flat is None else "fast"

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._length

    def known(self, ids: Tensor) -> Tensor:
        """The same ids, with the model's last one in the place of those that it has no embedding for."""
        return ids.clamp(max=self.n_ids - 1)

    def prefill(self, prompt: Tensor, rolls_back: bool = False) -> Tensor:
        """Forget everything, take the prompt in.  (1, prompt) ids -> (1, 1, vocab) logits of the next token

        A decoder that will call `rollback` says so: sliding-window layers then keep what has just left the window.
        """
        self._gear = None  # a graphed gear gives its lane back, and the next one may take it
        if self.flat is None:
            self._gear = EagerBackend(self.model, rolls_back)
        else:
            self._gear = (GraphBackend if self.flat.graphed else ExportedBackend)(self.model, self.flat)
        with torch.inference_mode():
            logits = self._gear.prefill(prompt)
        self._length, self.n_passes = prompt.shape[1], 1
        return logits[..., : self.vocab_size]

    def forward(self, tokens: Tensor) -> Tensor:
        """Append tokens.  (1, m) ids -> (1, m, vocab) logits; row i follows token i"""
        if self._gear is None:
            raise RuntimeError("call prefill() with a prompt before feed()")
        with torch.inference_mode():
            logits = self._gear.forward(tokens, self._length)
        self._length += tokens.shape[1]
        self.n_passes += 1
        return logits[..., : self.vocab_size]

    def run(self, program: Program, *inputs: Tensor) -> tuple[Tensor, ...]:
        """`program(self.forward, *inputs)`; on CUDA graphs all of it is one replay once its shapes have been met."""
        if isinstance(self._gear, GraphBackend):
            with torch.inference_mode():
                outputs = self._gear.run(program, inputs, self._length, self.vocab_size)
            if outputs is not None:
                widths = program.widths(*inputs)
                self._length += sum(widths)
                self.n_passes += len(widths)
                return outputs
        return program(self.forward, *inputs)

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""
        extra = self._length - length
        if extra < 0:
            raise RuntimeError(f"cannot roll forward: the cache holds {self._length} tokens, not {length}")
        self._gear.crop(extra)
        self._length = length

    def keys_and_values(self) -> list[tuple[Tensor, Tensor]]:
        """What the cache holds, layer by layer: (1, kv heads, length, head width) each; for tests and instruments."""
        return [(keys[:, :, : self._length], values[:, :, : self._length]) for keys, values in self._gear.layers()]


class EagerBackend:
    """The model as its library runs it, with a cache that grows. The reference: readable, and right for every model."""

    def __init__(self, model: PreTrainedModel, rolls_back: bool):
        self._model, self._rolls_back = model, rolls_back
        self._cache = DynamicCache(config=model.config)

    def prefill(self, prompt: Tensor) -> Tensor:
        options = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        logits = self._model(input_ids=prompt, **options).logits
        if self._rolls_back and hasattr(self._cache, "activate_past_recording"):
            self._cache.activate_past_recording()
        return logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        return self._model(input_ids=tokens, past_key_values=self._cache, use_cache=True).logits

    def crop(self, n_tokens: int) -> None:
        # The negative form is the portable one, and for sliding windows a crop of 0 is what frees old entries.
        self._cache.crop(-n_tokens)

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        return [(layer.keys, layer.values) for layer in self._cache.layers]


class ExportedBackend:
    """The flat model over buffers that are written in place: nothing is copied or allocated from round to round.

    Rolling back is free: rows behind the length are never read, and the next pass overwrites them.
    """

    WIDEST = 64  # passes up to this width take their masks from a table

    def __init__(self, model: PreTrainedModel, flat: ExportedModel):
        self._model, self._flat = model, flat
        self._capacity = 0
        self._positions_known = context_length(model) or sys.maxsize

    def prefill(self, prompt: Tensor) -> Tensor:
        n = prompt.shape[1]
        self._reserve(n + 1, 0)
        # The prompt is bound by arithmetic, not by kernel launches: the model's own code reads it, into the buffers.
        views = [WrittenInPlace(k[:, :, :n], v[:, :, :n]) for k, v in zip(self._keys, self._values, strict=True)]
        options = {"past_key_values": Cache(layers=views), "use_cache": True, "logits_to_keep": 1}
        return self._model(input_ids=prompt, **options).logits

    def forward(self, tokens: Tensor, length: int) -> Tensor:
        n_tokens = tokens.shape[1]
        width = max(n_tokens, self._flat.least_width)
        if width > n_tokens and length + width <= self._positions_known:
            # Rows that nobody asked for stand behind the others, so none of those reads them; the next pass overwrites.
            tokens = nn.functional.pad(tokens, (0, width - n_tokens))
        width = tokens.shape[1]
        total = length + width
        self._reserve(total, length)
        if width <= self.WIDEST:
            mask = self._masks[:, :, :width, self._capacity - length : self._capacity + width]
        else:
            mask = causal_mask(width, total, self._flat.dtype, self._flat.device)
        keys = [buffer[:, :, :total] for buffer in self._keys]
        values = [buffer[:, :, :total] for buffer in self._values]
        return self._flat.forward(tokens, self._positions[:, length:total], mask, keys, values)[:, :n_tokens]

    def crop(self, n_tokens: int) -> None:
        pass

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._keys, self._values, strict=True))

    def _reserve(self, total: int, length: int) -> None:
        """Make room for `total` tokens, at least twice as many as before; `length` of them are worth keeping."""
        if total <= self._capacity:
            return
        old = self.layers() if self._capacity else []
        self._capacity = max(512, 2 * self._capacity, -(-total // 256) * 256 + 256)
        self._keys, self._values = self._flat.buffers(self._capacity)
        for (keys, values), (new_keys, new_values) in zip(old, self.layers(), strict=False):
            new_keys[:, :, :length] = keys[:, :, :length]
            new_values[:, :, :length] = values[:, :, :length]
        device = self._flat.device
        self._positions = torch.arange(self._capacity, device=device)[None]
        # Row i of a pass after `length` tokens reads column j while j <= length + i: the same table, moved to the left.
        self._masks = causal_mask(self.WIDEST, self._capacity + self.WIDEST, self._flat.dtype, device)


def embedded_ids(model: PreTrainedModel) -> int:
    """How many ids can be fed: the rows of the input embedding, which may be fewer than the output's."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):  # no such method, or no single matrix
        return model.config.get_text_config().vocab_size


def tokens_to_keep(n_cached: int, n_committed: int) -> int:
    """Of the `n_cached` tokens in a cache, those that stay once `n_committed` are final: all of these but the last."""
    return min(n_cached, n_committed - 1)


def check_prompt(model: CachedModel, prompt: Tensor, max_new_tokens: int) -> None:
    """Refuse a prompt that is empty, has ids that the model lacks, or leaves no room for the output."""
    length, room = prompt.shape[1], model.max_length
    if length == 0:
        raise UsageProblem("the prompt is empty; give at least one token, for example --prompt 'def main():'")
    if (largest := int(prompt.max())) >= model.n_ids:
        raise EnvironmentProblem(
            f"the prompt has token {largest} and the model knows {model.n_ids} ids: tokenizer and model do not belong "
            "together; give another --target"
        )
    if room is not None and length + max_new_tokens > room:
        way_out = f" or use --max-new-tokens {room - length}" if room > length else ""
        raise UsageProblem(
            f"prompt of {length} tokens and {max_new_tokens} new ones do not fit the model's context of {room}; "
            f"shorten the prompt{way_out}"
        )
