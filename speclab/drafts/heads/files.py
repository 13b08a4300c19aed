"""Reads heads from folders and the hub, in the `speculators` checkpoint format that serving engines load.

config.json says what a head is and which of the target's layers it reads (counted from 1 there: the output of layer i
is state i + 1); model.safetensors holds its weights. `d2t` is there where the head proposes fewer ids than the target
has: d2t[i] + i is the target's id of the head's id i; t2d marks the same ids, and is not read. An embedding or an
output layer that is not there is the target's.

Nothing in them is trusted, and no code is run. The library checks the types of a decoder's entries; those that the lab
does not compute are refused. Names and shapes of weights are held against the config before a number is read.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel, Qwen3Config
from transformers.utils import cached_file

from speclab.drafts.heads.feature import FeatureHead, HeadConfig
from speclab.drafts.heads.parts import rotations
from speclab.engines.eager import decoder_layers
from speclab.models import loading
from speclab.system.errors import UsageProblem
from speclab.system.files import read_bytes

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BLOCKS: dict[str, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
TO_TARGET = "d2t"  # the table from the head's ids to the target's
MOST_LAYERS, LARGEST_HEAD = 64, 1024  # numbers of a head of attention
LARGEST_CONFIG = 2**20  # bytes
UNUSED = ("t2d", "verifier_", "confidence_head.")  # the last are weights of training, and of rules for stopping
CORRECT = f"correct its {CONFIG}, or give another head"
FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
ROPE_TYPES = (None, "default", "linear", "llama3", "yarn")  # the same for a position, however long the text is
# Each of these changes what a head computes, unless it is not there, 1 or empty. The lab computes none of them.
CHANGES = ["logit_scale", "embedding_scale", "final_logit_softcapping", "attn_logit_softcapping"]
CHANGES += ["quantization_config", "partial_rotary_factor"]


class SavedHead(NamedTuple):
    """A head as it was read."""

    head: Any
    ids: Tensor | None  # (draft vocabulary,) the target's id of each of the head's; None: the same


def read_head(name: str, target: PreTrainedModel, own_width: int | None = None) -> SavedHead:
    """Return the feature head of a folder or a hub name, for this target, on its device and in its number format.

    own_width: of the model that the target was padded from, which the head was trained for; None where the target is
    not padded. Raises EnvironmentProblem where it cannot be read, and UsageProblem where it belongs to another target.
    """
    found, weights = read_files(name)
    config = loading.loaded(name, f"its {CONFIG}", lambda: feature_config(found, len(decoder_layers(target))), CORRECT)
    draft, width = f"feature:{loading.short_name(name)}", target.config.get_text_config().hidden_size
    if own_width is not None and (config.norm_before_fc or config.fc_norm):
        raise UsageProblem(f"{draft}: a padded target is read only by a head like the lab's own; give feature")
    if config.target_hidden != (own := own_width or width):
        raise UsageProblem(f"{draft} reads states of width {config.target_hidden}, not {own}; give another head")
    saved = read_weights(name, weights, lambda: FeatureHead(config), target)
    if own_width is not None:
        # The first dimensions of a padded target's states are those that the head was trained on, the others are 0.
        fc = saved.head.fc.weight.unflatten(1, (len(config.layers), own_width))  # (hidden, layers, own width)
        wider = torch.nn.functional.pad(fc, (0, width - own_width)).flatten(1)  # (hidden, layers * width)
        saved.head.fc.weight = torch.nn.Parameter(wider, requires_grad=False)
    return saved


def feature_config(found: dict[str, Any], n_layers: int) -> HeadConfig:
    """Return what config.json says of a feature head. Raises ValueError where it is none. n_layers: the target's."""
    check_format(found, "feature", ("eagle3",))
    block = decoder_of(found, "llama")
    if block.num_hidden_layers != 1 or "sliding_attention" in (getattr(block, "layer_types", None) or ()):
        raise ValueError("its decoder is not one layer of llama or qwen3 that attends to the whole text")
    usual = [2, n_layers // 2, n_layers - 3]
    return HeadConfig(
        block=block,
        layers=layers_of(entry(found, "eagle_aux_hidden_state_layer_ids", list, usual), n_layers),
        target_hidden=entry(found, "target_hidden_size", int, block.hidden_size),
        draft_vocab=entry(found, "draft_vocab_size", int),
        **{flag: entry(found, flag, bool, False) for flag in FLAGS},
    )


def read_files(name: str) -> tuple[dict[str, Any], Path]:
    """Return what config.json of a folder or a hub name holds, and the file of weights, whose header can be read."""

    def load() -> tuple[dict[str, Any], Path]:
        offline = loading.rules_for(name)["local_files_only"]
        config, weights = (Path(str(cached_file(name, file, local_files_only=offline))) for file in (CONFIG, WEIGHTS))
        with safe_open(weights, "pt"):
            return read_config(config), weights

    return loading.loaded(name, f"its {CONFIG} and weights", load)


def read_config(path: Path) -> dict[str, Any]:
    """Read config.json. Raises ValueError for what is no object."""
    if not isinstance(found := json.loads(read_bytes(path, LARGEST_CONFIG)), dict):
        raise ValueError(f"{CONFIG} holds no object")
    return found


def check_format(found: dict[str, Any], kind: str, formats: tuple[str, ...]) -> None:
    if (said := found.get("speculators_model_type")) not in formats:
        raise ValueError(f"speculators_model_type is {said!r}; the draft {kind} reads {' and '.join(formats)}")


def entry(found: dict[str, Any], name: str, kind: type, usual: Any = None) -> Any:
    """Return an entry of config.json, or what is usual where it is null or left out. Raises ValueError."""
    value: Any = usual if found.get(name) is None else found[name]
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise ValueError(f"{name} is {value!r:.60}, which is missing, negative or no {kind.__name__}")
    return value


def decoder_of(found: dict[str, Any], usual: str) -> Any:
    """Return the library's config of the decoder that config.json describes. usual: its model_type where that is not
    said. Raises an error where the lab does not compute what it says."""
    said = entry(found, "transformer_layer_config", dict)
    kind = said.get("model_type") or usual
    turns = [said.get(name) or {} for name in ("rope_parameters", "rope_scaling")]
    for part in (found, said, *turns):
        if changed := [name for name in CHANGES if part.get(name) not in (None, 1, {})]:
            raise ValueError(f"{changed[0]} is {part[changed[0]]!r:.60}, which the lab does not compute; leave it out")
    if kind not in BLOCKS:
        raise ValueError(f"its model_type is {kind!r:.60}; the lab computes {' and '.join(BLOCKS)}")
    for turn in turns:
        if (rope := turn.get("rope_type", turn.get("type"))) not in ROPE_TYPES:
            raise ValueError(f"its rope_type is {rope!r:.60}; the lab computes {', '.join(filter(None, ROPE_TYPES))}")
    if (n := entry(said, "num_hidden_layers", int, 1)) > MOST_LAYERS:
        raise ValueError(f"num_hidden_layers is {n}; the lab reads at most {MOST_LAYERS}")
    block = BLOCKS[kind].from_dict(said)
    if block.num_attention_heads % block.num_key_value_heads or not 0 < block.head_dim <= LARGEST_HEAD:
        raise ValueError("the number or the size of its heads of attention is none that the lab computes")
    rotations(block, torch.arange(2.0))  # entries that are missing are found here
    return block


def layers_of(states: list[int], n_layers: int) -> tuple[int, ...]:
    """Return the target's layers, from 0, whose outputs are these of its states."""
    if not states or not all(type(state) is int and 1 <= state <= n_layers for state in states):
        raise ValueError(f"it reads states {states!s:.60} of a target with {n_layers} layers")
    return tuple(state - 1 for state in states)


def weights_of(target: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Return the target's embedding and its output layer, (vocabulary, hidden) each."""
    modules: Any = target.get_input_embeddings(), target.get_output_embeddings()
    return modules[0].weight.detach(), modules[1].weight.detach()


def read_weights(
    name: str, path: Path, make: Callable[[], Any], target: PreTrainedModel, unused: tuple[str, ...] = UNUSED
) -> SavedHead:
    """Return the head that `make` makes without numbers, with those of this file. unused: how the names of weights
    begin that are passed over. Raises EnvironmentProblem for other names or shapes, or numbers that are not finite."""

    def built() -> SavedHead:
        with torch.device("meta"):
            head = make()
        tensors, ids = _read_tensors(path, head, target, unused)
        head.load_state_dict(tensors, assign=True)
        return SavedHead(head.eval().requires_grad_(False), ids)

    return loading.loaded(name, "its weights", built)


def _read_tensors(
    path: Path, head: Any, target: PreTrainedModel, unused: tuple[str, ...]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """Return the weights of a head, and the target's id of each of its ids, None where they are the same."""
    asked = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    n, vocab, (table, output) = head.config.draft_vocab, head.config.block.vocab_size, weights_of(target)
    with safe_open(path, "pt") as file:
        names = [name for name in file.keys() if not name.startswith(unused)]  # noqa: SIM118
        there = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        lent = {EMBEDDING: table, HEAD: output[:n]}  # which rows is decided when the table of ids is read
        own = {name: tensor for name, tensor in lent.items() if name in asked and name not in there}
        there |= {name: tuple(tensor.shape) for name, tensor in own.items()}
        if TO_TARGET in there or n != vocab:
            asked[TO_TARGET] = (n,)
        for name in sorted(asked.keys() | there.keys()):
            wanted, found = asked.get(name, "no such weight"), there.get(name, "missing")
            if found != wanted:
                raise ValueError(f"{name} is {found}; its {CONFIG} asks for {wanted}")
        tensors, ids = own | {name: file.get_tensor(name) for name in names}, None
    if TO_TARGET in tensors:
        ids = torch.arange(n) + tensors.pop(TO_TARGET).long()
        if ids.min() < 0 or ids.max() >= vocab or len(ids.unique()) < n:
            raise ValueError("its d2t table names ids that are not the target's, or one twice")
        if HEAD in own:
            tensors[HEAD] = output[ids]
        ids = ids.to(target.device)
    for name, tensor in tensors.items():
        tensors[name] = tensor.to(target.device, target.dtype)
        if not tensors[name].isfinite().all():
            raise ValueError(f"{name} has numbers that are not finite in {target.dtype}")
    return tensors, ids
