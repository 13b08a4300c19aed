"""Heads in folders and on the hub, in the `speculators` checkpoint format that serving engines load.

config.json says what a head is and which of the target's layers it reads (counted from 1 there: the output of layer i
is state i + 1); model.safetensors holds its weights. `d2t` is there where the head proposes fewer ids than the target
has: d2t[i] + i is the target's id of the head's id i; t2d marks the same ids among the target's. An embedding or an
output layer that is not there is the target's; a block head's embedding always is.

Nothing in them is trusted, and no code is run: every entry of config.json that is read has a declared type and range
(schema.py), and names, shapes and types of all weights are compared with what they ask for before one is read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.utils import cached_file

from speclab.drafts.heads.block import BlockConfig, BlockHead
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.parts import rotations
from speclab.engines.eager import decoder_layers
from speclab.models import loading
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.files import install_advice, parse_json, read_bytes, write_whole
from speclab.system.terminal import note

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMATS = {"feature": ("eagle3",), "block": ("dflash", "dspark")}  # speculators_model_type of each kind of draft
BLOCKS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
TO_TARGET, FROM_TARGET = "d2t", "t2d"  # tables between the head's ids and the target's
FLOATS, WHOLES = ("F64", "F32", "F16", "BF16"), ("I64", "I32", "I16")  # types of weights and of d2t, in a file's header
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LARGEST_CONFIG = 2**20  # bytes
LARGEST_SIZE = 1024  # of an attention head
NAMED = 3  # unknown entries that one line names
UNUSED = ("verifier_", "confidence_head.")  # of training, and of rules for stopping
CORRECT = f"correct its {CONFIG}, or give another head"
VERSION = "0.9.0"  # of the format
Shape = tuple[int, ...]


class SavedHead(NamedTuple):
    """A head as it was read. ids: (draft vocabulary,) the target's id of each of the head's; None: the same."""

    head: FeatureHead | BlockHead
    ids: Tensor | None


def read_head(name: str, target: PreTrainedModel, kind: str = "feature", own_width: int | None = None) -> SavedHead:
    """Return the head of a folder or a hub name, for this target, on its device and in its number format.

    kind: of draft, feature or block. own_width: of the model that the target was padded from, which the head was
    trained for; None where the target is not padded. Raises EnvironmentProblem where it cannot be read, and
    UsageProblem where it belongs to another target.
    """
    found, weights = read_files(name)
    config = loading.loaded(name, f"its {CONFIG}", lambda: config_from(found, target, kind), CORRECT)
    if own_width is not None and (not isinstance(config, HeadConfig) or config.norm_before_fc or config.fc_norm):
        raise UsageProblem(
            f"{kind}:{loading.short_name(name)}: a padded target is read only by a head like the lab's own; "
            "give feature"
        )
    _check_fits(f"{kind}:{loading.short_name(name)}", config, target, own_width)
    name_unknown(name, found, schema().KINDS[kind])
    saved = loading.loaded(name, "its weights", lambda: _built(config, weights, target))
    if own_width is not None:
        # The first dimensions of a padded target's states are those that the head was trained on, the others are 0.
        fc = saved.head.fc.weight.unflatten(1, (len(config.layers), own_width))  # (hidden, layers, own width)
        added = target.config.get_text_config().hidden_size - own_width
        wider = torch.nn.functional.pad(fc, (0, added)).flatten(1)  # (hidden, layers * width)
        saved.head.fc.weight = torch.nn.Parameter(wider, requires_grad=False)
    return saved


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


def schema() -> Any:
    """This imports what declares all entries. Raises EnvironmentProblem where a package that it needs is missing."""
    try:
        from speclab.drafts.heads import schema as declared  # here: other drafts need no pydantic
    except ImportError:
        raise EnvironmentProblem(
            f"pydantic is not installed for this Python, and heads are read with it; type: {install_advice()}"
        ) from None
    return declared


def name_unknown(name: str, found: dict[str, Any], declared: Any) -> None:
    """Say in one line which entries of config.json nobody here knows: they have no effect.

    declared: a class of schema.py, the entries that are read.
    """
    names = schema().unknown(found, declared)
    if names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        shown = ", ".join(name[:60] for name in names[:NAMED])
        note(f"{loading.short_name(name)}: the lab does not know these entries of its {CONFIG}: {shown}{more}")


def config_from(found: dict[str, Any], target: PreTrainedModel, kind: str) -> HeadConfig | BlockConfig:
    """This reads what config.json says. Raises ValueError where it is no head of this kind."""
    saved = found.get("speculators_model_type")
    if saved not in FORMATS[kind]:
        raise ValueError(f"speculators_model_type is {saved!r}; the draft {kind} reads {' and '.join(FORMATS[kind])}")
    entries = schema().checked(found, schema().KINDS[kind])
    return (_feature_config if kind == "feature" else _block_config)(entries, len(decoder_layers(target)))


def _feature_config(said: Any, n_layers: int) -> HeadConfig:
    """Return the config of a feature head. `said` is a schema.Feature."""
    block = decoder_of(said.transformer_layer_config, "llama")
    if "sliding_attention" in (getattr(block, "layer_types", None) or ()):
        raise ValueError("its layer attends to a window; the lab reads heads that attend to the whole text")
    states = said.eagle_aux_hidden_state_layer_ids or [2, n_layers // 2, n_layers - 3]
    return HeadConfig(
        block=block,
        layers=_layers(states, n_layers),
        target_hidden=said.target_hidden_size or block.hidden_size,
        draft_vocab=said.draft_vocab_size,
        **{flag: getattr(said, flag) for flag in FLAGS},
    )


def _block_config(said: Any, n_layers: int) -> BlockConfig:
    """Return the config of a block head. `said` is a schema.Block."""
    block = decoder_of(said.transformer_layer_config, "qwen3")
    if said.mask_token_id >= block.vocab_size:
        raise ValueError(f"mask_token_id is {said.mask_token_id}, and there are {block.vocab_size} ids")
    return BlockConfig(
        block=block,
        layers=_layers(said.aux_hidden_state_layer_ids, n_layers),
        target_hidden=said.target_hidden_size or block.hidden_size,
        draft_vocab=said.draft_vocab_size,
        slots=said.block_size,
        mask=said.mask_token_id,
        markov_rank=said.markov_rank if said.speculators_model_type == "dspark" else 0,
        causal=_is_causal(block, said),
        from_anchor=said.sample_from_anchor,
    )


def decoder_of(said: Any, usual: str) -> Any:
    """This gives the library's config of a decoder. Raises ValueError where the lab does not compute its attention.

    said: schema.Layer. usual: its model_type where that is not said.
    """
    try:
        block = BLOCKS[said.model_type or usual](**said.options())
    except StrictDataclassError as error:  # sizes that do not fit each other
        raise ValueError(" ".join(str(error).split())) from None
    heads, key_heads, size = block.num_attention_heads, block.num_key_value_heads, block.head_dim
    if min(key_heads, size) < 1 or heads % key_heads or size % 2 or size > LARGEST_SIZE:
        raise ValueError(f"it has {heads} heads of size {size} over {key_heads} key-value heads")
    if not all(part.isfinite().all() for part in rotations(block, torch.arange(2.0))):
        raise ValueError(f"rope_parameters turn positions by numbers that are not finite: {block.rope_parameters}")
    return block


def _is_causal(block: Any, said: Any) -> bool:
    """An entry of its own says so, or the layers do: with a window, here as long as the context, they are causal within
    a block.  said: schema.Block"""
    windows = {kind == "sliding_attention" for kind in block.layer_types}
    if windows != {False} and (len(windows) > 1 or (block.sliding_window or 0) < block.max_position_embeddings):
        raise ValueError("some of its layers attend to a window; the lab reads heads that attend to the whole text")
    if said.causal is not None:
        return said.causal
    return windows == {True} and not said.sliding_window_non_causal


def _layers(states: list[int], n_layers: int) -> tuple[int, ...]:
    """Return the target's layers, from 0, whose outputs are these of its states."""
    if not all(1 <= state <= n_layers for state in states):
        raise ValueError(f"it reads states {states} of a target with {n_layers} layers")
    return tuple(state - 1 for state in states)


