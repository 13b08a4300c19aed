"""Adapters for early exit in folders and on the hub, in a format of the lab's own: `speculators` has none for them.

config.json says after which layer of which target an adapter reads, and model.safetensors holds its weights; the output
layer is the target's and is not in it. Nothing in them is trusted, as with heads (speclab/drafts/heads/files.py).
"""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from speclab.drafts.heads.files import (
    CONFIG,
    CORRECT,
    decoder_of,
    entry,
    read_config,
    read_files,
    read_tensors,
    weights_of,
    write_both,
    written,
)
from speclab.engines.eager import decoder_layers
from speclab.extensions.exits.adapter import ExitAdapter, ExitConfig
from speclab.models import loading
from speclab.system.errors import UsageProblem

FORMAT = "speculative-decoding-lab early exit 1"  # and its version


def read_adapter(name: str, target: PreTrainedModel, padded: bool = False) -> ExitAdapter:
    """Return the adapter of a folder or a hub name, for this target, on its device and in its number format.

    padded: the target is padded (lab:SIZE), and the adapter was trained for the model that it was padded from: it reads
    what that computes, the first dimensions of the states. Raises EnvironmentProblem where it cannot be read, and
    UsageProblem where it belongs to another target.
    """
    found, weights = read_files(name)
    config = loading.loaded(name, f"its {CONFIG}", lambda: config_from(found), CORRECT)
    has = len(decoder_layers(target)), *weights_of(target)[1].shape[::-1]
    wants = config.target_layers, config.block.hidden_size, config.block.vocab_size
    if any(a < b for a, b in zip(has, wants, strict=True)) or (has != wants and not padded):
        raise UsageProblem(
            f"--draft exit:{loading.short_name(name)} belongs to a target with {_in_words(wants)}; this one has "
            f"{_in_words(has)}; give an adapter that was trained for it"
        )
    return loading.loaded(name, "its weights", lambda: _built(config, weights, target))


def _in_words(sizes: tuple[int, ...]) -> str:
    layers, width, vocab = sizes
    return f"{layers} layers of width {width} and {vocab} ids"


def config_from(found: dict[str, Any]) -> ExitConfig:
    """This reads what config.json says. Raises ValueError where it is no adapter."""
    if found.get("format") != FORMAT:
        raise ValueError(f"its format is {found.get('format')!r}; --draft exit reads {FORMAT!r}")
    layer, n_layers = (entry(found, name, int) for name in ("exit_layer", "target_layers"))
    block = decoder_of(found, "llama")
    if not 0 < layer < n_layers or block.num_hidden_layers != 1 or block.model_type != "llama":
        raise ValueError(
            f"it exits after layer {layer} of {n_layers}, with {block.num_hidden_layers} layers of {block.model_type} "
            "of its own; the lab reads adapters of one layer of llama, behind a layer that is not the last"
        )
    return ExitConfig(layer, n_layers, block)


def exit_layer_of(name: str) -> int | None:
    """Return N of an adapter in a folder; None where there is no adapter that can be read."""
    try:
        return config_from(read_config(Path(name) / CONFIG)).exit_layer
    except Exception:  # the library checks entries, and raises errors of its own
        return None


def _built(config: ExitConfig, weights: Path, target: PreTrainedModel) -> ExitAdapter:
    """This makes the module with the weights of this file."""
    output = weights_of(target)[1][: config.block.vocab_size, : config.block.hidden_size]
    with torch.device("meta"):
        adapter = ExitAdapter(config, output)
    adapter.load_state_dict(read_tensors(weights, adapter, target)[0], assign=True)
    return adapter.eval().requires_grad_(False)


def write_adapter(folder: Path, adapter: ExitAdapter, target: str, architectures: list[str]) -> None:
    """Write an adapter. target: the name in config.json of what it was trained for."""
    config = adapter.config
    entries = {
        "format": FORMAT,
        "exit_layer": config.exit_layer,
        "target_layers": config.target_layers,
        "target": {"name_or_path": target, "architectures": architectures},
        "transformer_layer_config": written(config.block),
    }
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in adapter.state_dict().items()}
    write_both(folder, entries, weights)
