"""The logits of a text from one pass without any cache. Cached passes are compared with them."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel
from speclab.models.family import family_of


@torch.inference_mode()
def logits_after(model: PreTrainedModel, prompt: Tensor, text: Tensor, n_last: int | None = None) -> Tensor:
    """Return the logits after the prompt and after each token of the text: row i follows the prompt and i tokens of the
    text.  (1, n) and (1, m) ids -> (1, m + 1, ids of the output layer). n_last: so many last rows are enough."""
    return family_of(model).logits_after(model, prompt, text, n_last)


@torch.inference_mode()
def distributions(
    model: PreTrainedModel, prompt: list[int], tokens: list[int], sampling: Sampling, vocab_size: int
) -> Tensor:
    """Return the distribution at the place of each of `tokens`, from one uncached pass.  -> (n, vocab_size), on the
    CPU. Ids that a draft model lacks have probability 0, and so has everything after its context; instead of an id that
    it lacks it is fed the one that CachedModel feeds it."""
    cached = CachedModel(model, vocab_size)
    n_before = cached.room.length_after(len(prompt))
    n = len(tokens) if cached.max_length is None else min(len(tokens), cached.max_length - n_before + 1)
    parts = (torch.tensor([ids], dtype=torch.long, device=model.device) for ids in (prompt, tokens[: n - 1]))
    before, text = map(cached.replace_unknown, parts)
    logits = logits_after(model, before, text)[0, :, : cached.vocab_size]
    probs = sampling.probs(logits).cpu()  # (n, ids that the model has)
    return torch.nn.functional.pad(probs, (0, vocab_size - probs.shape[1], 0, len(tokens) - n))
