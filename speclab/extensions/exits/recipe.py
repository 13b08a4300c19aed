"""Trains an adapter: `python -m training.heads exit --exit-layer N`.

It learns from the target's states after its first layers, at every position of a text. The states do not depend on what
is drafted, so a text that is known is all that there is to learn from.
"""

import argparse
from typing import Any

from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from speclab.cli import parsing
from speclab.drafts.heads.files import weights_of
from speclab.engines.eager import decoder_layers
from speclab.extensions.exits.adapter import ExitAdapter, ExitConfig
from speclab.extensions.exits.adapter_files import read_adapter, write_adapter
from speclab.models.cached import CachedModel
from speclab.models.first_layers import check_split
from speclab.system.errors import UsageProblem
from training.recipes import Distance, Reading, Recipe, distance, sizes_like


def fresh_exit(
    target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace, ids: Tensor | None = None
) -> ExitAdapter:
    """Return a random adapter for the target's state after --exit-layer layers.

    Raises UsageProblem where the target has no such layer, EnvironmentProblem where it cannot be run in two parts.
    """
    n_layers = len(decoder_layers(target))
    if args.exit_layer >= n_layers:
        raise UsageProblem(
            f"--exit-layer {args.exit_layer}: the target has {n_layers} layers; give a number from 1 to {n_layers - 1}"
        )
    check_split(CachedModel(target), args.exit_layer)
    block: Any = LlamaConfig(**sizes_like(target, 1, args.intermediate))
    adapter = ExitAdapter(ExitConfig(args.exit_layer, n_layers, block), weights_of(target)[1])
    adapter.reset(args.seed)
    return adapter


def trained_exit(target: PreTrainedModel, args: argparse.Namespace) -> tuple[ExitAdapter, None]:
    """Return the adapter of --init, which proposes all ids. Raises UsageProblem where it reads another layer."""
    adapter = read_adapter(args.init, target)
    if (layer := adapter.config.exit_layer) != args.exit_layer:
        raise UsageProblem(
            f"--exit-layer {args.exit_layer}: the adapter of --init reads the states of layer {layer}; give "
            f"--exit-layer {layer}, or leave --init out"
        )
    return adapter, None


def exit_loss(
    adapter: ExitAdapter, read: Reading, tokens: Tensor, starts: Tensor, distance: Distance = distance
) -> Tensor:
    """Compute the mean over positions.

    read: gives what the target computes. tokens: (batch, n). starts: not used, as every position is learned from.
    distance: the function of the loss, which may be compiled.
    """
    states, target = read(tokens)
    return distance(target, adapter.text_logits(states))


def add_flags(parser: parsing.Parser) -> None:
    """Add the flag that only this kind has."""
    parser.add_argument(
        "--exit-layer", type=parsing.at_least(1), required=True, metavar="N", help="the target's layers that it runs"
    )


RECIPES = {
    "exit": Recipe(
        help="an adapter behind the target's first layers",
        intermediate=704,
        fresh=fresh_exit,
        loss=exit_loss,
        write=write_adapter,
        trained=trained_exit,
        folder="build/exit-{exit_layer}",
        add_flags=add_flags,
    ),
}
