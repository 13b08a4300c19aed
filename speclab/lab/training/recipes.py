"""Describes how a draft that reads its target's states is trained, and holds what all kinds share."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

Distance = Callable[[Tensor, Tensor], Tensor]
# ids (batch, n) -> outputs of layers side by side (batch, n, layers * hidden), logits (batch, n, vocab)
Reading = Callable[[Tensor], tuple[Tensor, Tensor]]

CROSS_ENTROPY_WEIGHT = 0.2  # in the loss
LOW_TEMPERATURE = 0.25  # stands for greedy decoding: most of the weight is on the argmax, and gradients are not 0 yet


def distance(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """Return the mean share of rejected samples at temperature 1 and at LOW_TEMPERATURE (total variation), plus a share
    of the mean cross-entropy to the target's distribution.

    At a low temperature the total variation is a smooth stand-in for how often the two argmaxes differ. The
    cross-entropy moves a draft also where its distribution and the target's have nothing in common. Both (batch, n,
    vocab).
    """
    precise = torch.promote_types(target_logits.dtype, torch.float32)
    target_logits, draft_logits = target_logits.to(precise), draft_logits.to(precise)
    draft_log_probs, target_probs = draft_logits.log_softmax(-1), target_logits.softmax(-1)
    cross_entropy = -(target_probs * draft_log_probs).sum(-1).mean()
    kept = torch.minimum(target_probs, draft_log_probs.exp()).sum(-1).mean()
    both_probs = ((logits / LOW_TEMPERATURE).softmax(-1) for logits in (target_logits, draft_logits))
    kept_at_low = torch.minimum(*both_probs).sum(-1).mean()
    return CROSS_ENTROPY_WEIGHT * cross_entropy + (1 - kept) + (1 - kept_at_low)


def sizes_like(target: PreTrainedModel, n_layers: int, intermediate: int) -> dict[str, Any]:
    """Return the sizes of decoder layers of the target's width."""
    config = target.config.get_text_config()
    heads = config.num_attention_heads
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": intermediate,
        "num_hidden_layers": n_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "max_position_embeddings": getattr(config, "max_position_embeddings", 4096),
        "tie_word_embeddings": False,
    }


@dataclass(frozen=True)
class Recipe:
    """The training of one kind of draft. intermediate: the usual width of its MLPs. fresh: gives the head before its
    first step. trained: gives the one of --init. loss: takes the head, what gives the target's states and logits, and a
    batch. functions: arguments of `loss` that are worth compiling. write: writes into a folder. folder: where a
    training works, with flags in braces.
    add_flags: gives the parser the flags that only this kind has.
    """

    help: str
    intermediate: int
    fresh: Callable[[PreTrainedModel, Any, argparse.Namespace], Any]
    loss: Callable[..., Tensor]
    functions: dict[str, Callable[..., Any]]
    write: Callable[..., None]
    trained: Callable[[PreTrainedModel, argparse.Namespace], Any]
    folder: str
    add_flags: Callable[[Any], None] = lambda parser: None
