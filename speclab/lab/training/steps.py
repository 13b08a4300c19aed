"""The steps of training a small causal language model: optimizers, batches, and the loss."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

# Share of the training steps at each sequence length. Short ones are cheap, long ones keep long texts together.
LENGTHS = {256: 0.80, 512: 0.15, 2048: 0.05}
MICRO_BATCH_TOKENS = 4096


def optimizers(model: PreTrainedModel, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    chosen = [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for optimizer in chosen:
        for group in optimizer.param_groups:
            group["initial_lr"] = rate
    return chosen


def crops(stream: Tensor, step: int, seed: int, batch_tokens: int) -> list[Tensor]:
    """The micro-batches of one step: random crops of one length.  -> list of (batch, length)

    A function of (seed, step) alone, so a resumed run sees what it would have seen.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    pick = torch.multinomial(torch.tensor(list(LENGTHS.values())), 1, generator=generator)[0]
    length = list(LENGTHS)[int(pick)]
    starts = torch.randint(0, len(stream) - length, (batch_tokens // length,), generator=generator)
    rows = stream[starts[:, None] + torch.arange(length)]  # (batch, length)
    return list(rows.split(max(1, MICRO_BATCH_TOKENS // length)))


def next_token_loss(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, nats.  tokens: (batch, length)"""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()  # (batch, length - 1, vocab)
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
