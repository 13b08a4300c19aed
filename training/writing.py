"""Writes heads in the `speculators` checkpoint format, which speclab/drafts/heads/files.py reads."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from speclab.drafts.heads.feature import FeatureHead
from speclab.drafts.heads.files import CONFIG, EMBEDDING, FLAGS, HEAD, TO_TARGET, WEIGHTS
from speclab.system.files import write_whole


def write_feature(
    folder: Path, head: FeatureHead, target: str, architectures: list[str], k: int, ids: Tensor | None = None
) -> None:
    """Write a feature head. target: the name in config.json of what it was trained for. k: tokens that an engine should
    draft with it. ids: as `SavedHead` has them; such a head is written without embedding and output layer."""
    layers = {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in head.config.layers]}
    entries = layers | {flag: getattr(head.config, flag) for flag in FLAGS}
    write_head(folder, head, ("eagle3", "Eagle3Speculator"), entries, target, architectures, k, ids)


def write_head(
    folder: Path,
    head: Any,
    kind: tuple[str, str],
    more: dict[str, Any],
    target: str,
    architectures: list[str],
    k: int,
    ids: Tensor | None = None,
) -> None:
    """As `write_feature`. kind: its speculators_model_type, and the name of its class. more: its own entries."""
    config = head.config
    entries = {
        "architectures": [kind[1]],
        "speculators_model_type": kind[0],
        "speculators_version": "0.9.0",
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "transformer_layer_config": {name: one for name, one in config.block.to_dict().items() if one is not None},
        **more,
        "speculators_config": {
            "algorithm": kind[0],
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": target, "architectures": architectures},
        },
    }
    weights = {name: tensor.detach().cpu().clone() for name, tensor in head.state_dict().items()}  # one may be in twice
    if ids is not None:
        chosen = torch.zeros(config.block.vocab_size, dtype=torch.bool).index_fill(0, ids.cpu(), True)
        weights = {name: tensor for name, tensor in weights.items() if name not in (EMBEDDING, HEAD)}
        weights |= {TO_TARGET: ids.cpu() - torch.arange(len(ids)), "t2d": chosen}
    folder.mkdir(parents=True, exist_ok=True)
    new = write_whole(folder / f"new-{WEIGHTS}", save(weights))
    (folder / CONFIG).unlink(missing_ok=True)  # a kill leaves the old head or none, never one with another's entries
    new.replace(folder / WEIGHTS)
    write_whole(folder / CONFIG, json.dumps(entries, indent=1) + "\n")
