"""Tiny adapters behind the first layers of a tiny target: random ones, and one that was trained for a moment."""

import copy
import functools
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from speclab.drafts.heads.files import CONFIG, WEIGHTS, weights_of
from speclab.engines.eager import decoder_layers
from speclab.extensions.exits.early_exit import ExitAdapter, ExitConfig
from tests.heads import N_LEARNT, block, distance, in_format, learnt_texts, read
from tests.tiny_models import tiny


def tiny_adapter(target: PreTrainedModel, exit_layer: int = 1, seed: int = 0, std: float = 0.3) -> ExitAdapter:
    """A random adapter behind the first layers of a tiny target; its matrices have this spread."""
    output = weights_of(target)[1]
    sizes = block(output.shape[1], vocab=len(output))
    config = ExitConfig(exit_layer, len(decoder_layers(target)), sizes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapter = ExitAdapter(config, output).to(output.dtype)
        for weight in adapter.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=std)
    return adapter.eval()


def write_adapter(folder: Path, adapter: ExitAdapter) -> None:
    """Write an adapter as the lab's is written."""
    config = adapter.config
    entries = {"exit_layer": config.exit_layer, "target_layers": config.target_layers}
    folder.mkdir()
    save_file(adapter.state_dict(), folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(entries | {"transformer_layer_config": config.block.to_dict()}))


@functools.cache
def trained_exit(family: str = "llama") -> tuple:
    """A tiny target of four layers, an adapter behind the second one that has learnt three of its texts by heart, and
    four texts, (4, 9 + N_NEW). In float32, as the engine `c` takes them."""
    kinds = {"layer_types": ["sliding_attention", "full_attention"] * 2} if "gemma3" in family else {}
    target = tiny(family, **kinds, **{"n_layer" if family == "gpt2" else "num_hidden_layers": 4}).requires_grad_(False)
    texts = learnt_texts(target)
    adapter = tiny_adapter(target, 2, std=0.1)
    stepper = torch.optim.Adam(adapter.train().parameters(), 0.01)
    with torch.enable_grad():
        states, likely = read(target, adapter, texts[:N_LEARNT])
        for _ in range(60):
            stepper.zero_grad()
            distance(likely, adapter.text_logits(states)).backward()
            stepper.step()
    adapter = in_format(adapter.eval().requires_grad_(False), torch.float32)
    return copy.deepcopy(target).float(), adapter, texts
