"""The drafts that read their target's hidden states: how each kind begins, learns and is written.

- feature: it learns on chains of its own outputs, as it will draft (the "training-time test" of EAGLE-3)
- block: it learns on blocks that begin at some positions of a text, after the text's own tokens
- exit: it learns from the target's states after its first layers, at every position of a text. The states do not depend
  on what is drafted, so a text that is known is all that there is to learn from
"""

import argparse
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from speclab.drafts.exit import check_split
from speclab.drafts.heads.block import BlockConfig, BlockHead, blocks
from speclab.drafts.heads.exit import ExitAdapter, ExitConfig
from speclab.drafts.heads.exit_files import read_adapter, write_adapter
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.files import read_head, weights_of, write_head
from speclab.drafts.heads.rollout import rollout
from speclab.models import loading
from speclab.models.backends.eager import decoder_layers
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem
from training.passes import Reading

Distance = Callable[[Tensor, Tensor], Tensor]

# --- the distance between a target and a draft ------------------------------------------------------------------------

CROSS_ENTROPY_WEIGHT = 0.2  # in the loss
LOW_TEMPERATURE = 0.25  # stands for greedy decoding: most of the weight is on the argmax, and gradients are not 0 yet


def distance(target_logits: Tensor, draft_logits: Tensor) -> Tensor:
    """What is rejected of samples at temperature 1 and at LOW_TEMPERATURE (total variation), plus a share of the
    cross-entropy to the target's distribution; means.

    At a low temperature the total variation is a smooth stand-in for how often the two argmaxes differ. The
    cross-entropy moves a draft also where its distribution and the target's have nothing in common. Both (batch, n,
    vocab).
    """
    precise = torch.promote_types(target_logits.dtype, torch.float32)
    target_logits, draft_logits = target_logits.to(precise), draft_logits.to(precise)
    draft_log_probs, target_probs = draft_logits.log_softmax(-1), target_logits.softmax(-1)
    cross_entropy = -(target_probs * draft_log_probs).sum(-1).mean()
    kept = torch.minimum(target_probs, draft_log_probs.exp()).sum(-1).mean()
    of_both = ((logits / LOW_TEMPERATURE).softmax(-1) for logits in (target_logits, draft_logits))
    kept_at_low = torch.minimum(*of_both).sum(-1).mean()
    return CROSS_ENTROPY_WEIGHT * cross_entropy + (1 - kept) + (1 - kept_at_low)


# --- feature ----------------------------------------------------------------------------------------------------------

DEPTH = 4  # tokens of a chain in training
CHAIN_DECAY = 0.9  # weight of each depth in the loss, of the one before
CHAINS = 0.5  # share of the positions from which a chain goes beyond its first token