def _check_fits(draft: str, config: HeadConfig | BlockConfig, target: PreTrainedModel, own_width: int | None) -> None:
    width = own_width or target.config.get_text_config().hidden_size
    if config.target_hidden != width:
        raise UsageProblem(
            f"{draft} reads states of width {config.target_hidden} and the target's are {width} wide; give a head that "
            "was trained for this target"
        )
    n_ids = len(weights_of(target)[0])
    if isinstance(config, BlockConfig) and (config.block.hidden_size, config.block.vocab_size) != (width, n_ids):
        raise UsageProblem(
            f"{draft} works with {config.block.vocab_size} embeddings of width {config.block.hidden_size} and the "
            f"target has {n_ids} of width {width}; give a head that was trained for this target"
        )


def weights_of(target: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Return the target's embedding and its output layer, (vocabulary, hidden) each."""
    modules: list[Any] = [target.get_input_embeddings(), target.get_output_embeddings()]
    table, output = (module.weight.detach() for module in modules)
    return table, output


def _built(config: HeadConfig | BlockConfig, weights: Path, target: PreTrainedModel) -> SavedHead:
    """This makes the module with the weights of this file."""
    table, output = weights_of(target)
    with torch.device("meta"):
        head = FeatureHead(config) if isinstance(config, HeadConfig) else BlockHead(config, table, output)
    tables = {TO_TARGET: (config.draft_vocab,), FROM_TARGET: (config.block.vocab_size,)}
    wanted: dict[str, tuple[int, ...]] = shapes_of(head)
    unused: tuple[str, ...] = UNUSED
    if isinstance(head, BlockHead):
        wanted[HEAD], unused = (config.draft_vocab, config.target_hidden), (*UNUSED, EMBEDDING)
    tensors = read_weights(weights, wanted, {EMBEDDING: table, HEAD: output}, tables, unused)
    offsets, chosen = tensors.pop(TO_TARGET, None), tensors.pop(FROM_TARGET, None)
    ids = _target_ids(config, offsets, chosen, target)
    if ids is not None and tensors[HEAD].data_ptr() == output.data_ptr():
        tensors[HEAD] = output[ids]
    moved = for_target(tensors, target)
    if isinstance(head, BlockHead):
        own = moved.pop(HEAD)
        head.output.weight = output if offsets is None else own
    head.load_state_dict(moved, assign=True)
    return SavedHead(head.eval().requires_grad_(False), ids)


def shapes_of(head: torch.nn.Module) -> dict[str, Shape]:
    """This gives the shapes of its weights by their names."""
    return {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}


def read_weights(
    path: Path,
    wanted: Mapping[str, Shape],
    lent: Mapping[str, Tensor] | None = None,
    tables: Mapping[str, Shape] | None = None,
    unused: tuple[str, ...] = UNUSED,
) -> dict[str, Tensor]:
    """This reads the tensors of a file, which have the shapes that are wanted. Raises ValueError for any other.

    lent: stands in for tensors that are not in the file. tables: whole numbers and marks, which may be missing. unused:
    how the names begin that are passed over. The header says names, shapes and types, so all of these are compared
    before a number is read.
    """
    tables, lent = tables or {}, lent or {}
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if not name.startswith(unused)]  # noqa: SIM118 - it is no dict
        parts = {name: file.get_slice(name) for name in names}
        standing_in = {name: lent[name] for name in lent if name in wanted and name not in parts}
        if TO_TARGET in parts and HEAD in standing_in:  # which rows these are is decided when all tables are read
            standing_in[HEAD] = standing_in[HEAD][: wanted[HEAD][0]]
        there = {name: tuple(tensor.shape) for name, tensor in standing_in.items()}
        there |= {name: tuple(part.get_shape()) for name, part in parts.items()}
        if missing := sorted(wanted.keys() - there.keys()):
            raise ValueError(f"{missing[0]} is missing")
        if others := sorted(there.keys() - wanted.keys() - tables.keys()):
            raise ValueError(f"{others[0]} is a weight that its {CONFIG} has no place for")
        asked = {**tables, **wanted}
        if wrong := sorted(name for name, shape in there.items() if shape != asked[name]):
            raise ValueError(f"{wrong[0]} has the shape {there[wrong[0]]}; its {CONFIG} asks for {asked[wrong[0]]}")
        kinds: dict[str, tuple[str, ...]] = {TO_TARGET: WHOLES, FROM_TARGET: ("BOOL",)}
        types = {name: part.get_dtype() for name, part in parts.items()}
        if odd := sorted(name for name, dtype in types.items() if dtype not in kinds.get(name, FLOATS)):
            raise ValueError(f"{odd[0]} is of the type {types[odd[0]]}, not {kinds.get(odd[0], FLOATS)[0]}")
        return {**standing_in, **{name: file.get_tensor(name) for name in names}}


