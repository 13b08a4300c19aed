"""The conversion of a GGUF file in a process of its own: speclab/extensions/gguf/register.py starts this module.

Its words are the file and an empty folder for the model. The library trusts the counts of a file, so this process is
bounded in memory where the system can bound it. Where it cannot convert, the last line on stderr says why.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, cast

from speclab.extensions.gguf import entries, register
from speclab.system.errors import EnvironmentProblem

ROOM = 2**30  # bytes that the conversion needs beside the weights, in memory and on the disk
ADDRESSES = 24 * 2**30  # bytes, of the library with everything that it maps
LONGEST_LIST = 4096  # of an entry that is read: a number for each layer


def convert(file: str, folder: str) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder.

    Raises the library's errors, and EnvironmentProblem for an entry that the library's model cannot follow.
    """
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    reader = GGUFReader(file)
    check_room(sum(int(tensor.n_elements) for tensor in reader.tensors), folder)
    with tempfile.TemporaryDirectory() as alone:  # so that the library reads no other file beside it
        name = "model.gguf"
        try:
            os.symlink(file, Path(alone) / name)
        except OSError:  # Windows, without the right to do so
            shutil.copyfile(file, Path(alone) / name)
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=name, trust_remote_code=False, local_files_only=True)
        loaded(alone, name, reader).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    Path(folder, register.TYPES).write_text(quantisation(reader))


def check_room(n_numbers: int, folder: str) -> None:
    """Raise EnvironmentProblem where the disk or the memory is too small for the weights in float32."""
    import torch

    from speclab.models import memory

    free = {"disk": shutil.disk_usage(folder).free, "memory": memory.free_memory(torch.device("cpu"))}
    for what, needed in (("disk", 4 * n_numbers + ROOM), ("memory", 8 * n_numbers + ROOM)):
        if (there := free[what]) is not None and needed > there:
            raise EnvironmentProblem(
                f"it takes {needed / 2**30:.1f} GiB of {what} as float32, and {there / 2**30:.1f} GiB are free"
            )


def quantisation(reader: Any) -> str:
    """Return the types with their shares, the largest first: "Q4_1 99%, F32 1%"."""
    types = Counter[str]()
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] += int(tensor.n_elements)
    shares = [(name, n / types.total()) for name, n in types.most_common()]
    return ", ".join(f"{name} {share:.0%}" if share >= 0.01 else f"{name} below 1%" for name, share in shares)


def read_entries(reader: Any) -> dict[str, Any]:
    """Return the numbers, texts and short lists of numbers of the head; None stands for all other lists."""
    from gguf import GGUFValueType as Kind

    def is_read(types: list[Any], data: list[int]) -> bool:
        return types[0] != Kind.ARRAY or (types[-1] != Kind.STRING and len(data) <= LONGEST_LIST)

    fields = reader.fields.items()
    return {name: field.contents() if is_read(field.types, field.data) else None for name, field in fields}


def loaded(folder: str, name: str, reader: Any) -> Any:
    """Return the model of a GGUF file. Raises as `convert`."""
    import torch
    from gguf import dequantize
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig

    of_file, tensors = read_entries(reader), {tensor.name: int(tensor.n_elements) for tensor in reader.tensors}
    read = [tensor for tensor in reader.tensors if tensor.name in entries.FACTORS]
    factors = {tensor.name: dequantize(tensor.data, tensor.tensor_type).tolist() for tensor in read}
    options: dict[str, Any] = {"gguf_file": name, "trust_remote_code": False, "local_files_only": True}
    settings = PreTrainedConfig.get_config_dict(folder, **options)[0]
    settings = entries.applied(settings, of_file, tensors, factors)
    config = type(AutoConfig.for_model(settings["model_type"])).from_dict(settings)
    n_layers = config.get_text_config().num_hidden_layers
    if not 1 <= n_layers <= len(tensors):
        raise ValueError(f"it names {n_layers} layers and {len(tensors)} tensors")
    loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    options |= {"dtype": torch.float32, "output_loading_info": True, "config": config}
    model, report = cast(Any, loader).from_pretrained(folder, **options)
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


if __name__ == "__main__":
    try:
        with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such bound, macOS does not keep it
            import resource

            most = ADDRESSES + 64 * os.path.getsize(sys.argv[1])
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        convert(*sys.argv[1:])
    except EnvironmentProblem as problem:
        sys.exit(str(problem))
    except Exception as error:  # whatever the library does with a broken file
        first = (str(error).strip() or "it is broken").splitlines()[0][:160]
        sys.exit(f"{type(error).__name__}: {first}")
