"""The conversion of a GGUF file in a process of its own: speclab/extensions/gguf/source.py starts this module.

Standard input has a question as JSON, and the last line of standard output gets the answer. The library trusts the
counts of a file, so this process is bounded in time and memory where the system can bound one.
"""

import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from speclab.extensions.gguf import entries
from speclab.system.errors import EnvironmentProblem


def limit(seconds: int, memory: int) -> None:
    """Bound what this process may take from here on, where the system can. A stricter bound stays.

    On Linux the kernel ends it after `seconds` of processor time and refuses it more than `memory` bytes of addresses.
    macOS does not enforce the second one, and Windows has neither.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    until = math.ceil(time.process_time()) + seconds
    for what, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, until, until + 1),
        (resource.RLIMIT_AS, memory, memory),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(what, (soft, hard))


def convert(question: dict[str, Any]) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder.

    Raises the library's errors, and EnvironmentProblem for an entry that the library's model cannot follow.
    """
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as alone:  # so that the library reads no other file beside it
        name = "model.gguf"
        try:
            os.symlink(question["file"], Path(alone) / name)
        except OSError:  # Windows, without the right to do so
            shutil.copyfile(question["file"], Path(alone) / name)
        tokenizer = AutoTokenizer.from_pretrained(alone, gguf_file=name, trust_remote_code=False, local_files_only=True)
        model = loaded(alone, name, question["entries"], question["tensors"])
    model.save_pretrained(question["folder"])
    tokenizer.save_pretrained(question["folder"])


def loaded(folder: str, name: str, of_file: dict[str, Any], tensors: dict[str, int]) -> Any:
    """Return the model of a GGUF file, whose head has these entries and sizes of tensors. Raises as `convert`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig

    options: dict[str, Any] = {"gguf_file": name, "trust_remote_code": False, "local_files_only": True}
    factors, settings = {}, PreTrainedConfig.get_config_dict(folder, **options)[0]
    if not tensors.keys().isdisjoint(entries.FACTORS):
        from gguf import GGUFReader, dequantize

        read = [tensor for tensor in GGUFReader(Path(folder) / name).tensors if tensor.name in entries.FACTORS]
        factors = {tensor.name: dequantize(tensor.data, tensor.tensor_type).tolist() for tensor in read}
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


def answered(question: dict[str, Any]) -> dict[str, str]:
    """Convert, and return why there is no model where there is none."""
    limit(question["seconds"], question["memory"])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            convert(question)
    except MemoryError:
        return {"problem": "it needs more memory than a model of its size"}
    except EnvironmentProblem as error:
        return {"problem": str(error)}
    except Exception as error:  # whatever the library does with a broken file
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        return {"problem": f"{type(error).__name__}: {first}"}
    return {}


if __name__ == "__main__":
    print(json.dumps(answered(json.load(sys.stdin))))