def for_target(tensors: dict[str, Tensor], target: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights on the target's device and in its number format.

    Raises ValueError where they are not finite there.
    """
    moved = {name: tensor.to(target.device, target.dtype) for name, tensor in tensors.items()}
    if damaged := [name for name, tensor in moved.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{damaged[0]} has numbers that are not finite in {str(target.dtype).removeprefix('torch.')}")
    return moved


def _target_ids(
    config: HeadConfig | BlockConfig, offsets: Tensor | None, chosen: Tensor | None, target: PreTrainedModel
) -> Tensor | None:
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


def write_head(
    folder: Path,
    head: FeatureHead | BlockHead,
    target: str,
    architectures: list[str],
    k: int | None = None,
    ids: Tensor | None = None,
) -> None:
    """Write a head, whole or not at all.

    target: the name in config.json of what it was trained for. k: tokens that an engine should draft with it; a block
    head drafts its block. ids: (draft vocabulary,) the target's id of each of the head's; such a head is written
    without embedding and output layer, which are the target's. None: the ids are the same.
    """
    config = head.config
    block = {key: value for key, value in config.block.to_dict().items() if value is not None}
    if isinstance(config, BlockConfig):
        kind, specific = ("dspark" if config.markov_rank else "dflash"), _block_entries(config, block)
        k, name = config.longest, {"dspark": "DSparkSpeculator", "dflash": "DFlashSpeculator"}[kind]
    else:
        kind, name = "eagle3", "Eagle3Speculator"
        specific = {
            "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in config.layers],
            **{flag: getattr(config, flag) for flag in FLAGS},
        }
    entries = {
        "architectures": [name],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.target_hidden,
        "transformer_layer_config": block,
        **specific,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": k}],
            "verifier": {"name_or_path": target, "architectures": architectures},
        },
    }
    weights = {name: tensor.detach().cpu().clone() for name, tensor in head.state_dict().items()}  # one may be in twice
    if ids is not None:
        weights = {name: tensor for name, tensor in weights.items() if name not in (EMBEDDING, HEAD)}
        weights |= tables_of(ids, config.block.vocab_size)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, save(weights))
    write_whole(folder / CONFIG, json.dumps(entries, indent=1) + "\n")


def tables_of(ids: Tensor, vocab: int) -> dict[str, Tensor]:
    """Return d2t and t2d of a head that proposes these of the target's ids, (draft vocabulary,)."""
    ids = ids.cpu()
    chosen = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return {TO_TARGET: ids - torch.arange(len(ids)), FROM_TARGET: chosen}


def _block_entries(config: BlockConfig, block: dict[str, Any]) -> dict[str, Any]:
    """Return the entries that only a block head has. The layers of a causal one get a window as long as the context."""
    window = {
        "layer_types": ["sliding_attention"] * config.block.num_hidden_layers,
        "use_sliding_window": True,
        "sliding_window": config.block.max_position_embeddings,
    }
    entries = {
        "transformer_layer_config": block | window if config.causal else block,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.layers],
        "block_size": config.slots,
        "mask_token_id": config.mask,
        "sample_from_anchor": config.from_anchor,
        "sliding_window_non_causal": not config.causal,
    }
    if config.markov_rank:
        entries |= {"markov_rank": config.markov_rank, "markov_head_type": "vanilla", "enable_confidence_head": False}
    return entries
