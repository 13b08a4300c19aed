"""The conversion of a GGUF file: the library reads it, and entries.py says what the head of the file means."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, GGUFValueType, dequantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from speclab.extensions.gguf import entries

OPTIONS: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def convert(file: str, folder: str) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder.

    Raises the library's errors, and EnvironmentProblem for an entry that the library's model cannot follow.
    """
    with tempfile.TemporaryDirectory() as alone:  # so that the library reads no other file beside it
        os.symlink(file, Path(alone) / "model.gguf")
        loaded(alone, "model.gguf").save_pretrained(folder)
        AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", **OPTIONS).save_pretrained(folder)


def loaded(folder: str, name: str) -> Any:
    """Return the model of a GGUF file. Raises as `convert`."""
    reader = GGUFReader(os.path.join(folder, name))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    of_file = {k: None if f.types[0] == GGUFValueType.ARRAY else f.contents() for k, f in reader.fields.items()}
    factors = tensors.pop(entries.FACTORS, None)
    numbers = dequantize(factors.data, factors.tensor_type).tolist() if factors else []
    settings = PreTrainedConfig.get_config_dict(folder, gguf_file=name, **OPTIONS)[0]
    settings = entries.applied(settings, of_file, numbers)
    config = type(AutoConfig.for_model(settings["model_type"])).from_dict(settings)
    if not 1 <= config.num_hidden_layers <= len(tensors):
        raise ValueError(f"it names {config.num_hidden_layers} layers and {len(tensors)} tensors")
    loader: Any = AutoModelForCausalLM
    wanted = {"dtype": torch.float32, "output_loading_info": True, "config": config, **OPTIONS}
    model, report = loader.from_pretrained(folder, gguf_file=name, **wanted)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"it lacks the weights {', '.join(missing[:3])}" + " and more" * (len(missing) > 3))
    if config.tie_word_embeddings:
        tensors.pop("output.weight", None)  # the embeddings again
    own = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
    if (n_unused := sum(int(tensor.n_elements) for tensor in tensors.values()) - sum(own.values())) > 0:
        raise ValueError(f"{n_unused} numbers of its tensors have no place in the library's {config.model_type}")
    if hasattr(model.config, "quantization_config"):  # the weights are plain numbers from here on
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    return model
