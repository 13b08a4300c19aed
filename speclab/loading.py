"""From a folder or a hub name to a model that is safe to run and fit for cached decoding, or one line of refusal.

Nothing that comes from outside is trusted: no code of a model folder is run, pickled weights may hold tensors only,
and the library cannot ask anybody anything. A model must have all of its weights and pass speclab/model_checks.py.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from speclab import lab_pair
from speclab.errors import EnvironmentProblem, UsageProblem
from speclab.model_checks import check_model
from speclab.terminal import harmless

ROOT = Path(__file__).parent.parent
LAB_PAIR = ROOT / "models" / "lab-pair"
LAB = {role: str(LAB_PAIR / role) for role in ("target", "draft")}
LAB_TARGET, LAB_DRAFT = LAB["target"], LAB["draft"]
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()  # what matters of its warnings is checked here and refused
NO_CODE = {"trust_remote_code": False}
# What `generate` applies and the lab does not, and the values that change nothing. Absent: any value counts.
NEUTRAL = {
    "temperature": (1.0,),
    "top_k": (0,),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "typical_p": (1.0,),
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "diversity_penalty": (0.0,),
    "length_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "guidance_scale": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}
# Entries of a generation config that say nothing about which tokens come next, or that the lab has flags for.
NOT_ABOUT_TOKENS = ("_", "bos_", "eos_", "pad_", "decoder_start_", "max_", "output_", "return_", "use_", "cache_")
NOT_SETTINGS = ("transformers_version", "do_sample", "num_return_sequences", "early_stopping", "assistant", "prefill_")


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder, a hub name or lab:SIZE."""
    name = LAB_TARGET if lab_pair.is_lab_size(name) else name
    return _loaded(name, lambda: AutoTokenizer.from_pretrained(name, **NO_CODE))


def load_model(
    name: str, device: torch.device, dtype: torch.dtype, role: str = "target", copies: int = 1
) -> PreTrainedModel:
    """A checked causal LM on the device, from a folder or the hub, or a padded lab model.

    `copies` of a padded model's weights must fit the memory. EnvironmentProblem: it cannot be loaded, weights are
    missing, or it is not fit for cached decoding.
    """
    if lab_pair.is_lab_size(name):
        n_parameters = lab_pair.parse_size(name)
        small = _whole_model(LAB[role], torch.float32)
        model = lab_pair.padded(small, n_parameters, device, dtype, copies=copies)
    else:
        model = _whole_model(name, dtype).to(device).eval()
    check_model(model)
    return model


