"""Logits of a text from one pass without any cache: what cached passes are compared with."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.models.limits import is_encoder_decoder, start_of


@torch.inference_mode()
def logits_after(model: PreTrainedModel, prompt: Tensor, text: Tensor, n_last: int | None = None) -> Tensor:
    """Row i is what the model says after the prompt and i tokens of the text.

    (1, n) and (1, m) ids -> (1, m + 1, ids of the output layer). n_last: so many rows of the end, or more, are enough.
    An encoder-decoder reads the prompt in its encoder, and the text behind the start token in its decoder.
    """
    if is_encoder_decoder(model):
        ids = torch.cat([start_of(model), text], dim=1)
        masks = {"attention_mask": torch.ones_like(prompt), "decoder_attention_mask": torch.ones_like(ids)}
        return model(input_ids=prompt, decoder_input_ids=ids, use_cache=False, **masks).logits
    options = {"logits_to_keep": n_last} if n_last else {}
    logits = model(input_ids=torch.cat([prompt, text], dim=1), use_cache=False, **options).logits
    return logits[:, -(text.shape[1] + 1) :]
