"""Describes how a draft that reads its target's states is trained, and holds what all kinds share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

MOST_LIKELY = 64  # tokens of each distribution of the target that a draft learns from
CROSS_ENTROPY_WEIGHT = 0.2  # in the loss
USUAL_INTERMEDIATE = 1024
MOST_WEIGHTS = 2_900_000  # of a head for a target of many ids: a file of less than 6 MB
DEPTH = 4  # tokens of a chain in training
CHAIN_DECAY = 0.9  # the weight of each depth in the loss, relative to the depth before
LOW_TEMPERATURE = 0.25  # stands for greedy decoding: most of the weight is on the argmax, and gradients are not 0 yet


class Likely(NamedTuple):
    """The target's most probable tokens after each position, the most probable one first.

    probs: (..., n) their probabilities. ids: (..., n) the draft's ids of them, -1 for a token that it cannot propose.
    """

    probs: Tensor
    ids: Tensor

    def at(self, positions: Tensor) -> Self:
        """Return those of some positions: (batch, length, n) by (batch, chains) -> (batch, chains, n)."""
        picks = positions[..., None].expand(-1, -1, self.ids.shape[-1])
        return type(self)(self.probs.gather(1, picks), self.ids.gather(1, picks))


def likely(logits: Tensor) -> Likely:
    """Return the most probable tokens of distributions, (..., vocab) logits; their ids are the target's."""
    top = logits.topk(min(MOST_LIKELY, logits.shape[-1]), dim=-1)
    return Likely((top.values - logits.logsumexp(-1, keepdim=True)).exp(), top.indices)


# ids (batch, n) -> outputs of layers side by side (batch, n, layers * hidden), what is likely after each position
Reading = Callable[[Tensor], tuple[Tensor, Likely]]


def distance(target: Likely, draft_logits: Tensor) -> Tensor:
    """Return the mean share of rejected samples at temperature 1 and at LOW_TEMPERATURE (total variation), plus a share
    of the mean cross-entropy to the target's distribution.

    At a low temperature the total variation is a smooth stand-in for how often the two argmaxes differ. The
    cross-entropy moves a draft also where its distribution and the target's have nothing in common. The target's other
    tokens than the likely ones count as rejected. draft_logits: (batch, n, draft vocabulary).
    """
    logits = draft_logits.to(torch.promote_types(draft_logits.dtype, torch.float32))
    is_known, ids = target.ids >= 0, target.ids.clamp(min=0)
    found = logits.gather(-1, ids)
    log_probs = found - logits.logsumexp(-1, keepdim=True)
    probs = target.probs.to(logits.dtype)
    cross_entropy = -(probs * is_known * log_probs).sum(-1).mean()
    kept = (torch.minimum(probs, log_probs.exp()) * is_known).sum(-1).mean()
    cold = 1 / LOW_TEMPERATURE
    low = probs**cold / (probs**cold).sum(-1, keepdim=True)
    draft_low = (cold * found - (cold * logits).logsumexp(-1, keepdim=True)).exp()
    kept_at_low = (torch.minimum(low, draft_low) * is_known).sum(-1).mean()
    return CROSS_ENTROPY_WEIGHT * cross_entropy + (1 - kept) + (1 - kept_at_low)


def chain_loss(chains: Iterable[tuple[Tensor, Tensor]], target: Likely) -> Tensor:
    """Return the loss of a draft that goes on from its own states: the mean over depths, weighted by CHAIN_DECAY.

    chains: by depth j the positions t of the chains (batch, chains), and the logits of token t + 2 + j, (batch, chains,
    draft vocabulary).
    """
    total, weights = torch.zeros((), device=target.ids.device), 0.0
    for step, (positions, drafted) in enumerate(chains):
        total = total + CHAIN_DECAY**step * distance(target.at(positions + step + 1), drafted)
        weights += CHAIN_DECAY**step
    return total / weights


def sizes_like(target: PreTrainedModel, n_layers: int, intermediate: int) -> dict[str, Any]:
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


def layers_to_read(target: PreTrainedModel) -> tuple[int, ...]:
    """Return the layers that a fresh head reads: a third, two thirds and almost all the way up."""
    n = target.config.get_text_config().num_hidden_layers
    return max(0, n // 3 - 1), max(0, 2 * n // 3 - 1), max(0, n - 2)


def sizes_of(target: PreTrainedModel, n_layers: int, besides: int, width: int, narrow: bool) -> dict[str, Any]:
    """Return the sizes of a head's decoder layers. Those of a head that proposes a part of the ids make a small file:
    it has half of the target's groups of attention heads, and MLPs of what then fits into MOST_WEIGHTS.

    besides: weights outside of the layers. width: of the attention's input.
    """
    sizes = sizes_like(target, n_layers, USUAL_INTERMEDIATE)
    if narrow:
        group, n_groups = sizes["num_attention_heads"] // sizes["num_key_value_heads"], sizes["num_key_value_heads"]
        sizes |= {"num_key_value_heads": (n_groups + 1) // 2, "num_attention_heads": group * ((n_groups + 1) // 2)}
        n_heads = 2 * sizes["num_key_value_heads"] + sizes["num_attention_heads"]
        hidden = sizes["hidden_size"]
        attention = sizes["head_dim"] * (width * n_heads + sizes["num_attention_heads"] * hidden)
        left = ((MOST_WEIGHTS - besides) // n_layers - attention) // (3 * hidden)
        sizes["intermediate_size"] = max(hidden // 4, left // 16 * 16)
    return sizes


def draw(head: nn.Module) -> None:
    """Draw all matrices of a fresh head that have no numbers yet; the bias by the token before is 0 at first."""
    for path, module in head.named_modules():
        for name, weight in list(module.named_parameters(path, recurse=False)):
            if weight.is_meta:
                weight = nn.Parameter(torch.ones(weight.shape))
                setattr(module, name.rpartition(".")[2], weight)
            elif name.startswith(("embed_tokens", "lm_head")):
                continue
            if weight.ndim == 2:
                std = 0.005 if "o_proj" in name or "down_proj" in name else 0.02
                nn.init.normal_(weight, std=std * ("markov_w2" not in name))


@dataclass(frozen=True)
class Recipe:
    """The training of one kind of draft. fresh: gives the head before its first step, for a target, its tokenizer, the
    flags and the ids that it may propose. trained: gives a head that is trained already, and its ids. loss: takes the
    head, what gives the target's states and what is likely after them, ids (batch, n), positions t (batch, chains) of
    which the tokens from t + 2 on are to be drafted. write: writes into a folder. chains: the number of positions as
    a share of a row's tokens. narrows: whether the head can propose a part of the target's ids.
    """

    help: str
    fresh: Callable[..., Any]
    loss: Callable[..., Tensor]
    write: Callable[..., None]
    trained: Callable[..., Any]
    chains: float = 0.0
    narrows: bool = False
