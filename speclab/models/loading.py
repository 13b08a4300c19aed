"""From a folder or a hub name to a model that is safe to run and fit for cached decoding, or one line of refusal.

Nothing that comes from outside is trusted: no code of a model folder is run, pickled weights may hold tensors only,
and the library cannot ask anybody anything. A model must have all of its weights and pass checks.py.
"""

import contextlib
import functools
import io
import os
import socket
import sys
import urllib.request
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from huggingface_hub.constants import ENDPOINT
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from speclab.models import padding
from speclab.models.checks import check_model
from speclab.models.family import Family, family_for
from speclab.models.memory import why_eager
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem, Problem, UsageProblem, is_out_of_memory
from speclab.system.files import DATA
from speclab.system.terminal import harmless, note

MODELS = DATA / "models"
LAB_PAIR = MODELS / "lab-pair"
LAB_TARGET, LAB_DRAFT = str(LAB_PAIR / "target"), str(LAB_PAIR / "draft")
DEVICES, DTYPES = ("auto", "cpu", "cuda", "mps"), ("auto", "float32", "bfloat16")
LAB = {"target": LAB_TARGET, "draft": LAB_DRAFT}
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()  # what matters of its warnings is checked here and refused
PROBE = "def f(x):\n    return {'a': [1, 2.5]}  # naïve Straße 東京\n"  # a text that tokenizers split differently
ADVICE = "download it again, give a model in safetensors, or check the name and the network"
# Settings that change what `generate` writes and that the lab does not apply, with the values that change nothing.
UNAPPLIED = dict.fromkeys(["temperature", "top_p", "typical_p", "repetition_penalty", "num_beams", "guidance_scale"], 1)
UNAPPLIED |= dict.fromkeys(["encoder_repetition_penalty", "top_h"], 1)
UNAPPLIED |= dict.fromkeys(["top_k", "min_p", "no_repeat_ngram_size", "min_new_tokens", "bad_words_ids"], 0)
UNAPPLIED |= dict.fromkeys(["suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "sequence_bias"], 0)
UNAPPLIED |= dict.fromkeys(["begin_suppress_tokens", "min_length", "epsilon_cutoff", "eta_cutoff", "stop_strings"], 0)
UNAPPLIED |= dict.fromkeys(["encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"], 0)


@dataclass(frozen=True)
class Source:
    """A kind of names that are no folder and no hub name: an extension makes a folder for one, loaded like others."""

    usage: str  # how it is typed, for a help
    owns: Callable[[str], bool]  # whether a name is one of this kind
    check: Callable[[str], object]  # quickly raises a Problem where nothing can be had for a name
    folder: Callable[[str], str]  # the model folder, made where it is missing, or a Problem
    describe: Callable[[str, PreTrainedModel], str]  # what the weights of a loaded model are, a part of a sentence


SOURCES: list[Source] = []  # the register.py of an extension adds to it


def source_of(name: str) -> Source | None:
    if os.path.isdir(name):
        return None
    extensions.modules("register")
    return next((source for source in SOURCES if source.owns(name)), None)


def place_of(name: str) -> str:
    source = source_of(name)
    return source.folder(name) if source else name


@functools.cache
def rules_for(place: str) -> dict[str, bool]:
    """Return what the library is told of every load: no code of a model runs; and where no address is known for the
    hub, only its cache is looked into, since its client would try for half a minute for each file."""
    finds_hub = os.path.isdir(place) or bool(urllib.request.getproxies())
    with contextlib.suppress(OSError):
        finds_hub = finds_hub or bool(socket.getaddrinfo(urlsplit(ENDPOINT).hostname, 443))
    return {"trust_remote_code": False, "local_files_only": not finds_hub}


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    if name.startswith(padding.PREFIX):
        padding.millions_of(name)
        name = LAB_TARGET
    load_config(name)
    place = place_of(name)
    tokenizer = loaded(name, "its tokenizer", lambda: AutoTokenizer.from_pretrained(place, **rules_for(place)))
    loaded(name, "its tokenizer", lambda: tokenizer(PROBE).input_ids[0])  # it makes tokens of a text
    return tokenizer


def family_named(name: str) -> tuple[Family, PreTrainedConfig]:
    """Return the family of a model and its config. Raises EnvironmentProblem where nothing decodes it."""
    config = load_config(LAB_TARGET if name.startswith(padding.PREFIX) else name)
    family = family_for(config)
    if config.is_encoder_decoder and family.one_text:
        raise EnvironmentProblem(
            f"{config.model_type} is an encoder-decoder, and no extension here decodes those; choose a causal language "
            "model"
        )
    return family, config


def load_model(
    name: str, device: torch.device, dtype: torch.dtype, role: str = "target", device_map: str | None = None
) -> PreTrainedModel:
    """Return a checked model on the device, from a folder or the hub, or a padded lab model. Raises EnvironmentProblem
    where it cannot be loaded, weights are missing, or it is not fit for cached decoding."""
    if name.startswith(padding.PREFIX):
        if device_map:
            raise UsageProblem(f"{name} is made on one device; leave out --device-map")
        small = _whole_model(LAB[role], torch.float32, torch.device("cpu"))
        model = padding.padded(small, name, device, dtype, role)
    else:
        model = _whole_model(name, dtype, device, device_map).eval()
    check_model(model)
    return model


def _whole_model(name: str, dtype: torch.dtype, device: torch.device, device_map: str | None = None) -> PreTrainedModel:
    """Return all weights from the checkpoint, on the device. The library fills what is missing with random numbers."""
    family, config = family_named(name)
    place = place_of(name)
    if os.path.isfile(Path(place) / "generation_config.json"):  # the library goes on without one that is damaged
        loaded(place, "its generation_config.json", lambda: GenerationConfig.from_pretrained(place))
    options = {"dtype": dtype, "weights_only": True, "output_loading_info": True, **rules_for(place)}
    if device_map or getattr(config, "quantization_config", None):  # the library puts such weights where they stay
        options["device_map"] = device_map or {"": str(device)}
    read = functools.partial(family.loader.from_pretrained, place, config=config, **options)
    model, report = loaded(place, "its config.json and weights", read)
    if missing := sorted(report["missing_keys"]):
        what = f"{short_name(name)} lacks the weights {', '.join(missing[:3])}: its config.json describes another model"
        raise EnvironmentProblem(f"{what}; download it again, or correct the config")
    if unused := sorted(report["unexpected_keys"]):
        note(f"{short_name(name)}: its config.json uses no weights {', '.join(unused[:3])}; they are left out")
    eos_ids(model.generation_config)
    if source := source_of(name):
        model.about = source.describe(name, model)
    return model if "device_map" in options else model.to(device)


def load_config(name: str) -> PreTrainedConfig:
    check_place(name)
    place = place_of(name)
    config = loaded(name, "its config.json", lambda: AutoConfig.from_pretrained(place, **rules_for(place)))
    _refuse_kernels(name, config)
    return config


def check_place(name: str) -> None:
    """Refuse a name that is neither a model folder nor can be one of the hub."""
    why = ""
    if source := source_of(name):
        source.check(name)
    elif os.path.isdir(name):
        if os.path.lexists(Path(name) / "adapter_config.json"):
            why = f"the folder {name} holds an adapter, which must be merged into its model"
        elif not os.path.isfile(Path(name) / "config.json"):
            why = f"there is no config.json in the folder {name}"
    elif os.path.lexists(name) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        why = f"there is no model folder {name}"
    if why:
        raise EnvironmentProblem(f"{why}; give a folder written by save_pretrained, or a hub name")


def _refuse_kernels(name: str, config: Any) -> None:
    """Use kernels of PyTorch only: a config may name others, which the library would fetch from the hub and run."""
    for key in ("_attn_implementation", "_experts_implementation"):
        chosen = getattr(config, key, None)
        if "/" in str(chosen):
            raise EnvironmentProblem(
                f"the config of {short_name(name)} asks for code from the hub ({chosen}), which is never run; "
                f"remove {key.removeprefix('_')} from its config.json"
            )
        if chosen not in (None, "eager", "sdpa"):
            setattr(config, key, None)  # the library's own choice
    for part in getattr(config, "sub_configs", {}):  # of a text model inside another, and so on
        if (inner := getattr(config, part, None)) is not None:
            _refuse_kernels(name, inner)


def choose_device(name: str) -> torch.device:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    name = name if name != "auto" else "cuda" if there["cuda"] else "cpu"
    if not there[name]:
        raise EnvironmentProblem(f"PyTorch {torch.__version__} finds no device {name} here; use the device cpu")
    return torch.device(name)


def short_name(name: str) -> str:
    """Return a model's name for tables and records, on one line: never an absolute path."""
    if os.path.exists(name):
        path = Path(name).resolve()
        name = path.relative_to(DATA).as_posix() if path.is_relative_to(DATA) else path.name
    return " ".join(harmless(name).split())


def describe_model(name: str, model: PreTrainedModel, role: str = "target") -> str:
    """Return one line: family, layers, parameters, padding, and what is special about its weights."""
    millions, config = sum(p.numel() for p in model.parameters()) / 1e6, model.config.get_text_config()
    layers = f"{n} layer{'s' * (n != 1)}, " if (n := getattr(config, "num_hidden_layers", 0)) else ""
    padded = padding.describe_padding(name, role) if name.startswith(padding.PREFIX) else ""
    about: str = getattr(model, "about", "")  # what its source says of the weights
    more = "".join(f"; {said}" for said in (padded, about, why_eager(model)) if said)
    return f"{name}: {config.model_type}, {layers}{millions:.1f} M parameters{more}"


def check_same_tokenizer(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, target_name: str, draft_name: str
) -> int:
    """Refuse a draft whose ids mean other words.  -> n: ids 0 to n - 1 mean the same to both, and one may have more"""
    # An added token may stand beside a word of the same id.
    ours, theirs = ({i: word for word, i in sorted(tokenizer.get_vocab().items())} for tokenizer in (target, draft))
    n = min(max(ours), max(theirs)) + 1
    other = next((i for i in range(n) if ours.get(i) != theirs.get(i)), None)
    probes = [tokenizer(PROBE).input_ids for tokenizer in (target, draft)]
    if other is not None:
        one, two = (repr(words[other][:24]) if other in words else "no word" for words in (theirs, ours))
        what = f"have different tokenizers: id {other} is {one} to the draft, {two} to the target"
    elif probes[0] != probes[1] and max(map(max, probes)) < n:  # a word that one of them lacks may be the reason
        what = "have the same words in their tokenizers and split a text differently"
    else:
        return n
    way_out = "choose a draft of the target's family, one of --draft help for other tokenizers, or ngram"
    raise UsageProblem(f"{draft_name} and {target_name} {what}; {way_out}")


def loaded(name: str, what: str, load: Callable[[], Any], advice: str = ADVICE) -> Any:
    """Call `load()` without a standard input to ask, whose library may raise any error. advice: what a user can do."""
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load()
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, Problem):
            raise
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:240]}"
        if "trust_remote_code" in str(error):  # the library's own advice is to trust
            text = "it needs code of its own, which is never run"
        raise EnvironmentProblem(f"cannot load {name}: {what} cannot be used: {text}; {advice}") from None
    finally:
        sys.stdin = stdin


def eos_ids(settings: GenerationConfig) -> frozenset[int]:
    """Return the ids that end a text. Raises EnvironmentProblem where the checkpoint names something else than ids."""
    ids = settings.eos_token_id
    ids = ids if isinstance(ids, list | tuple) else [] if ids is None else [ids]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise EnvironmentProblem(
            f"eos_token_id in the model's generation_config.json is {settings.eos_token_id!r}, not an id or a list of "
            "ids; correct that file"
        )
    return frozenset(ids)


def unapplied_settings(settings: GenerationConfig) -> str:
    """Return the generation settings of a checkpoint that `generate` applies and the lab does not."""
    given = settings.to_diff_dict()
    return ", ".join(f"{name} {given[name]}" for name, none in UNAPPLIED.items() if given.get(name) not in (None, none))