def fresh_feature(target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace) -> FeatureHead:
    """A random head, but for embedding, output layer and last norm, which start as the target's."""
    table, output = weights_of(target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        block: Any = LlamaConfig(**_sizes(target, 1, args.intermediate))
        head = FeatureHead(HeadConfig(block, _read_layers(target), block.hidden_size, block.vocab_size))
        _draw(head)
    norm = getattr(getattr(target.base_model, "norm", None), "weight", None)  # where the last norm has the usual name
    with torch.no_grad():
        head.embed_tokens.weight.copy_(table)
        head.lm_head.weight.copy_(output)
        if norm is not None and norm.shape == head.norm.weight.shape:
            head.norm.weight.copy_(norm)
    if table is output or table.data_ptr() == output.data_ptr():
        head.lm_head.weight = head.embed_tokens.weight  # one table learns from both of its uses
    return head


def rollout_loss(
    head: FeatureHead,
    read: Reading,
    tokens: Tensor,
    seed: Tensor,
    rollout: Callable[..., list[tuple[Tensor, Tensor]]] = rollout,
    distance: Distance = distance,
) -> Tensor:
    """The mean over depths, weighted by CHAIN_DECAY.

    read: gives what the target computes. tokens: (batch, n). seed: a number on the host, of the positions where chains
    start. rollout, distance: those of this lab, maybe compiled.
    """
    hidden, logits = read(tokens)
    n = tokens.shape[1] - 1 - DEPTH
    order = torch.randperm(n, generator=torch.Generator().manual_seed(int(seed)))
    starts = order[: round(CHAINS * n)].sort().values.to(tokens.device)
    total = torch.zeros((), device=tokens.device)
    for step, (positions, drafted) in enumerate(rollout(head, hidden, tokens, DEPTH, starts)):
        total = total + CHAIN_DECAY**step * distance(logits[:, positions + step + 1], drafted)
    return total / sum(CHAIN_DECAY**step for step in range(DEPTH))


# --- block ------------------------------------------------------------------------------------------------------------

SLOTS, LAYERS = 7, 2  # of a block
MARKOV_RANK = 64  # of the Markov head, a bias by the token before
# Blocks of a row. More of them cost little, for the target's pass over the row is most of a step; what they take of the
# memory grows with their number times the vocabulary.
ANCHORS = 64
SLOT_DECAY = 0.85  # weight of each slot in the loss, of the one before
# How a tokenizer of bytes calls bytes that UTF-8 never uses, 255 and 192: with a printable character, or by number.
BYTES = ("\u00ff", "\u00c0", "<0xFF>", "<0xC0>")


def fresh_block(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace) -> BlockHead:
    """A random head; embedding and output layer are the target's."""
    config = target.config.get_text_config()
    vocab, width = config.vocab_size, config.hidden_size
    mask = unused_id(tokenizer, vocab)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        block: Any = Qwen3Config(**_sizes(target, LAYERS, args.intermediate))
        saved = BlockConfig(block, _read_layers(target), width, vocab, SLOTS, mask, markov_rank=MARKOV_RANK)
        head = BlockHead(saved, *weights_of(target))
        _draw(head)
    return head


def unused_id(tokenizer: PreTrainedTokenizerBase, vocab: int) -> int:
    """An id that no text has, for masks: its embedding is the target's, and engines read it from there."""
    known = tokenizer.get_vocab()
    for name in BYTES:
        if known.get(name, vocab) < vocab and known[name] not in tokenizer(name).input_ids:
            return known[name]
    if len(tokenizer) < vocab:
        return vocab - 1  # rows of the embedding that only fill it up
    raise UsageProblem("every id of this target may be in a text, and none is left for masks; train a feature head")


def block_loss(head: BlockHead, read: Reading, tokens: Tensor, seed: Tensor, distance: Distance = distance) -> Tensor:
    """The mean over slots, weighted by SLOT_DECAY.

    read: gives what the target computes. tokens: (batch, n). seed: a number on the host, of the positions where blocks
    begin. distance: maybe compiled.
    """
    hidden, logits = read(tokens)
    n, longest = tokens.shape[1] - head.config.longest, head.config.longest
    order = torch.randperm(n, generator=torch.Generator().manual_seed(int(seed)))
    anchors = order[:ANCHORS].sort().values.to(tokens.device)
    states = blocks(head, hidden, tokens, anchors)
    total = torch.zeros((), device=tokens.device)
    for slot in range(longest):
        drafted = head.biased(head.logits(states[:, :, slot]), tokens[:, anchors + slot])
        total = total + SLOT_DECAY**slot * distance(logits[:, anchors + slot], drafted)
    return total / sum(SLOT_DECAY**slot for slot in range(longest))


# --- exit -------------------------------------------------------------------------------------------------------------


def fresh_exit(target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace) -> ExitAdapter:
    """A random adapter for the target's state after --exit-layer layers.

    UsageProblem where the target has no such layer, EnvironmentProblem where it cannot be run in two parts.
    """
    n_layers = len(decoder_layers(target))
    if args.exit_layer >= n_layers:
        raise UsageProblem(
            f"--exit-layer {args.exit_layer}: the target has {n_layers} layers; give a number from 1 to {n_layers - 1}"
        )
    check_split(CachedModel(target), args.exit_layer)
    block: Any = LlamaConfig(**_sizes(target, 1, args.intermediate))
    adapter = ExitAdapter(ExitConfig(args.exit_layer, n_layers, block), weights_of(target)[1])
    adapter.reset(args.seed)
    return adapter


def _trained_exit(target: PreTrainedModel, args: argparse.Namespace) -> ExitAdapter:
    adapter = read_adapter(args.init, target)
    if (layer := adapter.config.exit_layer) != args.exit_layer:
        raise UsageProblem(
            f"--exit-layer {args.exit_layer}: the adapter of --init reads the states of layer {layer}; give "
            f"--exit-layer {layer}, or leave --init out"
        )
    return adapter


def exit_loss(
    adapter: ExitAdapter, read: Reading, tokens: Tensor, seed: Tensor, distance: Distance = distance
) -> Tensor:
    """The mean over positions.

    read: gives what the target computes. tokens: (batch, n). seed: not used, as nothing is drawn. distance: maybe
    compiled.
    """
    states, logits = read(tokens)
    return distance(logits, adapter.of_text(states))


# --- all of them ------------------------------------------------------------------------------------------------------


def _sizes(target: PreTrainedModel, n_layers: int, intermediate: int) -> dict[str, Any]:
    """The sizes of decoder layers of the target's width."""
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


def _read_layers(target: PreTrainedModel) -> tuple[int, int, int]:
    """The layers that a fresh head reads: a third, two thirds and almost all the way up."""
    n = target.config.get_text_config().num_hidden_layers
    return max(0, n // 3 - 1), max(0, 2 * n // 3 - 1), max(0, n - 2)


def _draw(head: nn.Module) -> None:
    """Draw all matrices of a fresh head; the bias by the token before is 0 at first."""
    for name, weight in head.named_parameters():
        if weight.ndim == 2:
            std = 0.005 if "o_proj" in name or "down_proj" in name else 0.02
            nn.init.normal_(weight, std=std * ("markov_w2" not in name))


def _trained_head(target: PreTrainedModel, args: argparse.Namespace) -> FeatureHead | BlockHead:
    head, ids = read_head(args.init, target, args.kind)
    if ids is not None:
        raise UsageProblem(
            f"--init {loading.short_name(args.init)} proposes a part of the target's ids; leave --init out"
        )
    return head


@dataclass(frozen=True)
class Kind:
    """A kind of draft.

    intermediate: the usual width of its MLPs. fresh: gives the head before its first step. trained: gives the one of
    --init. loss: takes the head, what gives the target's states and logits, and a batch. functions: arguments of `loss`
    that are worth compiling. write: writes into a folder.
    """

    help: str
    intermediate: int
    fresh: Callable[[PreTrainedModel, Any, argparse.Namespace], Any]
    loss: Callable[..., Tensor]
    functions: dict[str, Callable[..., Any]]
    write: Callable[..., None]
    trained: Callable[[PreTrainedModel, argparse.Namespace], Any] = _trained_head


KINDS = {
    "feature": Kind(
        help="one layer that reads the target's states (EAGLE-3)",
        intermediate=1024,
        fresh=fresh_feature,
        loss=rollout_loss,
        functions={"distance": distance, "rollout": rollout},
        write=functools.partial(write_head, k=DEPTH),
    ),
    "block": Kind(
        help="one pass for all tokens of a round (DSpark)",
        intermediate=704,
        fresh=fresh_block,
        loss=block_loss,
        functions={"distance": distance},
        write=write_head,
    ),
    "exit": Kind(
        help="an adapter behind the target's first layers",
        intermediate=704,
        fresh=fresh_exit,
        loss=exit_loss,
        functions={"distance": distance},
        write=write_adapter,
        trained=_trained_exit,
    ),
}


def head_to_train(target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace) -> Any:
    """The head as it is before the first step: random, or that of --init.

    The weights of the latter are free to change: all but a block's embedding and output layer, the target's own. An
    embedding and an output layer that are one table in a fresh feature head are two from here on.
    """
    if not args.init:
        return KINDS[args.kind].fresh(target, tokenizer, args)
    head = KINDS[args.kind].trained(target, args)
    for module in head.modules():  # what is not in the file is the target's own memory, which must not learn
        for name, weight in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(weight.detach().clone()))
    return head
