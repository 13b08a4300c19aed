"""Heads in folders and on the hub, in the `speculators` checkpoint format that serving engines load.

config.json says what a head is and which of the target's layers it reads (counted from 1 there: the output of layer i
is state i + 1); model.safetensors holds its weights. `d2t` is there where the head proposes fewer ids than the target
has: d2t[i] + i is the target's id of the head's id i. An embedding that is not there is the target's; a block head's
always is.

Nothing in them is trusted: sizes in config.json only count where the weights have them, and no code is run.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.utils import cached_file

from speclab.drafts.heads.block import BlockConfig, BlockHead
from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.padding import can_be_padded, padded_head, read_wider
from speclab.drafts.heads.parts import rotations
from speclab.models import loading
from speclab.models.backends.eager import decoder_layers
from speclab.system.errors import UsageProblem
from speclab.system.files import whole_folders, write_whole

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMATS = {"feature": ("eagle3",), "block": ("dflash", "dspark")}  # speculators_model_type of each kind of draft
BLOCKS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
TO_TARGET, FROM_TARGET = "d2t", "t2d"  # tables between the head's ids and the target's
ROTARY = ("default", "linear", "llama3", "yarn")  # the same for a position, however long the text is
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
LARGEST_CONFIG = 2**20  # bytes
MOST_LAYERS, MOST_SLOTS = 64, 256  # of a block head, several times more than any published one has
LARGEST_SIZE = 1024  # of an attention head
UNUSED = ("verifier_", "confidence_head.")  # of training, and of rules for stopping
VERSION = "0.9.0"  # of the format


class SavedHead(NamedTuple):
    """A head as it was read. ids: (draft vocabulary,) the target's id of each of the head's; None: the same."""

    head: FeatureHead | BlockHead
    ids: Tensor | None


def read_head(
    name: str, target: PreTrainedModel, kind: str = "feature", own_width: int | None = None, as_wide: bool = False
) -> SavedHead:
    """The head of a folder or a hub name, for this target, on its device and in its number format.

    kind: of draft, feature or block. own_width: of the model that the target was padded from, which the head was
    trained for; None where the target is not padded. as_wide: pad the head, too. EnvironmentProblem where it cannot be
    read; UsageProblem where it belongs to another target.
    """
    found, tensors = read_files(name)
    config = loading.loaded(name, "its config.json", lambda: config_from(found, target, kind))
    if own_width is not None and (not isinstance(config, HeadConfig) or not can_be_padded(config)):
        raise UsageProblem(f"--draft {kind}:{loading.short_name(name)}: only a head like the lab's own can be padded")
    _check_fits(f"--draft {kind}:{loading.short_name(name)}", config, target, own_width)
    saved = loading.loaded(name, "its weights", lambda: _built(config, tensors, target))
    if as_wide:
        return saved._replace(head=padded_head(saved.head, target.config))
    if own_width is not None:
        width = target.config.get_text_config().hidden_size
        fc = read_wider(saved.head.fc.weight, len(config.layers), width)
        saved.head.fc.weight = torch.nn.Parameter(fc, requires_grad=False)
    return saved


def read_files(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """config.json and the weights of a folder or a hub name. EnvironmentProblem where they cannot be read."""

    def load() -> tuple[dict, dict[str, Tensor]]:
        config_file, weights_file = (Path(str(cached_file(name, file))) for file in (CONFIG, WEIGHTS))
        if config_file.stat().st_size > LARGEST_CONFIG:
            raise ValueError(f"{CONFIG} is larger than any head's")
        found = json.loads(config_file.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"{CONFIG} is not an object")
        return found, load_file(weights_file)

    return loading.loaded(name, "its config.json and weights", load)


def config_from(found: dict[str, Any], target: PreTrainedModel, kind: str) -> HeadConfig | BlockConfig:
    """What config.json says. ValueError or KeyError where it is no head of this kind."""
    saved = found.get("speculators_model_type")
    if saved not in FORMATS[kind]:
        raise ValueError(f"speculators_model_type is {saved!r}; --draft {kind} reads {' and '.join(FORMATS[kind])}")
    return (_feature_config if kind == "feature" else _block_config)(found, len(decoder_layers(target)))


def _feature_config(found: dict[str, Any], n_layers: int) -> HeadConfig:
    layer = dict(found["transformer_layer_config"])
    block_class = BLOCKS.get(layer.pop("model_type", "llama"))
    if block_class is None or layer.get("num_hidden_layers", 1) != 1:
        raise ValueError("its decoder is not one layer of llama or qwen3")
    block = checked_decoder(block_class(**layer))
    if "sliding_attention" in (getattr(block, "layer_types", None) or ()):
        raise ValueError("its layer attends to a window; the lab reads heads that attend to the whole text")
    states = found.get("eagle_aux_hidden_state_layer_ids") or [2, n_layers // 2, n_layers - 3]
    return HeadConfig(
        block=block,
        layers=_layers(states, n_layers),
        target_hidden=found.get("target_hidden_size") or block.hidden_size,
        draft_vocab=int(found["draft_vocab_size"]),
        **{flag: bool(found.get(flag, False)) for flag in FLAGS},
    )


def _block_config(found: dict[str, Any], n_layers: int) -> BlockConfig:
    layer = dict(found["transformer_layer_config"])
    if layer.pop("model_type", "qwen3") != "qwen3" or not 1 <= layer.get("num_hidden_layers", 0) <= MOST_LAYERS:
        raise ValueError(f"its decoder is not 1 to {MOST_LAYERS} layers of qwen3")
    block = checked_decoder(Qwen3Config(**layer))
    dspark = found["speculators_model_type"] == "dspark"
    if dspark and found.get("markov_head_type", "vanilla") != "vanilla":
        raise ValueError(f"markov_head_type is {found['markov_head_type']!r}; the lab reads vanilla")
    if found.get("projector_type", "dflash") != "dflash":
        raise ValueError(f"projector_type is {found['projector_type']!r}; the lab reads dflash")
    config = BlockConfig(
        block=block,
        layers=_layers(found["aux_hidden_state_layer_ids"], n_layers),
        target_hidden=found.get("target_hidden_size") or block.hidden_size,
        draft_vocab=int(found["draft_vocab_size"]),
        slots=int(found["block_size"]),
        mask=int(found["mask_token_id"]),
        markov_rank=int(found.get("markov_rank", 256)) if dspark else 0,
        causal=_is_causal(block, found),
        from_anchor=bool(found.get("sample_from_anchor", False)),  # as engines take it where it is not said
    )
    if not 1 <= config.longest < MOST_SLOTS or not 0 <= config.mask < block.vocab_size or config.markov_rank < 0:
        raise ValueError(f"block_size {config.slots} or mask_token_id {config.mask} or markov_rank is out of range")
    return config


def checked_decoder(block: Any) -> Any:
    """A decoder whose attention this lab computes. ValueError for any other."""
    heads, key_heads, size = block.num_attention_heads, block.num_key_value_heads, block.head_dim
    if min(heads, key_heads, size) < 1 or heads % key_heads or size % 2 or size > LARGEST_SIZE:
        raise ValueError(f"it has {heads} heads of size {size} over {key_heads} key-value heads")
    if not block.rms_norm_eps >= 0:
        raise ValueError(f"rms_norm_eps is {block.rms_norm_eps}")
    rotary = block.rope_parameters.get("rope_type")
    if rotary not in ROTARY:
        raise ValueError(f"rope_type is {rotary!r}; the lab reads {', '.join(ROTARY)}")
    cos, _ = rotations(block, torch.zeros(1))  # the library names what its settings lack
    if cos.shape[-1] != size:
        raise ValueError(f"it rotates {cos.shape[-1]} of the {size} numbers of an attention head; the lab rotates all")
    return block


def _is_causal(block: Any, found: dict[str, Any]) -> bool:
    """The format has no word for it: layers with a window, here as long as the context, are causal within a block."""
    windows = {kind == "sliding_attention" for kind in block.layer_types}
    if windows == {False}:
        return False
    if len(windows) > 1 or (block.sliding_window or 0) < block.max_position_embeddings:
        raise ValueError("some of its layers attend to a window; the lab reads heads that attend to the whole text")
    return not found.get("sliding_window_non_causal", False)


def _layers(states: Any, n_layers: int) -> tuple[int, ...]:
    """The target's layers, from 0, whose outputs are these of its states."""
    if not states or not all(type(state) is int and 1 <= state <= n_layers for state in states):
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
    """The target's embedding and its output layer, (vocabulary, hidden) each."""
    modules: list[Any] = [target.get_input_embeddings(), target.get_output_embeddings()]
    table, output = (module.weight.detach() for module in modules)
    return table, output


