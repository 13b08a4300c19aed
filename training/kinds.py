"""The drafts that read their target's hidden states: how each kind begins, learns and is written.

- feature: it learns on chains of its own outputs, as it will draft (the "training-time test" of EAGLE-3)

An extension brings a kind of its own: RECIPES in its module `recipe`.
"""

import argparse
import functools
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel

from speclab.cli import parsing
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.files import SavedHead, read_head, weights_of, write_head
from speclab.drafts.heads.rollout import rollout
from speclab.system import extensions
from training.recipes import (
    DEPTH,
    Distance,
    Reading,
    Recipe,
    chain_loss,
    distance,
    draw,
    layers_to_read,
    sizes_of,
)

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
        n_layers = target.config.get_text_config().num_hidden_layers
        given = args.layers and tuple(parsing.numbers(args.layers, int, 0, "--layers", n_layers - 1))
        layers = given or layers_to_read(target)
        fused = len(layers) * hidden**2
        block: Any = LlamaConfig(**sizes_of(target, 1, args.intermediate, fused, 2 * hidden, ids is not None))
        config = HeadConfig(block, layers, hidden, len(table) if ids is None else len(ids))
        with torch.device("meta"):
            head = FeatureHead(config)
        for module, weight in ((head.embed_tokens, table), (head.lm_head, output if ids is None else output[ids])):
            weight = weight.cpu().float()
            module.weight = nn.Parameter(weight.clone() if ids is None else weight, requires_grad=ids is None)
        draw(head)
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


# --- all of them ------------------------------------------------------------------------------------------------------


def _add_layers(parser: parsing.Parser) -> None:
    """Add the flag for the layers that a fresh feature head reads."""
    parser.add_argument(
        "--layers",
        metavar="N,N",
        help="the target's layers, from 0, that it reads (default: a low, a middle, a high one)",
    )


def _trained_head(target: PreTrainedModel, args: argparse.Namespace) -> SavedHead:
    return read_head(args.init, target)


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
    for path, module in head.named_modules():  # what is not in the file is the target's own memory
        for name, weight in list(module.named_parameters(recurse=False)):
            learns = path not in lent
            setattr(module, name, nn.Parameter(weight.clone() if learns else weight, requires_grad=learns))
    return SavedHead(head, ids)
