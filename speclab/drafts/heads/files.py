"""Heads in folders and on the hub, in the `speculators` checkpoint format that serving engines load.

config.json says what a head is and which of the target's layers it reads (counted from 1 there: the output of layer i
is state i + 1); model.safetensors holds its weights. `d2t` is there where the head proposes fewer ids than the target
has: d2t[i] + i is the target's id of the head's id i. An embedding that is not there is the target's.

Nothing in them is trusted: sizes in config.json only count where the weights have them, and no code is run.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.utils import cached_file

from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.padding import padded_head, read_wider
from speclab.models import loading
from speclab.models.backends.eager import decoder_layers
from speclab.system.errors import UsageProblem
from speclab.system.files import whole_folders, write_whole

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BLOCKS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
TO_TARGET, FROM_TARGET = "d2t", "t2d"  # tables between the head's ids and the target's
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LARGEST_CONFIG = 2**20  # bytes


@dataclass(frozen=True)
class SavedHead:
    """A head as it was read. ids: (draft vocabulary,) the target's id of each of the head's; None: the same."""

    head: FeatureHead
    ids: Tensor | None


def read_head(name: str, target: PreTrainedModel, padded: bool = False, as_wide: bool = False) -> SavedHead:
    """The head of a folder or a hub name, for this target, on its device and in its number format.

    padded: the target is (lab:SIZE), and the head was trained for what it was padded from. as_wide: pad the head, too.
    EnvironmentProblem where it cannot be read; UsageProblem where it belongs to another target.
    """

    def load() -> tuple[dict, dict[str, Tensor]]:
        config_file, weights_file = (Path(str(cached_file(name, file))) for file in (CONFIG, WEIGHTS))
        if config_file.stat().st_size > LARGEST_CONFIG:
            raise ValueError(f"{CONFIG} is larger than any head's")
        found = json.loads(config_file.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"{CONFIG} is not an object")
        return found, load_file(weights_file)

    found, tensors = loading.loaded(name, "its config.json and weights", load)
    config = loading.loaded(name, "its config.json", lambda: config_from(found, target))
    if padded and (config.norm_before_fc or config.fc_norm or config.block.model_type != "llama"):
        raise UsageProblem(f"--draft feature:{loading.short_name(name)}: only a head like the lab's own can be padded")
    if not padded:
        _check_fits(name, config, target)
    saved = loading.loaded(name, "its weights", lambda: _built(config, tensors, target))
    if as_wide:
        return replace(saved, head=padded_head(saved.head, target.config))
    if padded:
        width = target.config.get_text_config().hidden_size
        fc = read_wider(saved.head.fc.weight, len(config.layers), width)
        saved.head.fc.weight = torch.nn.Parameter(fc, requires_grad=False)
    return saved


def config_from(found: dict[str, Any], target: PreTrainedModel) -> HeadConfig:
    """What config.json says. ValueError or KeyError where it is no head of a kind that is known here."""
    kind = found.get("speculators_model_type")
    if kind != "eagle3":
        raise ValueError(f"speculators_model_type is {kind!r}; the lab reads eagle3")
    layer = dict(found["transformer_layer_config"])
    block_class = BLOCKS.get(layer.pop("model_type", "llama"))
    if block_class is None or layer.get("num_hidden_layers", 1) != 1:
        raise ValueError("its decoder is not one layer of llama or qwen3")
    block = block_class(**layer)
    n_layers = len(decoder_layers(target))
    states = found.get("eagle_aux_hidden_state_layer_ids") or [2, n_layers // 2, n_layers - 3]
    if not all(type(state) is int and 1 <= state <= n_layers for state in states):
        raise ValueError(f"it reads states {states} of a target with {n_layers} layers")
    return HeadConfig(
        block=block,
        layers=tuple(state - 1 for state in states),
        target_hidden=found.get("target_hidden_size") or block.hidden_size,
        draft_vocab=int(found["draft_vocab_size"]),
        **{flag: bool(found.get(flag, False)) for flag in FLAGS},
    )


def _check_fits(name: str, config: HeadConfig, target: PreTrainedModel) -> None:
    width = target.config.get_text_config().hidden_size
    if config.target_hidden != width:
        raise UsageProblem(
            f"--draft feature:{loading.short_name(name)} reads states of width {config.target_hidden} and the target's "
            f"are {width} wide; give a head that was trained for this target"
        )


def _built(config: HeadConfig, tensors: dict[str, Tensor], target: PreTrainedModel) -> SavedHead:
    """The module with these weights; what its config says and the weights lack is an error, before any memory is
    taken."""
    tensors = dict(tensors)
    offsets, _ = tensors.pop(TO_TARGET, None), tensors.pop(FROM_TARGET, None)
    tensors.pop("verifier_lm_head.weight", None)
    of_target: list[Any] = [target.get_input_embeddings(), target.get_output_embeddings()]
    tensors.setdefault(EMBEDDING, of_target[0].weight.detach())
    if offsets is None and HEAD not in tensors:
        tensors[HEAD] = of_target[1].weight.detach()
    with torch.device("meta"):
        head = FeatureHead(config)
    head.load_state_dict({key: tensor.to(target.device, target.dtype) for key, tensor in tensors.items()}, assign=True)
    return SavedHead(head.eval().requires_grad_(False), _target_ids(config, offsets, target))


def _target_ids(config: HeadConfig, offsets: Tensor | None, target: PreTrainedModel) -> Tensor | None:
    """The target's id of each of the head's."""
    if offsets is None:
        if config.draft_vocab != config.block.vocab_size:
            raise ValueError(f"it proposes {config.draft_vocab} of {config.block.vocab_size} ids and has no d2t table")
        return None
    if offsets.shape != (config.draft_vocab,) or offsets.is_floating_point():
        raise ValueError(f"its d2t table is not {config.draft_vocab} whole numbers")
    ids = torch.arange(config.draft_vocab) + offsets.long()
    if ids.min() < 0 or ids.max() >= config.block.vocab_size or len(ids.unique()) < len(ids):
        raise ValueError("its d2t table names ids that are not the target's, or one twice")
    return ids.to(target.device)


def write_head(folder: Path, head: FeatureHead, target: str, architectures: list[str], k: int) -> None:
    """Write a head whose ids are the target's, whole or not at all.

    target: the name in config.json of what it was trained for. k: tokens that an engine should draft with it.
    """
    config = head.config
    block = {key: value for key, value in config.block.to_dict().items() if value is not None}
    entries = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in config.layers],
        **{flag: getattr(config, flag) for flag in FLAGS},
        "transformer_layer_config": block,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": target, "architectures": architectures},
        },
    }
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}
    with whole_folders(folder) as (new,):
        write_whole(new / WEIGHTS, save(weights))
        write_whole(new / CONFIG, json.dumps(entries, indent=1) + "\n")