def _whole_model(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """All weights from the checkpoint, on the CPU. The library fills what is missing with random numbers."""

    def load() -> tuple[PreTrainedModel, dict]:
        config = AutoConfig.from_pretrained(name, **NO_CODE)
        _refuse_kernels(name, config)
        options = {"dtype": dtype, "weights_only": True, "output_loading_info": True}
        return AutoModelForCausalLM.from_pretrained(name, config=config, **options, **NO_CODE)

    model, report = _loaded(name, load)
    if missing := sorted(report["missing_keys"]):
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise EnvironmentProblem(
            f"{short_name(name)} lacks the weights {', '.join(missing[:3])}{more}: its config.json describes another "
            "model than its weights; download it again, or correct the config"
        )
    eos_ids(model.generation_config)
    return model


def _refuse_kernels(name: str, config: Any) -> None:
    """A config may name attention or expert code of some hub repository, which the library would fetch and run."""
    for key in ("_attn_implementation", "_experts_implementation"):
        chosen = getattr(config, key, None)
        for value in chosen.values() if isinstance(chosen, dict) else [chosen]:
            if "/" in str(value):
                raise EnvironmentProblem(
                    f"the config of {short_name(name)} asks for code from the hub ({value}), which is never run; "
                    f"remove {key.removeprefix('_')} from its config.json"
                )


def eos_ids(settings: GenerationConfig) -> frozenset[int]:
    """The ids that end a text. EnvironmentProblem where the checkpoint names something else than ids."""
    ids = settings.eos_token_id
    ids = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise EnvironmentProblem(
            f"eos_token_id in the model's generation_config.json is {settings.eos_token_id!r}, not an id or a list of "
            "ids; correct that file"
        )
    return frozenset(ids)


def unapplied_settings(settings: GenerationConfig) -> dict[str, Any]:
    """Generation settings of a checkpoint that `generate` applies and the lab does not, without neutral values."""
    chosen = settings.to_diff_dict().items()
    return {
        key: value
        for key, value in chosen
        if value is not None
        and value is not False
        and not key.startswith((*NOT_ABOUT_TOKENS, *NOT_SETTINGS))
        and value not in NEUTRAL.get(key, ())
    }


@contextlib.contextmanager
def settings_of_the_lab(model: PreTrainedModel) -> Iterator[None]:
    """Inside, `model.generate` uses the lab's settings: no penalties, nothing forced, no end token.

    The library fills what a call leaves out from the model's own settings, so those are replaced for a while.
    """
    own = model.generation_config
    model.generation_config = GenerationConfig(pad_token_id=0)
    try:
        yield
    finally:
        model.generation_config = own


def choose_device(name: str) -> tuple[torch.device, str]:
    """A device that is there, and why it was taken."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return (torch.device("cuda"), "a GPU is there") if there["cuda"] else (torch.device("cpu"), "no CUDA GPU found")
    if not there[name]:
        raise EnvironmentProblem(f"--device {name}: PyTorch {torch.__version__} finds no such device; use --device cpu")
    return torch.device(name), "asked for"


def short_name(name: str) -> str:
    """A model's name for tables and records, on one line: never an absolute path."""
    if exists(name):
        path = Path(name).resolve()
        name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
    return " ".join(harmless(name).split())


def exists(name: str) -> bool:
    """Is there such a file or folder? A name that no file can have is none."""
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


def describe_model(name: str, model: PreTrainedModel, role: str = "target") -> str:
    """One line: family, layers, parameters, and whether it is padded."""
    config = model.config.get_text_config()
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    n_layers = getattr(config, "num_hidden_layers", None)
    layers = "layers of several kinds" if n_layers is None else f"{n_layers} layer{'s' * (n_layers != 1)}"
    padded = f"; {lab_pair.describe_padding(lab_pair.parse_size(name), role)}" if lab_pair.is_lab_size(name) else ""
    return f"{name}: {config.model_type}, {layers}, {millions:.1f} M parameters{padded}"


def check_same_tokenizer(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, target_name: str, draft_name: str
) -> None:
    """Same token ids for the same text, or an error. The width of the logits says nothing: families pad it."""
    probe = "def f(x):\n    return {'a': [1, 2.5]}  # naïve Straße 東京\n"
    if target.get_vocab() != draft.get_vocab():
        what = "have different tokenizers, so the draft's ids mean other words to the target"
    elif target(probe).input_ids != draft(probe).input_ids:
        what = "have the same words in their tokenizers and split a text differently"
    else:
        return
    raise UsageProblem(
        f"{draft_name} and {target_name} {what}; choose a --draft of the target's family, or --draft ngram"
    )


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    """`load()` without a standard input to ask; each library below it raises its own kinds of errors."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    if not exists(name) and looks_like_path:
        raise EnvironmentProblem(
            f"there is no model folder {name}; give a folder written by save_pretrained, or a hub name"
        )
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        return load()
    except EnvironmentProblem:
        raise
    except Exception as error:
        where = "from that folder" if exists(name) else "from the hub, and there is no such folder here"
        raise EnvironmentProblem(f"cannot load {name} {where}: {_cause(error)}") from None
    finally:
        sys.stdin = stdin


def _cause(error: Exception) -> str:
    """What went wrong and what to do, from an error of the library. Its advice to trust is not passed on."""
    text = " ".join(str(error).split()) or type(error).__name__
    if "trust_remote_code" in text:
        return "it needs code of its own, which is never run; choose a model whose code is part of transformers"
    if "weights_only" in text or "Weights only load" in text:
        return "its pickled weights hold more than tensors, so they are not read; give weights in safetensors files"
    if text.startswith("Unrecognized configuration class"):
        return "it is no causal language model that transformers knows; choose one"
    first = text[:240] + (" ..." if len(text) > 240 else "")
    return f"{first} -- check the name and the network, or give a local folder"
