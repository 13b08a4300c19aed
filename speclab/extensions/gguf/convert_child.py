"""The conversion of a GGUF file in a process of its own: speclab/extensions/gguf/source.py starts this module.

Standard input has a question as JSON, and the last line of standard output gets the answer. The library trusts the
counts of a file, so this process is bounded in time and memory where the system can bound one.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from speclab.models.outside.chat_child import limit


def convert(file: str, folder: str, n_tensors: int) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder. Raises the library's errors."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as alone:  # so that the library reads no other file beside it
        name = "model.gguf"
        try:
            os.symlink(file, Path(alone) / name)
        except OSError:  # Windows, without the right to do so
            shutil.copyfile(file, Path(alone) / name)
        options: dict[str, Any] = {"gguf_file": name, "trust_remote_code": False, "local_files_only": True}
        config = AutoConfig.from_pretrained(alone, **options)
        tokenizer = AutoTokenizer.from_pretrained(alone, **options)
        if not 1 <= config.get_text_config().num_hidden_layers <= n_tensors:
            raise ValueError(f"it names {config.get_text_config().num_hidden_layers} layers and {n_tensors} tensors")
        loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        options |= {"dtype": torch.float32, "output_loading_info": True}
        model, report = cast(Any, loader).from_pretrained(alone, **options)
        if missing := sorted(report["missing_keys"]):
            raise ValueError(f"it lacks the weights {', '.join(missing[:3])}" + " and more" * (len(missing) > 3))
    if hasattr(model.config, "quantization_config"):  # the weights are plain numbers from here on
        del model.config.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def answered(question: dict[str, Any]) -> dict[str, str]:
    """Convert, and return why there is no model where there is none."""
    limit(question["seconds"], question["memory"])
    try:
        with contextlib.redirect_stdout(sys.stderr):
            convert(question["file"], question["folder"], question["n_tensors"])
    except MemoryError:
        return {"problem": "it needs more memory than a model of its size"}
    except Exception as error:  # whatever the library does with a broken file
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        return {"problem": f"{type(error).__name__}: {first}"}
    return {}


if __name__ == "__main__":
    print(json.dumps(answered(json.load(sys.stdin))))
