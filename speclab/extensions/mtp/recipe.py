"""Trains an MTP head for a target that has none: `python -m training.heads mtp`.

It learns as a feature head does, on chains of its own states. It is one layer like the target's own: embedding, output
layer and the norm of the state that it reads are the target's and do not learn. What is written has the names of
Qwen3-Next's heads, and `--draft mtp:FOLDER` reads it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from transformers import PreTrainedModel

from speclab.drafts.heads.files import CONFIG, WEIGHTS
from speclab.extensions.mtp.head import MtpHead
from speclab.extensions.mtp.head_weights import empty_model, head_of, read_mtp_head
from speclab.system.errors import UsageProblem, first_line
from speclab.system.files import write_whole
from training.recipes import DEPTH, Distance, Reading, Recipe, chain_loss, distance

BLOCK = "mtp_block."
NAMES = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "post_norm": "norm"}


def fresh_mtp(target: PreTrainedModel, tokenizer: Any, args: argparse.Namespace, ids: Tensor | None = None) -> MtpHead:
    """Return a head with the library's random weights, whose last norm starts as the target's.

    Raises UsageProblem for a width, and where the library makes no such layer for this target.
    """
    if args.intermediate:
        raise UsageProblem("--intermediate: an MTP head is as wide as a layer of the target; leave it out")
    norm: Any = target.get_decoder().norm
    try:
        model = empty_model(target)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageProblem(
            f"the library makes no MTP head for this target: {first_line(error)}; train a feature head"
        ) from None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(args.seed)
        model.layers.to_empty(device=torch.device("cpu"))
        model.layers.apply(target._init_weights)
    model.layers[0].post_norm.load_state_dict(norm.state_dict())
    return head_of(model, target)


def mtp_loss(head: MtpHead, read: Reading, tokens: Tensor, starts: Tensor, distance: Distance = distance) -> Tensor:
    """Compute the loss of a feature head.

    read: gives what the target computes. tokens: (batch, n). starts: (batch, chains). distance: maybe compiled.
    """
    hidden, target = read(tokens)
    return chain_loss(head.rollout(hidden, tokens, DEPTH, starts), target, distance)


def named(layer: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a head's layer by the names of a checkpoint (head_weights.py)."""
    found = {}
    for name, tensor in layer.state_dict().items():
        part, _, kind = name.partition(".")
        known = f"mtp.{NAMES[part]}.{kind}" if part in NAMES else f"mtp.layers.0.{name.removeprefix(BLOCK)}"
        found[known] = tensor.detach().cpu().contiguous()
    return found


def write_mtp(folder: Path, head: MtpHead, target: str, architectures: list[str]) -> None:
    """Write a head. target: the name in config.json of what it was trained for."""
    entries = {"mtp_head_of": {"name_or_path": target, "architectures": architectures}}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, save(named(head.model.layers[0])))
    write_whole(folder / CONFIG, json.dumps(entries, indent=1) + "\n")


def trained_mtp(target: PreTrainedModel, args: argparse.Namespace) -> tuple[MtpHead, None]:
    """Return the head of --init, which proposes all ids."""
    return read_mtp_head(args.init, target, f"mtp:{args.init}"), None


RECIPES = {
    "mtp": Recipe(
        help="one layer like the target's own, over its last state (MTP)",
        fresh=fresh_mtp,
        loss=mtp_loss,
        write=write_mtp,
        trained=trained_mtp,
        folder="build/mtp",
        chains=1 / 3,
    ),
}
