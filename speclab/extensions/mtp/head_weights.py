"""Finds an MTP head in a checkpoint, and loads it into the library's `MtpModel`: a layer of the target's own kind.

Three ways of naming its tensors are known, with N the number of the target's layers:

    mtp.fc, mtp.pre_fc_norm_*, mtp.norm, mtp.layers.0.*            Qwen3-Next, Qwen3.5
    model.layers.N.{eh_proj,enorm,hnorm,shared_head}, .*           DeepSeek-V3, GLM-4.5
    model.mtp_layers.0.{input_proj,token_layernorm,...}, .*        MiMo, whose projection takes the state first

A copy of the embedding or of the output layer is passed over: the head has the target's. Of several such layers, each
made for one depth, the first is read and applied again. Nothing of a checkpoint is trusted, and no code of it is run.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_layers import MtpModel
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import ContextManagers, cached_file

from speclab.extensions.mtp.head import MtpHead
from speclab.models import loading
from speclab.system.errors import UsageProblem
from speclab.system.files import read_bytes

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
LARGEST_INDEX = 2**26  # bytes
FLOATS = ("F64", "F32", "F16", "BF16")  # types of weights, in a file's header
ADVICE = "give another checkpoint, or another --draft"
PARTS = {
    **{name: name for name in ("eh_proj", "enorm", "hnorm")},
    "shared_head.norm": "post_norm",
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "post_norm",
    "input_proj": "eh_proj",
    "token_layernorm": "enorm",
    "hidden_layernorm": "hnorm",
    "final_layernorm": "post_norm",
}
SHARED = ("embed_tokens.", "shared_head.head.")  # the target's own
STATE_FIRST = "model.mtp_layers."


def of_head(name: str, n_layers: int) -> str | None:
    """Return the library's name of a tensor of the first head; None for all other tensors. n_layers: of the target."""
    if one := re.fullmatch(r"mtp\.(fc|pre_fc_norm_embedding|pre_fc_norm_hidden|norm)\.weight", name):
        return f"layers.0.{PARTS[one[1]]}.weight"
    inner = re.fullmatch(rf"(?:mtp\.layers\.0|model\.layers\.{n_layers}|model\.mtp_layers\.0)\.(.+)", name)
    if not inner or inner[1].startswith(SHARED):
        return None
    part, _, kind = inner[1].rpartition(".")
    if part in PARTS and not name.startswith("mtp."):
        return f"layers.0.{PARTS[part]}.{kind}"
    return f"layers.0.mtp_block.{inner[1]}"


def read_mtp_head(name: str, target: PreTrainedModel, draft: str) -> MtpHead:
    """Return the head of a folder or a hub name, for this target, on its device and in its number format.

    draft: what was typed. Raises UsageProblem where the checkpoint has no such head, and EnvironmentProblem where it
    cannot be read or does not fit.
    """
    n_layers = target.config.get_text_config().num_hidden_layers
    short = loading.short_name(name) if name else "the target"
    files = loading.loaded(name, "its list of weights", lambda: _files_of(name, n_layers)) if name else {}
    found = {tensor: of_head(tensor, n_layers) or "" for tensor in files}
    if not found:
        raise UsageProblem(
            f"--draft {draft}: {short} has no MTP head (no tensors mtp.*, model.layers.{n_layers}.* or "
            "model.mtp_layers.*); give --draft mtp:FOLDER, or --draft feature"
        )
    return loading.loaded(name, "its MTP head", lambda: _built(target, n_layers, files, found), ADVICE)


def _files_of(name: str, n_layers: int) -> dict[str, Path]:
    """Return the file of each tensor of a checkpoint that belongs to its head. No other file is fetched."""
    index = cached_file(name, INDEX, _raise_exceptions_for_missing_entries=False)
    if not index:
        file = Path(str(cached_file(name, WEIGHTS)))
        with safe_open(file, "pt") as weights:
            return dict.fromkeys(filter(lambda tensor: of_head(tensor, n_layers), weights.keys()), file)
    said = json.loads(read_bytes(Path(index), LARGEST_INDEX))["weight_map"]
    if not isinstance(said, dict) or not all(isinstance(file, str) and "/" not in file for file in said.values()):
        raise ValueError(f"{INDEX} does not say in which file a tensor is")
    needed = {tensor: file for tensor, file in said.items() if of_head(tensor, n_layers)}
    paths = {file: Path(str(cached_file(name, file))) for file in sorted(set(needed.values()))}
    return {tensor: paths[file] for tensor, file in needed.items()}


@contextlib.contextmanager
def _with_one_head(config: Any) -> Iterator[None]:
    """Let a target's config describe one head while this is open: some families have one and do not say so."""
    wanted: dict[str, Any] = {"num_mtp_layers": 1}
    for kind, usual in (("layer_types", "full_attention"), ("mlp_layer_types", "sparse")):
        if (own := getattr(config, kind, None)) is not None and not getattr(config, f"mtp_{kind}", None):
            wanted[f"mtp_{kind}"] = [usual if usual in own else own[-1]]
    before = {name: getattr(config, name, None) for name in wanted}
    for name, value in wanted.items():
        setattr(config, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                delattr(config, config.attribute_map.get(name, name))
            else:
                setattr(config, name, value)


def empty_model(target: PreTrainedModel, state_first: bool = False) -> Any:
    """Return the library's model of one head for this target, without numbers. state_first: the projection's order.

    Raises ValueError where the library would take norms of another kind than the target's last one.
    """
    empty = MtpModel.get_init_context(target.dtype, False, False, None)  # the shared parts keep their numbers
    with _with_one_head(target.config.get_text_config()), ContextManagers(empty):
        model: Any = MtpModel(target, 1)
    model.config.mtp_hidden_states_first = state_first
    if type(model.layers[0].enorm) is not type(target.get_decoder().norm):
        raise ValueError("its last layer has norms of another kind than the target's last one")
    return model


def _built(target: PreTrainedModel, n_layers: int, files: dict[str, Path], found: dict[str, str]) -> MtpHead:
    """Make the head with these tensors: name in the file -> the library's."""
    tensors: dict[str, Tensor] = {}
    for file in sorted({files[tensor] for tensor in found}):
        with safe_open(file, "pt") as weights:
            for tensor in (one for one in found if files[one] == file):
                if (kind := weights.get_slice(tensor).get_dtype()) not in FLOATS:
                    raise ValueError(f"{tensor} is of the type {kind}, not {FLOATS[0]}")
                tensors[found[tensor]] = weights.get_tensor(tensor).to(target.device, target.dtype)
    if wrong := sorted(name for name, tensor in tensors.items() if not tensor.isfinite().all()):
        raise ValueError(f"{wrong[0]} has numbers that are not finite")
    model = empty_model(target, any(name.startswith(STATE_FIRST) for name in found))
    ways: Any = get_model_conversion_mapping(target)
    rules = LoadStateDictConfig(weight_mapping=ways, dtype=target.dtype)
    told, _ = convert_and_load_state_dict_in_model(model=model, state_dict=tensors, load_config=rules)
    own = {name for name, _ in model.named_parameters() if name.startswith("layers.")}
    for names, why in (
        (own & set(told.missing_keys), "is missing"),
        (told.unexpected_keys, "is a weight that a layer of the target has no place for"),
        ((key[0] for key in told.mismatched_keys), "has another shape than in a layer of the target"),
    ):
        if wrong := sorted(map(str, names)):
            raise ValueError(f"{wrong[0]} {why}")
    model.tie_with_main_model(target)
    norm: Any = target.get_decoder().norm
    return MtpHead(model.eval().requires_grad_(False), norm, n_layers)
