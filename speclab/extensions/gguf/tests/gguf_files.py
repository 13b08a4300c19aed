"""GGUF files for tests: a tiny model in float32, and a file again with its matrices quantised."""

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

# Entries of every family.
BASICS = ("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size")
BASICS += ("attention.head_count", "attention.head_count_kv")


def random_model(
    path: Path, model: PreTrainedModel, kind: str, entries: dict[str, Any], tensors: dict[str, Any]
) -> Path:
    """Write a model of any family in float32, without a tokenizer.

    kind: the family as the format calls it. entries: those beside BASICS, without the family's name before
    them. tensors: further ones by name.
    """
    from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map

    from speclab.extensions.gguf.convert import PLACES

    config, writer = model.config, GGUFWriter(path, kind)
    basics = {entry: getattr(config, PLACES[entry], None) for entry in BASICS}
    for entry, value in {**basics, **entries}.items():
        if value is not None:
            _add(writer, entry if entry.startswith(("general.", "tokenizer.")) else f"{kind}.{entry}", value)
    names = get_tensor_name_map(next(a for a, n in MODEL_ARCH_NAMES.items() if n == kind), config.num_hidden_layers)
    for name, weight in model.named_parameters():
        values = weight.detach()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            rows = values.view(heads, 2, -1, values.shape[1])  # llama.cpp rotates neighbours, the library halves
            values = rows.transpose(1, 2).reshape(values.shape)
        if kind in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values = values + 1
        place, _, suffix = name.rpartition(".")
        writer.add_tensor(f"{names.get_name(place)}.{suffix}", values.contiguous().numpy())
    for name, values in tensors.items():
        writer.add_tensor(name, torch.as_tensor(values, dtype=torch.float32).numpy())
    return _written(writer, path)


def _written(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, value: Any) -> None:
    """Add an entry to a file, with the type of its value."""
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(name, value)


def quantised(file: Path, to: Path, kind: str, drop: str = "", entries: dict[str, Any] | None = None) -> Path:
    """Write the file again with its matrices in a quantised type. drop: a tensor that is left out. entries: further
    entries of the head, or the same with other values."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

    reader, writer = GGUFReader(file), GGUFWriter(to, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in {"general.architecture", *(entries or {})}:
            inner = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    for name, value in (entries or {}).items():
        _add(writer, name, value)
    for tensor in reader.tensors:
        if tensor.name == drop:
            continue
        data, type_ = tensor.data.copy(), GGMLQuantizationType[kind]
        if data.ndim == 2 and data.shape[1] % 32 == 0:
            writer.add_tensor(tensor.name, quants.quantize(data, type_), raw_dtype=type_)
        else:
            writer.add_tensor(tensor.name, data)
    return _written(writer, to)
