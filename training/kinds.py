"""The drafts that read their target's hidden states: how each kind begins, learns and is written.

- feature: it learns on chains of its own outputs, as it will draft (the "training-time test" of EAGLE-3)
- block: it learns on blocks that begin at some positions of a text, after the text's own tokens

An extension brings a kind of its own: RECIPES in its module `recipe`.
"""

import argparse
import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase, Qwen3Config

from speclab.cli import parsing
from speclab.drafts.heads.block import BlockConfig, BlockHead, blocks
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.files import SavedHead, read_head, weights_of, write_head
from speclab.drafts.heads.rollout import rollout
from speclab.system import extensions
from speclab.system.errors import UsageProblem
from training.recipes import DEPTH, Distance, Reading, Recipe, chain_loss, distance, sizes_like

USUAL_INTERMEDIATE = 1024
MOST_WEIGHTS = 2_900_000  # of a head for a target of many ids: a file of less than 6 MB

# --- feature ----------------------------------------------------------------------------------------------------------


def fresh_feature(
    target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace, ids: Tensor | None = None
) -> FeatureHead:
    """A random head, but for embedding, output layer and last norm, which start as the target's.

    ids: the target's ids that it proposes, None for all; with them, embedding and output layer stay the target's.
    """
    table, output = weights_of(target)
    hidden = table.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        layers = _read_layers(target, args.layers)
        fused = len(layers) * hidden**2
        block: Any = LlamaConfig(**sizes_of(target, 1, args.intermediate, fused, 2 * hidden, ids is not None))
        config = HeadConfig(block, layers, hidden, len(table) if ids is None else len(ids))
        with torch.device("meta"):
            head = FeatureHead(config)
        for module, weight in ((head.embed_tokens, table), (head.lm_head, output if ids is None else output[ids])):
            weight = weight.cpu().float()
            module.weight = nn.Parameter(weight.clone() if ids is None else weight, requires_grad=ids is None)
        _draw(head)
    norm = getattr(getattr(target.base_model, "norm", None), "weight", None)  # where the last norm has the usual name
    if norm is not None and norm.shape == head.norm.weight.shape:
        with torch.no_grad():
            head.norm.weight.copy_(norm)
    if ids is None and (table is output or table.data_ptr() == output.data_ptr()):
        head.lm_head.weight = head.embed_tokens.weight  # one table learns from both of its uses
    return head


def rollout_loss(
    head: FeatureHead, read: Reading, tokens: Tensor, starts: Tensor, distance: Distance = distance
) -> Tensor:
    """The loss of a feature head: the mean over depths, weighted by CHAIN_DECAY.

    read: gives what the target computes. tokens: (batch, n). starts: (batch, chains). distance: maybe compiled.
    """
    hidden, target = read(tokens)
    return chain_loss(rollout(head, hidden, tokens, DEPTH, starts), target, distance)


# --- block ------------------------------------------------------------------------------------------------------------

SLOTS, LAYERS = 7, 2  # tokens and layers of a block
MARKOV_RANK = 64  # the rank of the Markov head, which is a bias by the token before
LAYERS_OF_MANY, RANK_OF_MANY = 1, 16  # the same for many ids: the table of the token before has a row for each
SLOT_DECAY = 0.85  # the weight of each slot in the loss, relative to the slot before
# How a tokenizer of bytes calls bytes that UTF-8 never uses, 255 and 192: with a printable character, or by number.
BYTES = ("\u00ff", "\u00c0", "<0xFF>", "<0xC0>")


