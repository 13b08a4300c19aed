"""The conversion of a GGUF file: the library reads it, and entries.py says what the head of the file means."""

import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, cast

import torch
from gguf import GGUFReader, GGUFValueType, dequantize
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedConfig

from speclab.extensions.gguf import entries

LONGEST_LIST = 4096  # of an entry that is read: a number for each layer
OPTIONS: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def convert(file: str, folder: str) -> str:
    """Write the model and the tokenizer of a GGUF file into a folder.  -> the types of its numbers

    Raises the library's errors, and EnvironmentProblem for an entry that the library's model cannot follow.
    """
    reader = GGUFReader(file)
    with tempfile.TemporaryDirectory() as alone:  # so that the library reads no other file beside it
        os.symlink(file, Path(alone) / "model.gguf")
        AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", **OPTIONS).save_pretrained(folder)
        loaded(alone, "model.gguf", reader).save_pretrained(folder)
    return quantisation(reader)


def quantisation(reader: Any) -> str:
    """Return the types with their shares, the largest first: "Q4_1 99%, F32 1%"."""
    types = Counter[str]()
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] += int(tensor.n_elements)
    shares = [(name, n / types.total()) for name, n in types.most_common()]
    return ", ".join(f"{name} {share:.0%}" if share >= 0.01 else f"{name} below 1%" for name, share in shares)


def read_entries(reader: Any) -> dict[str, Any]:
    """Return the numbers, texts and short lists of numbers of the head; None stands for all other lists."""

    def is_read(types: list[Any], data: list[int]) -> bool:
        return types[0] != GGUFValueType.ARRAY or (types[-1] != GGUFValueType.STRING and len(data) <= LONGEST_LIST)

    fields = reader.fields.items()
    return {name: field.contents() if is_read(field.types, field.data) else None for name, field in fields}


def loaded(folder: str, name: str, reader: Any) -> Any:
    """Return the model of a GGUF file. Raises as `convert`."""
    of_file, tensors = read_entries(reader), {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    read = [tensor for tensor in reader.tensors if tensor.name in entries.FACTORS]
    factors = {tensor.name: dequantize(tensor.data, tensor.tensor_type).tolist() for tensor in read}
    settings = PreTrainedConfig.get_config_dict(folder, gguf_file=name, **OPTIONS)[0]
    settings = entries.applied(settings, of_file, tensors, factors)
    config = type(AutoConfig.for_model(settings["model_type"])).from_dict(settings)
    n_layers = config.get_text_config().num_hidden_layers
    if not 1 <= n_layers <= len(tensors):
        raise ValueError(f"it names {n_layers} layers and {len(tensors)} tensors")
    loader = cast(Any, AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM)
    wanted = {"dtype": torch.float32, "output_loading_info": True, "config": config}
    model, report = loader.from_pretrained(folder, gguf_file=name, **OPTIONS, **wanted)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"it lacks the weights {', '.join(missing[:3])}" + " and more" * (len(missing) > 3))
    own = {tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}
    elsewhere = [*entries.FACTORS, *["output.weight"] * config.tie_word_embeddings]  # read above; the embeddings again
    n_extra = of_file.get(f"{of_file['general.architecture']}.nextn_predict_layers", 0)  # which the library drops
    extra = tuple(f"blk.{n_layers + i}." for i in range(n_extra))
    counted = (n for tensor, n in tensors.items() if tensor not in elsewhere and not tensor.startswith(extra))
    if (n_unused := sum(counted) - sum(own.values())) > 0:
        raise ValueError(f"{n_unused} numbers of its tensors have no place in the library's {config.model_type}")
    if hasattr(model.config, "quantization_config"):  # the weights are plain numbers from here on
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    return model
