"""Heads in folders and on the hub, in the `speculators` checkpoint format that serving engines load.

config.json says what a head is and which of the target's layers it reads (counted from 1 there: the output of layer i
is state i + 1); model.safetensors holds its weights. `d2t` is there where the head proposes fewer ids than the target
has: d2t[i] + i is the target's id of the head's id i; t2d marks the same ids among the target's. An embedding or an
output layer that is not there is the target's.

Nothing in them is trusted, and no code is run: an entry of config.json is read with a declared type, and one that would
change what the head computes in a way that the lab does not is refused. Entries that are not declared are not read.
Names, shapes and types of all weights are compared with what the config asks for before a number is read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.activations import ACT2FN
from transformers.utils import cached_file

from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.parts import rotations
from speclab.engines.eager import decoder_layers
from speclab.models import loading
from speclab.system.errors import UsageProblem
from speclab.system.files import parse_json, read_bytes, write_whole

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BLOCKS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
TO_TARGET, FROM_TARGET = "d2t", "t2d"  # tables between the head's ids and the target's
FLOATS, WHOLES = ("F64", "F32", "F16", "BF16"), ("I64", "I32", "I16")  # types of weights and of d2t, in a file's header
LARGEST_CONFIG = 2**20  # bytes
MOST, MOST_LAYERS, LARGEST_HEAD = 2**24, 64, 1024  # of a size, of layers, and of the size of an attention head
UNUSED = ("verifier_", "confidence_head.")  # weights of training, and of rules for stopping
CORRECT = f"correct its {CONFIG}, or give another head"
VERSION = "0.9.0"  # of the format
Types = Mapping[str, type]
"""The entries that are read, each with its type; list is a list of sizes, and tuple one of words."""


def types_of(names: dict[type, str]) -> Types:
    """Return the type of each entry."""
    return {name: kind for kind, said in names.items() for name in said.split()}


SIZES = "draft_vocab_size target_hidden_size"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
FEATURE = types_of(
    {int: SIZES, dict: "transformer_layer_config", list: "eagle_aux_hidden_state_layer_ids", bool: " ".join(FLAGS)}
)
LAYER = types_of(
    {
        int: "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
        "head_dim max_position_embeddings sliding_window",
        bool: "attention_bias mlp_bias use_sliding_window",
        float: "rms_norm_eps rope_theta",
        str: "model_type hidden_act",
        tuple: "layer_types",
        dict: "rope_parameters rope_scaling",
    }
)
ROPE = types_of(
    {
        str: "rope_type type",
        int: "original_max_position_embeddings",
        bool: "truncate",
        float: "rope_theta factor attention_factor beta_fast beta_slow low_freq_factor high_freq_factor mscale "
        "mscale_all_dim",
    }
)
ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # the same for a position, however long the text is
# Parts of a head that turn by the time, height and width of an image; the three are one position in a text.
ONE_IN_A_TEXT = ("mrope_section", "mrope_interleaved")
# Each of these changes what a head computes, unless it has a neutral value. The lab computes none of them.
NOT_COMPUTED = (
    *("logit_scale", "embedding_scale", "final_logit_softcapping", "attn_logit_softcapping"),
    *("quantization_config", "partial_rotary_factor"),
)
NEUTRAL: tuple[Any, ...] = (None, 1, {})


class SavedHead(NamedTuple):
    """A head as it was read. ids: (draft vocabulary,) the target's id of each of the head's; None: the same."""

    head: Any
    ids: Tensor | None


def read_head(name: str, target: PreTrainedModel, own_width: int | None = None) -> SavedHead:
    """Return the feature head of a folder or a hub name, for this target, on its device and in its number format.

    own_width: of the model that the target was padded from, which the head was trained for; None where the target is
    not padded. Raises EnvironmentProblem where it cannot be read, and UsageProblem where it belongs to another target.
    """
    found, weights = read_files(name)
    config = loading.loaded(name, f"its {CONFIG}", lambda: feature_config(found, len(decoder_layers(target))), CORRECT)
    draft = f"feature:{loading.short_name(name)}"
    if own_width is not None and (config.norm_before_fc or config.fc_norm):
        raise UsageProblem(f"{draft}: a padded target is read only by a head like the lab's own; give feature")
    check_width(draft, config.target_hidden, own_width or target.config.get_text_config().hidden_size)

    def built() -> SavedHead:
        with torch.device("meta"):
            head = FeatureHead(config)
        tensors, ids = read_tensors(weights, config, shapes_of(head), target)
        head.load_state_dict(tensors, assign=True)
        return SavedHead(head.eval().requires_grad_(False), ids)

    saved = loading.loaded(name, "its weights", built)
    if own_width is not None:
        # The first dimensions of a padded target's states are those that the head was trained on, the others are 0.
        fc = saved.head.fc.weight.unflatten(1, (len(config.layers), own_width))  # (hidden, layers, own width)
        added = target.config.get_text_config().hidden_size - own_width
        wider = torch.nn.functional.pad(fc, (0, added)).flatten(1)  # (hidden, layers * width)
        saved.head.fc.weight = torch.nn.Parameter(wider, requires_grad=False)
    return saved


def feature_config(found: dict[str, Any], n_layers: int) -> HeadConfig:
    """Return what config.json says of a feature head. Raises ValueError where it is none. n_layers: the target's."""
    check_format(found, "feature", ("eagle3",))
    said = checked(found, FEATURE, ("draft_vocab_size", "transformer_layer_config"))
    block = decoder_of(said["transformer_layer_config"], "llama")
    if block.num_hidden_layers != 1:
        raise ValueError("its decoder is not one layer of llama or qwen3")
    if "sliding_attention" in (getattr(block, "layer_types", None) or ()):
        raise ValueError("its layer attends to a window; the lab reads heads that attend to the whole text")
    if said.get("norm_before_fc") and said.get("fc_norm"):
        raise ValueError("norm_before_fc and fc_norm are both true, and the format knows no head with both")
    states = said.get("eagle_aux_hidden_state_layer_ids", [2, n_layers // 2, n_layers - 3])
    return HeadConfig(
        block=block,
        layers=layers_of(states, n_layers),
        target_hidden=said.get("target_hidden_size", block.hidden_size),
        draft_vocab=said["draft_vocab_size"],
        **{flag: said.get(flag, False) for flag in FLAGS},
    )


# --- config.json ------------------------------------------------------------------------------------------------------


def read_files(name: str) -> tuple[dict[str, Any], Path]:
    """Return the contents of config.json and the file of the weights, of a folder or a hub name. EnvironmentProblem is
    raised where they are not there or are damaged."""

    def load() -> tuple[Path, Path]:
        config, weights = (Path(str(cached_file(name, file))) for file in (CONFIG, WEIGHTS))
        with safe_open(weights, "pt"):  # its header can be read
            return config, weights

    config, weights = loading.loaded(name, f"its {CONFIG} and weights", load)
    return loading.loaded(name, f"its {CONFIG}", lambda: read_config(config), CORRECT), weights


def read_config(path: Path) -> dict[str, Any]:
    """This reads a config.json. Raises OSError or ValueError where it is too large for a head's, or no object."""
    found = parse_json(read_bytes(path, LARGEST_CONFIG).decode("utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{CONFIG} is not an object")
    return found


def check_format(found: dict[str, Any], kind: str, formats: tuple[str, ...]) -> None:
    """Raise ValueError where config.json describes another kind of head."""
    if (said := found.get("speculators_model_type")) not in formats:
        raise ValueError(f"speculators_model_type is {said!r}; the draft {kind} reads {' and '.join(formats)}")


def checked(found: dict[str, Any], types: Types, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the entries that are declared; null counts as left out. Raises ValueError with the name of the first one
    that is missing, has another type, or would change what is computed."""
    for name in NOT_COMPUTED:
        if found.get(name) not in NEUTRAL:
            raise ValueError(f"{name} is {found[name]!r:.60}; the lab does not compute it, so it should be left out")
    said = {}
    for name, kind in types.items():
        value = found.get(name) if kind is float else _whole(found.get(name))
        if value is None and name in needed:
            raise ValueError(f"{name} is missing or null")
        if value is not None:
            if not _fits(value, kind):
                raise ValueError(f"{name} is {str(value)[:60]!r}, which is out of its range or of another type")
            said[name] = value
    return said


def _whole(value: Any) -> Any:
    """JSON has one kind of number, and some tools write 8192 as 8192.0."""
    if type(value) is list:
        return [_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _fits(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and 0 <= value <= 1e12
    if kind is int:
        return type(value) is int and 0 <= value <= MOST  # products of a few sizes stay far below 2**63
    if kind in (list, tuple):
        right = int if kind is list else str
        return type(value) is list and 0 < len(value) <= MOST_LAYERS and all(_fits(one, right) for one in value)
    return type(value) is kind


def decoder_of(found: dict[str, Any], usual: str) -> Any:
    """This gives the library's config of a decoder. Raises ValueError where the lab does not compute its attention.

    found: transformer_layer_config. usual: its model_type where that is not said.
    """
    said = checked(found, LAYER)
    model_type = said.pop("model_type", usual)
    if model_type not in BLOCKS:
        raise ValueError(f"its model_type is {model_type!r}; the lab reads {' and '.join(BLOCKS)}")
    if said.get("num_hidden_layers", 1) > MOST_LAYERS:
        raise ValueError(f"num_hidden_layers is {said['num_hidden_layers']}; the lab reads at most {MOST_LAYERS}")
    if said.get("hidden_act", "silu") not in ACT2FN:
        raise ValueError(f"hidden_act is {said['hidden_act']!r}, and the library knows no such activation")
    for name in said.keys() & {"rope_parameters", "rope_scaling"}:
        said[name] = _rope(said[name])
    block = BLOCKS[model_type](**said)
    heads, key_heads, size = block.num_attention_heads, block.num_key_value_heads, block.head_dim
    if heads % key_heads or size % 2 or size > LARGEST_HEAD:
        raise ValueError(f"it has {heads} heads of size {size} over {key_heads} key-value heads")
    if not all(part.isfinite().all() for part in rotations(block, torch.arange(2.0))):
        raise ValueError(f"rope_parameters turn positions by numbers that are not finite: {block.rope_parameters}")
    return block


def _rope(found: dict[str, Any]) -> dict[str, Any]:
    """Return how positions turn queries and keys. An unknown entry may change that, so it is refused."""
    said = checked(found, ROPE)
    if others := sorted(found.keys() - {*ROPE, *NOT_COMPUTED, *ONE_IN_A_TEXT}):
        raise ValueError(f"{others[0]} is an entry of how positions turn that the lab does not know")
    if (kind := said.get("rope_type", said.get("type", "default"))) not in ROPE_TYPES:
        raise ValueError(f"rope_type is {kind!r}; the lab reads {', '.join(ROPE_TYPES)}")
    return said


def layers_of(states: list[int], n_layers: int) -> tuple[int, ...]:
    """Return the target's layers, from 0, whose outputs are these of its states."""
    if not all(1 <= state <= n_layers for state in states):
        raise ValueError(f"it reads states {states} of a target with {n_layers} layers")
    return tuple(state - 1 for state in states)


def check_width(draft: str, wanted: int, width: int) -> None:
    """Raise UsageProblem where a head reads states of another width than the target's."""
    if wanted != width:
        raise UsageProblem(
            f"{draft} reads states of width {wanted} and the target's are {width} wide; give a head that was trained "
            "for this target"
        )


# --- weights ----------------------------------------------------------------------------------------------------------


def weights_of(target: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Return the target's embedding and its output layer, (vocabulary, hidden) each."""
    modules: list[Any] = [target.get_input_embeddings(), target.get_output_embeddings()]
    table, output = (module.weight.detach() for module in modules)
    return table, output


def shapes_of(head: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """This gives the shapes of its weights by their names."""
    return {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}


def read_tensors(
    path: Path,
    config: Any,
    wanted: dict[str, tuple[int, ...]],
    target: PreTrainedModel,
    unused: tuple[str, ...] = UNUSED,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the weights of a head for this target, and the target's id of each of its ids, None where they are the
    same. An embedding and an output layer that are not in the file are the target's. Raises ValueError."""
    table, output = weights_of(target)
    tables = {TO_TARGET: (config.draft_vocab,), FROM_TARGET: (config.block.vocab_size,)}
    tensors = read_weights(path, wanted, {EMBEDDING: table, HEAD: output}, tables, unused)
    ids = _target_ids(config, tensors.pop(TO_TARGET, None), tensors.pop(FROM_TARGET, None), target)
    if ids is not None and tensors[HEAD].data_ptr() == output.data_ptr():
        tensors[HEAD] = output[ids]
    return for_target(tensors, target), ids


def read_weights(
    path: Path,
    wanted: Mapping[str, tuple[int, ...]],
    lent: Mapping[str, Tensor] | None = None,
    tables: Mapping[str, tuple[int, ...]] | None = None,
    unused: tuple[str, ...] = UNUSED,
) -> dict[str, Tensor]:
    """This reads the tensors of a file, which have the shapes that are wanted. Raises ValueError for any other.

    lent: stands in for tensors that are not in the file. tables: whole numbers and marks, which may be missing. unused:
    how the names begin that are passed over. The header says names, shapes and types, so all of these are compared
    before a number is read.
    """
    asked, kinds = {**(tables or {}), **wanted}, {TO_TARGET: WHOLES, FROM_TARGET: ("BOOL",)}
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if not name.startswith(unused)]  # noqa: SIM118 - it is no dict
        tensors = {name: tensor for name, tensor in (lent or {}).items() if name in wanted and name not in names}
        if TO_TARGET in names and HEAD in tensors:  # which rows these are is decided when all tables are read
            tensors[HEAD] = tensors[HEAD][: wanted[HEAD][0]]
        if missing := sorted(wanted.keys() - tensors.keys() - set(names)):
            raise ValueError(f"{missing[0]} is missing")
        parts = {name: file.get_slice(name) for name in names}
        there = {name: tuple(one.shape) for name, one in tensors.items()}
        there |= {name: tuple(part.get_shape()) for name, part in parts.items()}
        for name, shape in sorted(there.items()):
            if name not in asked:
                raise ValueError(f"{name} is a weight that its {CONFIG} has no place for")
            if shape != asked[name]:
                raise ValueError(f"{name} has the shape {shape}; its {CONFIG} asks for {asked[name]}")
        for name, part in parts.items():
            if (dtype := part.get_dtype()) not in (right := kinds.get(name, FLOATS)):
                raise ValueError(f"{name} is of the type {dtype}, not {right[0]}")
        return {**tensors, **{name: file.get_tensor(name) for name in names}}


def for_target(tensors: dict[str, Tensor], target: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights on the target's device and in its number format.

    Raises ValueError where they are not finite there.
    """
    moved = {name: tensor.to(target.device, target.dtype) for name, tensor in tensors.items()}
    if damaged := [name for name, tensor in moved.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{damaged[0]} has numbers that are not finite in {str(target.dtype).removeprefix('torch.')}")
    return moved


def _target_ids(config: Any, offsets: Tensor | None, chosen: Tensor | None, target: PreTrainedModel) -> Tensor | None:
    """This gives the target's id of each of the head's. offsets: d2t. chosen: t2d, which must mark the same ids."""
    if offsets is None and config.draft_vocab != config.block.vocab_size:
        raise ValueError(f"it proposes {config.draft_vocab} of {config.block.vocab_size} ids and has no d2t table")
    ids = torch.arange(config.draft_vocab) + (0 if offsets is None else offsets.long())
    if ids.min() < 0 or ids.max() >= config.block.vocab_size or len(ids.unique()) < len(ids):
        raise ValueError("its d2t table names ids that are not the target's, or one twice")
    if chosen is not None and not torch.equal(ids.sort().values, chosen.nonzero()[:, 0]):
        n_both = int(chosen[ids].sum())
        raise ValueError(
            f"its tables disagree: d2t names {len(ids)} ids, t2d {int(chosen.sum())}, and both name {n_both} of them"
        )
    return None if offsets is None else ids.to(target.device)


# --- writing ----------------------------------------------------------------------------------------------------------


def write_head(
    folder: Path, head: FeatureHead, target: str, architectures: list[str], k: int, ids: Tensor | None = None
) -> None:
    """Write a feature head.

    target: the name in config.json of what it was trained for. k: tokens that an engine should draft with it. ids:
    (draft vocabulary,) the target's id of each of the head's; such a head is written without embedding and output
    layer, which are the target's. None: the ids are the same.
    """
    entries = {
        "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in head.config.layers],
        **{flag: getattr(head.config, flag) for flag in FLAGS},
    }
    write_files(folder, head, ("eagle3", "Eagle3Speculator"), entries, target, architectures, k, ids)


def write_files(
    folder: Path,
    head: Any,
    kind: tuple[str, str],
    more: dict[str, Any],
    target: str,
    architectures: list[str],
    k: int,
    ids: Tensor | None = None,
) -> None:
    """Write a head's files. kind: its speculators_model_type, and the name of its class. more: its own entries. The
    rest: as `write_head` has it."""
    config = head.config
    entries = {
        "architectures": [kind[1]],
        "speculators_model_type": kind[0],
        "speculators_version": VERSION,
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "transformer_layer_config": written(config.block),
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
        weights |= {TO_TARGET: ids.cpu() - torch.arange(len(ids)), FROM_TARGET: chosen}
    write_both(folder, entries, weights)


def written(block: Any) -> dict[str, Any]:
    """Return the entries of transformer_layer_config."""
    return {key: value for key, value in block.to_dict().items() if value is not None}


def write_both(folder: Path, entries: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Write config.json and the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, save(weights))
    write_whole(folder / CONFIG, json.dumps(entries, indent=1) + "\n")
