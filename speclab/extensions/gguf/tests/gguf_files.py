"""GGUF files for tests: a tiny model in float32, and the same with its matrices quantised."""

from pathlib import Path

from speclab.models.outside import written_gguf


def plain(folder: Path, path: Path) -> bytes:
    """Write a model folder to a file in float32.  -> its bytes"""
    return written_gguf.write(folder, path).read_bytes()


def quantised(file: Path, to: Path, kind: str, drop: str = "", rename: dict[str, int] | None = None) -> Path:
    """Write the file again with its matrices in a quantised type. drop: a tensor that is left out. rename: entries of
    the head with other numbers."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

    reader, writer = GGUFReader(file), GGUFWriter(to, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = (rename or {}).get(name, field.contents())
            inner = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, field.types[0], inner)
    for tensor in reader.tensors:
        if tensor.name == drop:
            continue
        data, type_ = tensor.data.copy(), GGMLQuantizationType[kind]
        if data.ndim == 2 and data.shape[1] % 32 == 0:
            writer.add_tensor(tensor.name, quants.quantize(data, type_), raw_dtype=type_)
        else:
            writer.add_tensor(tensor.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return to
