"""The drafts that read their target's hidden states: how each kind begins, learns and is written.

- feature: it learns on chains of its own outputs, as it will draft (the "training-time test" of EAGLE-3)
- block: it learns on blocks that begin at some positions of a text, after the text's own tokens

An extension brings a kind of its own: RECIPES in its module `recipe`.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from speclab.drafts.heads.block import BlockConfig, BlockHead, blocks
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.files import read_head, weights_of, write_head
from speclab.drafts.heads.rollout import rollout
from speclab.lab.training.recipes import Distance, Reading, Recipe, distance, sizes_like
from speclab.models import loading
from speclab.system import extensions
from speclab.system.errors import UsageProblem

# --- feature ----------------------------------------------------------------------------------------------------------

DEPTH = 4  # tokens of a chain in training
CHAIN_DECAY = 0.9  # the weight of each depth in the loss, relative to the depth before
CHAINS = 0.5  # share of the positions from which a chain goes beyond its first token


def fresh_feature(target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace) -> FeatureHead:
    """A random head, but for embedding, output layer and last norm, which start as the target's."""
    table, output = weights_of(target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        block: Any = LlamaConfig(**sizes_like(target, 1, args.intermediate))
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
    """The loss of a feature head: the mean over depths, weighted by CHAIN_DECAY.

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

SLOTS, LAYERS = 7, 2  # tokens and layers of a block
MARKOV_RANK = 64  # the rank of the Markov head, which is a bias by the token before
# Blocks of a row. More of them cost little, for the target's pass over the row is most of a step; what they take of the
# memory grows with their number times the vocabulary.
ANCHORS = 64
SLOT_DECAY = 0.85  # the weight of each slot in the loss, relative to the slot before
# How a tokenizer of bytes calls bytes that UTF-8 never uses, 255 and 192: with a printable character, or by number.
BYTES = ("\u00ff", "\u00c0", "<0xFF>", "<0xC0>")


def fresh_block(target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace) -> BlockHead:
    """A random head; embedding and output layer are the target's."""
    config = target.config.get_text_config()
    vocab, width = config.vocab_size, config.hidden_size
    mask = unused_id(tokenizer, vocab)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        block: Any = Qwen3Config(**sizes_like(target, LAYERS, args.intermediate))
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
    """The loss of a block head: the mean over slots, weighted by SLOT_DECAY.

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


# --- all of them ------------------------------------------------------------------------------------------------------


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


def recipes_of_extensions() -> dict[str, Recipe]:
    """The kinds that extensions bring, by name."""
    return {name: one for module in extensions.modules("recipe") for name, one in module.RECIPES.items()}


KINDS: dict[str, Recipe] = {
    "feature": Recipe(
        help="one layer that reads the target's states (EAGLE-3)",
        intermediate=1024,
        fresh=fresh_feature,
        loss=rollout_loss,
        functions={"distance": distance, "rollout": rollout},
        write=functools.partial(write_head, k=DEPTH),
        trained=_trained_head,
        folder="build/feature",
    ),
    "block": Recipe(
        help="one pass for all tokens of a round (DSpark)",
        intermediate=704,
        fresh=fresh_block,
        loss=block_loss,
        functions={"distance": distance},
        write=write_head,
        trained=_trained_head,
        folder="build/block",
    ),
    **recipes_of_extensions(),
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
