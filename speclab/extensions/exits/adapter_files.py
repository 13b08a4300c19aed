"""Adapters for early exit in folders and on the hub, in a format of the lab's own: `speculators` has none for them.

config.json says after which layer of which target an adapter reads, and model.safetensors holds its weights; the output
layer is the target's and is not in it. Nothing in them is trusted, as with heads (speclab/drafts/heads/files.py).
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from transformers import PreTrainedModel

from speclab.drafts.heads.files import (
    CONFIG,
    CORRECT,
    WEIGHTS,
    decoder_of,
    for_target,
    name_unknown,
    read_config,
    read_files,
    read_weights,
    schema,
    shapes_of,
    weights_of,
)
from speclab.engines.eager import decoder_layers
from speclab.extensions.exits.adapter import ExitAdapter, ExitConfig
from speclab.models import loading
from speclab.system.errors import UsageProblem
from speclab.system.files import write_whole

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
    name_unknown(name, found, _entries())
    return loading.loaded(name, "its weights", lambda: _built(config, weights, target))


def _in_words(sizes: tuple[int, ...]) -> str:
    layers, width, vocab = sizes
    return f"{layers} layers of width {width} and {vocab} ids"


def config_from(found: dict[str, Any]) -> ExitConfig:
    """This reads what config.json says. Raises ValueError where it is no adapter."""
    if found.get("format") != FORMAT:
        raise ValueError(f"its format is {found.get('format')!r}; --draft exit reads {FORMAT!r}")
    said = schema().checked(found, _entries())
    return ExitConfig(said.exit_layer, said.target_layers, decoder_of(said.transformer_layer_config, "llama"))


def _entries() -> Any:
    """Return the entries of an adapter, declared with pydantic, which other drafts do not need."""
    from speclab.extensions.exits.entries import AdapterEntries

    return AdapterEntries


def exit_layer_of(name: str) -> int | None:
    """Return N of an adapter in a folder; None where there is no adapter that can be read."""
    try:
        return config_from(read_config(Path(name) / CONFIG)).exit_layer
    except (OSError, ValueError):
        return None


def _built(config: ExitConfig, weights: Path, target: PreTrainedModel) -> ExitAdapter:
    """This makes the module with the weights of this file."""
    output = weights_of(target)[1][: config.block.vocab_size, : config.block.hidden_size]
    with torch.device("meta"):
        adapter = ExitAdapter(config, output)
    adapter.load_state_dict(for_target(read_weights(weights, shapes_of(adapter)), target), assign=True)
    return adapter.eval().requires_grad_(False)


def write_adapter(folder: Path, adapter: ExitAdapter, target: str, architectures: list[str]) -> None:
    """Write an adapter. target: the name in config.json of what it was trained for."""
    config = adapter.config
    entries = {
        "format": FORMAT,
        "exit_layer": config.exit_layer,
        "target_layers": config.target_layers,
        "target": {"name_or_path": target, "architectures": architectures},
        "transformer_layer_config": {key: value for key, value in config.block.to_dict().items() if value is not None},
    }
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in adapter.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / WEIGHTS, save(weights))
    write_whole(folder / CONFIG, json.dumps(entries, indent=1) + "\n")