def _built(config: HeadConfig | BlockConfig, tensors: dict[str, Tensor], target: PreTrainedModel) -> SavedHead:
    """The module with these weights; what its config says and the weights lack is an error, before any memory is
    taken."""
    tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(UNUSED)}
    offsets, _ = tensors.pop(TO_TARGET, None), tensors.pop(FROM_TARGET, None)
    table, output = weights_of(target)
    if offsets is None:
        tensors.setdefault(HEAD, output)
    head: FeatureHead | BlockHead
    if isinstance(config, BlockConfig):
        own = tensors.pop(HEAD).to(target.device, target.dtype)
        if own.shape != (config.draft_vocab, config.target_hidden):
            raise ValueError(f"size mismatch: its output layer is {tuple(own.shape)}")
        tensors.pop(EMBEDDING, None)
        with torch.device("meta"):
            head = BlockHead(config, table, own if offsets is not None else output)
    else:
        tensors.setdefault(EMBEDDING, table)
        with torch.device("meta"):
            head = FeatureHead(config)
    head.load_state_dict(for_target(tensors, target), assign=True)
    return SavedHead(head.eval().requires_grad_(False), _target_ids(config, offsets, target))


def for_target(tensors: dict[str, Tensor], target: PreTrainedModel) -> dict[str, Tensor]:
    """The weights on the target's device and in its number format. ValueError where they are not finite there."""
    moved = {name: tensor.to(target.device, target.dtype) for name, tensor in tensors.items()}
    if damaged := [name for name, tensor in moved.items() if not tensor.isfinite().all()]:
        raise ValueError(f"{damaged[0]} has numbers that are not finite in {str(target.dtype).removeprefix('torch.')}")
    return moved


def _target_ids(config: HeadConfig | BlockConfig, offsets: Tensor | None, target: PreTrainedModel) -> Tensor | None:
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


def write_head(
    folder: Path, head: FeatureHead | BlockHead, target: str, architectures: list[str], k: int | None = None
) -> None:
    """Write a head whose ids are the target's, whole or not at all.

    target: the name in config.json of what it was trained for. k: tokens that an engine should draft with it; a block
    head drafts its block.
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
    with whole_folders(folder) as (new,):
        write_whole(new / WEIGHTS, save(weights))
        write_whole(new / CONFIG, json.dumps(entries, indent=1) + "\n")


def _block_entries(config: BlockConfig, block: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of a block head alone; a causal one's layers get a window as long as the context."""
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