def fresh_block(
    target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: argparse.Namespace, ids: Tensor | None = None
) -> BlockHead:
    """A random head; embedding and output layer are the target's. ids: the target's ids that it proposes, None: all."""
    table, output = weights_of(target)
    vocab, width = table.shape
    mask = unused_id(tokenizer, vocab)
    n_drafted = vocab if ids is None else len(ids)
    layers, rank = (LAYERS, MARKOV_RANK) if ids is None else (LAYERS_OF_MANY, RANK_OF_MANY)
    besides = 3 * width**2 + rank * (vocab + n_drafted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        block: Any = Qwen3Config(**sizes_of(target, layers, args.intermediate, besides, width, ids is not None))
        saved = BlockConfig(block, _read_layers(target), width, n_drafted, SLOTS, mask, markov_rank=rank)
        head = BlockHead(saved, table, output if ids is None else output[ids])
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


def block_loss(head: BlockHead, read: Reading, tokens: Tensor, starts: Tensor, distance: Distance = distance) -> Tensor:
    """The loss of a block head: the mean over slots, weighted by SLOT_DECAY.

    read: gives what the target computes. tokens: (batch, n). starts: (batch, blocks); the block of position t begins
    with the token after it. distance: maybe compiled.
    """
    hidden, target = read(tokens)
    anchors = starts + 1
    states = blocks(head, hidden, tokens, anchors)
    total = torch.zeros((), device=tokens.device)
    for slot in range(head.config.longest):
        drafted = head.biased(head.logits(states[:, :, slot]), tokens.gather(1, anchors + slot))
        total = total + SLOT_DECAY**slot * distance(target.at(anchors + slot), drafted)
    return total / sum(SLOT_DECAY**slot for slot in range(head.config.longest))


# --- all of them ------------------------------------------------------------------------------------------------------


def _add_layers(parser: parsing.Parser) -> None:
    """Add the flag for the layers that a fresh feature head reads."""
    parser.add_argument(
        "--layers",
        metavar="N,N",
        help="the target's layers, from 0, that it reads (default: a low, a middle, a high one)",
    )


def _read_layers(target: PreTrainedModel, given: str | None = None) -> tuple[int, ...]:
    """The layers that a fresh head reads: a third, two thirds and almost all the way up, or those that were given.

    Raises UsageProblem for numbers that are none of the target's layers.
    """
    n = target.config.get_text_config().num_hidden_layers
    if given is not None:
        return tuple(parsing.numbers(given, int, 0, "--layers", n - 1))
    return max(0, n // 3 - 1), max(0, 2 * n // 3 - 1), max(0, n - 2)


def sizes_of(
    target: PreTrainedModel, n_layers: int, intermediate: int | None, besides: int, width: int, narrow: bool
) -> dict[str, Any]:
    """The sizes of a head's decoder layers. Those of a head that proposes a part of the ids make a small file: it has
    half of the target's groups of attention heads, and MLPs of what then fits into MOST_WEIGHTS.

    intermediate: the width of the MLPs, None: what fits. besides: weights outside of the layers. width: of the
    attention's input.
    """
    sizes = sizes_like(target, n_layers, intermediate or USUAL_INTERMEDIATE)
    if narrow:
        group, n_groups = sizes["num_attention_heads"] // sizes["num_key_value_heads"], sizes["num_key_value_heads"]
        sizes |= {"num_key_value_heads": (n_groups + 1) // 2, "num_attention_heads": group * ((n_groups + 1) // 2)}
        n_heads = 2 * sizes["num_key_value_heads"] + sizes["num_attention_heads"]
        hidden = sizes["hidden_size"]
        attention = sizes["head_dim"] * (width * n_heads + sizes["num_attention_heads"] * hidden)
        left = ((MOST_WEIGHTS - besides) // n_layers - attention) // (3 * hidden)
        sizes["intermediate_size"] = intermediate or max(hidden // 4, left // 16 * 16)
    return sizes


def _draw(head: nn.Module) -> None:
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


def _trained_head(target: PreTrainedModel, args: argparse.Namespace) -> SavedHead:
    return read_head(args.init, target, args.kind)


def recipes_of_extensions() -> dict[str, Recipe]:
    """The kinds that extensions bring, by name."""
    return {name: one for module in extensions.modules("recipe") for name, one in module.RECIPES.items()}


KINDS: dict[str, Recipe] = {
    "feature": Recipe(
        help="one layer that reads the target's states (EAGLE-3)",
        fresh=fresh_feature,
        loss=rollout_loss,
        write=functools.partial(write_head, k=DEPTH),
        trained=_trained_head,
        folder="build/feature",
        chains=1 / 3,
        narrows=True,
        add_flags=_add_layers,
    ),
    "block": Recipe(
        help="one pass for all tokens of a round (DSpark)",
        fresh=fresh_block,
        loss=block_loss,
        write=write_head,
        trained=_trained_head,
        folder="build/block",
        chains=1 / 4,
        narrows=True,
    ),
    **recipes_of_extensions(),
}


def head_to_train(
    target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace, ids: Tensor | None = None
) -> SavedHead:
    """The head as it is before the first step: random, or that of --init, which has ids of its own.

    ids: the target's ids that a random one proposes, None for all. All weights of the head of --init learn, but for an
    embedding and an output layer that are the target's own: a block's, and those of a head that proposes a part of the
    ids. An embedding and an output layer that are one table in a fresh feature head are two from here on.
    """
    kind = KINDS[args.kind]
    if not args.init:
        return SavedHead(kind.fresh(target, tokenizer, args, ids), ids)
    head, ids = kind.trained(target, args)
    lent = () if ids is None else ("embed_tokens", "lm_head")
    theirs = {id(module) for module in target.modules()}
    for path, module in head.named_modules():  # what is not in the file is the target's own memory
        if id(module) in theirs:
            continue
        for name, weight in list(module.named_parameters(recurse=False)):
            learns = path not in lent
            setattr(module, name, nn.Parameter(weight.clone() if learns else weight, requires_grad=learns))
    return SavedHead(head, ids)
