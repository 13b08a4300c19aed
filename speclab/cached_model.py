"""A Hugging Face causal language model with a key-value cache that takes tokens in and rolls back.

The one invariant of the lab: the last committed token is never in the cache. A decoder that has committed L tokens
holds L - 1 of them here. It feeds the last one (and, when it verifies, the drafted ones behind it), reads the logits,
and then rolls the cache back to all but the last of what it has committed by then. Nothing is fed twice.
"""

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from speclab.errors import EnvironmentProblem, UsageProblem


class CachedModel:
    """Feeds tokens to a causal LM and keeps its cache. Batch size 1.

    vocab_size: ids the target and its draft share. Models of one family may pad their output layers differently
    (Qwen2.5 7B: 152,064 rows, 0.5B: 151,936); rows above the tokenizer's are cut off here, so they are never emitted.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int | None = None):
        self.model = model.eval()
        self.vocab_size = vocab_size or model.config.get_text_config().vocab_size
        self.n_passes = 0  # forward passes since `start`, the first one included
        self._cache: DynamicCache | None = None
        self._length = 0

    def __deepcopy__(self, memo: dict) -> "CachedModel":
        """A cache of its own over the same weights: decoders can work side by side without a second model."""
        return CachedModel(self.model, self.vocab_size)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._length

    @property
    def max_length(self) -> int | None:
        """Positions the model was built for, prompt and output together; None where the config does not say."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    def start(self, prompt: Tensor, rolls_back: bool = False) -> Tensor:
        """Forget everything, take the prompt in.  (1, prompt) ids -> (1, 1, vocab) logits of the next token

        A decoder that will call `rollback` says so: sliding-window layers then keep what has just left the window.
        """
        self._cache = DynamicCache(config=self.model.config)
        self._length, self.n_passes = 0, 0
        logits = self._forward(prompt, logits_to_keep=1)
        if rolls_back and hasattr(self._cache, "activate_past_recording"):
            self._cache.activate_past_recording()
        return logits

    def feed(self, tokens: Tensor) -> Tensor:
        """Append tokens.  (1, m) ids -> (1, m, vocab) logits; row i follows token i"""
        if self._cache is None:
            raise RuntimeError("call start() with a prompt before feed()")
        return self._forward(tokens)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the cache."""
        extra = self._length - length
        if extra < 0:
            raise RuntimeError(f"cannot roll forward: the cache holds {self._length} tokens, not {length}")
        # The negative form is the portable one, and for sliding windows a crop of 0 is what frees old entries.
        self._cache.crop(-extra)
        self._length = length

    def _forward(self, tokens: Tensor, **options) -> Tensor:
        self.n_passes += 1
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, past_key_values=self._cache, use_cache=True, **options).logits
        self._length += tokens.shape[1]
        return logits[..., : self.vocab_size]


def check_prompt(model: CachedModel, prompt: Tensor, max_new_tokens: int) -> None:
    """Refuse a prompt that is empty or leaves no room for the output."""
    length, room = prompt.shape[1], model.max_length
    if length == 0:
        raise UsageProblem("the prompt is empty; give at least one token, for example --prompt 'def main():'")
    if room is not None and length + max_new_tokens > room:
        raise UsageProblem(
            f"prompt of {length} tokens and {max_new_tokens} new ones do not fit the model's context of {room}; "
            f"shorten the prompt or use --max-new-tokens {max(0, room - length)}"
        )


def check_rollback(model: PreTrainedModel) -> None:
    """Refuse a model whose state cannot be rolled back, before anything is timed."""
    if not getattr(DynamicCache(config=model.config), "is_croppable", True):
        raise EnvironmentProblem(
            f"{model.config.model_type} keeps a state that cannot be rolled back after a rejected draft; "
            "choose a model with plain attention layers"
        )
