"""From a folder or a hub name to a model that is safe to run and fit for cached decoding, or one line of refusal.

Nothing that comes from outside is trusted: no code of a model folder is run, pickled weights may hold tensors only,
and the library cannot ask anybody anything. A model must have all of its weights and pass
speclab/models/checking/checks.py.
"""

import functools
import io
import os
import socket
import sys
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from transformers import (
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from speclab.models import names, sources
from speclab.models.checking.checks import check_model
from speclab.models.family import Family, family_for, family_of
from speclab.models.names import exists
from speclab.models.outside.generation import eos_ids
from speclab.models.outside.placement import describe
from speclab.models.padded import padding, sizes
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem, Problem, UsageProblem, is_out_of_memory
from speclab.system.paths import DATA
from speclab.system.terminal import harmless, note

LAB_PAIR, LAB_TARGET, LAB_DRAFT = names.LAB_PAIR, names.LAB_TARGET, names.LAB_DRAFT
LAB = {"target": LAB_TARGET, "draft": LAB_DRAFT}
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()  # what matters of its warnings is checked here and refused
NO_CODE = {"trust_remote_code": False}
PROBE = "def f(x):\n    return {'a': [1, 2.5]}  # naïve Straße 東京\n"  # a text that tokenizers split differently
LONGEST_WORD = 24  # characters of a word that an error names
# Words in the library's errors -> what they mean here, and what to do. The library's own advice is to trust.
PICKLED = ("its pickled weights hold more than tensors, so they are not read", "give weights in safetensors files")
KNOWN_ERRORS = {
    "trust_remote_code": ("it needs code of its own, which is never run", "choose a model of the library itself"),
    "weights_only": PICKLED,
    "Weights only load": PICKLED,
    "ignore_mismatched_sizes": ("their tensors differ in shape", "download it again, or correct its config.json"),
    "connect to": (
        "no such folder is here, and the hub cannot be reached",
        "check the name and the network, or give a local folder",
    ),
}


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder, a hub name or lab:SIZE."""
    if sizes.is_lab_size(name):
        sizes.parse_name(name)
        name = LAB_TARGET
    load_config(name)

    def load() -> PreTrainedTokenizerBase:
        tokenizer = AutoTokenizer.from_pretrained(sources.place_of(name), **NO_CODE)
        if not tokenizer.get_vocab() or not tokenizer(PROBE).input_ids:
            raise ValueError("it makes no tokens of a text")
        return tokenizer

    return loaded(name, "its tokenizer", load)


def family_named(name: str) -> tuple[Family, PreTrainedConfig]:
    """Return the family of a folder, a hub name or lab:SIZE, and its config. Raises EnvironmentProblem where nothing
    decodes it."""
    config = load_config(LAB_TARGET if sizes.is_lab_size(name) else name)
    family = family_for(config)
    family.check_config(config)
    return family, config


def load_model(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    role: str = "target",
    copies: int = 1,
    device_map: str | None = None,
) -> PreTrainedModel:
    """Return a checked model on the device, from a folder or the hub, or a padded lab model. Memory must hold `copies`
    of a padded model's weights. Raises EnvironmentProblem where it cannot be loaded, weights are missing, or it is not
    fit for cached decoding."""
    if sizes.is_lab_size(name):
        small = _whole_model(LAB[role], torch.float32, torch.device("cpu"))
        model = padding.padded(small, sizes.parse_name(name), device, dtype, copies, role)
    else:
        model = _whole_model(name, dtype, device, device_map).eval()
    check_model(model)
    return model


def _whole_model(name: str, dtype: torch.dtype, device: torch.device, device_map: str | None = None) -> PreTrainedModel:
    """Return all weights from the checkpoint, on the device. The library fills what is missing with random numbers."""
    family, config = family_named(name)
    place = sources.place_of(name)
    if os.path.isfile(Path(place) / "generation_config.json"):  # the library goes on without one that is damaged
        loaded(place, "its generation_config.json", lambda: GenerationConfig.from_pretrained(place))
    options = {"dtype": dtype, "weights_only": True, "output_loading_info": True, **NO_CODE}
    quantised = getattr(config, "quantization_config", None) is not None
    if device_map or quantised:  # the library puts such weights where they stay
        options |= {"device_map": device_map or {"": str(device)}}
    read = functools.partial(family.loader.from_pretrained, place, config=config, **options)
    model, report = loaded(place, "its config.json and weights", read)
    if missing := _first_three(report["missing_keys"]):
        raise EnvironmentProblem(
            f"{short_name(name)} lacks the weights {missing}: its config.json describes another model than its "
            "weights; download it again, or correct the config"
        )
    if unused := _first_three(report["unexpected_keys"]):
        note(f"{short_name(name)}: its config.json uses no weights {unused}; they are left out")
    eos_ids(model.generation_config)
    sources.remember(name, model)
    return model if "device_map" in options else model.to(device)


def _first_three(names: set[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more


def load_config(name: str) -> PreTrainedConfig:
    """Return the config of a model with layers that asks for no code from the hub."""
    check_place(name)

    def load() -> PreTrainedConfig:
        config = AutoConfig.from_pretrained(sources.place_of(name), **NO_CODE)
        if (n_layers := getattr(config.get_text_config(), "num_hidden_layers", 1)) < 1:
            raise ValueError(f"num_hidden_layers is {n_layers}")
        return config

    config = loaded(name, "its config.json", load)
    _refuse_kernels(name, config)
    return config


def check_place(name: str) -> None:
    """Refuse a name that is neither a model folder nor can be one of the hub, and files that would never end."""
    advice, why = "give a folder written by save_pretrained, or a hub name", ""
    if source := sources.source_of(name):
        source.check(name)
    elif os.path.isdir(name):
        odd = [p for p in Path(name).iterdir() if os.path.exists(p) and not os.path.isfile(p) and not os.path.isdir(p)]
        if odd:
            why = f"{odd[0]} is a device or a pipe, no file of a model"
        elif os.path.lexists(Path(name) / "adapter_config.json"):
            why, advice = f"the folder {name} holds an adapter", "merge it into its model and save that"
        elif not os.path.isfile(Path(name) / "config.json"):
            why = f"the folder {name} holds no model, there is no config.json in it"
    elif os.path.lexists(name):
        why = f"{name} is no folder"
    elif name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        why = f"there is no model folder {name}"
    else:
        ask_no_hub_without_network()
    if why:
        raise EnvironmentProblem(f"{why}; {advice}")


@functools.cache
def ask_no_hub_without_network() -> None:
    """Let the library take files that it has already where the hub's name is unknown to the network: it would ask for
    half a minute. Behind a proxy nothing is known."""
    hub = urllib.parse.urlsplit(constants.ENDPOINT)
    if urllib.request.getproxies():
        return
    try:
        socket.getaddrinfo(hub.hostname, hub.port or 443)
    except OSError:
        constants.HF_HUB_OFFLINE = True


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


def choose_device(name: str) -> tuple[torch.device, str]:
    """Return a device that is there, and why it was taken."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return (torch.device("cuda"), "a GPU is there") if there["cuda"] else (torch.device("cpu"), "no CUDA GPU found")
    if not there[name]:
        raise EnvironmentProblem(f"PyTorch {torch.__version__} finds no device {name} here; use the device cpu")
    return torch.device(name), "asked for"


def short_name(name: str) -> str:
    """Return a model's name for tables and records, on one line: never an absolute path."""
    if exists(name):
        path = Path(name).resolve()
        name = path.relative_to(DATA).as_posix() if path.is_relative_to(DATA) else path.name
    return " ".join(harmless(name).split())


def describe_model(name: str, model: PreTrainedModel, role: str = "target") -> str:
    """Return one line: family, layers, parameters, padding, and where its weights lie if not in one place."""
    millions, layers = sum(p.numel() for p in model.parameters()) / 1e6, family_of(model).layers_in_words(model)
    padded = sizes.describe_padding(name, role) if sizes.is_lab_size(name) else ""
    more = "".join(f"; {said}" for said in (padded, sources.about(model), describe(model)) if said)
    return f"{name}: {model.config.get_text_config().model_type}, {layers}, {millions:.1f} M parameters{more}"


def check_same_tokenizer(
    target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase, target_name: str, draft_name: str
) -> int:
    """Refuse a draft whose ids mean other words than the target's.  -> n: ids 0 to n - 1 mean the same to both. One of
    the two may have more ids at the end. The width of the logits says nothing: families pad it."""
    target_words, draft_words = words_by_id(target), words_by_id(draft)
    n = min(max(target_words), max(draft_words)) + 1
    others = [i for i in range(n) if target_words.get(i) != draft_words.get(i)]
    probes = [tokenizer(PROBE).input_ids for tokenizer in (target, draft)]
    if others:
        theirs, ours = (
            " or ".join(repr(word[:LONGEST_WORD]) for word in words.get(others[0], [])) or "no word"
            for words in (draft_words, target_words)
        )
        first = f"{others[0]} is {theirs} to the draft, {ours} to the target"
        what = f"have different tokenizers, which disagree about {len(others)} of {n} ids ({first})"
    elif probes[0] != probes[1] and max(map(max, probes)) < n:  # a word that one of them lacks may be the reason
        what = "have the same words in their tokenizers and split a text differently"
    else:
        return n
    extensions.load()
    kinds = "".join(f"{usage}, " for usage in names.WITH_OTHER_TOKENIZERS)
    raise UsageProblem(f"{draft_name} and {target_name} {what}; choose a draft of the target's family, {kinds}or ngram")


def words_by_id(tokenizer: PreTrainedTokenizerBase) -> dict[int, list[str]]:
    """Return the words of each id, sorted: an added token may stand beside a word."""
    words: dict[int, list[str]] = {}
    for word, i in sorted(tokenizer.get_vocab().items()):
        words.setdefault(i, []).append(word)
    return words


def loaded(name: str, what: str, load: Callable[[], Any], advice: str | None = None) -> Any:
    """Call `load()` without a standard input to ask; each library below it raises its own kinds of errors. advice: what
    the user can do where it cannot be used."""
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load()
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, Problem):
            raise
        text = " ".join(str(error).split())
        advice = advice or "download it again, choose another model, or check the name and the network"
        if known := next((phrase for phrase in KNOWN_ERRORS if phrase in text), None):
            text, advice = KNOWN_ERRORS[known]
        elif not isinstance(error, (OSError, ValueError)) or not text:
            text = f"{type(error).__name__}: {text}"
        text = text[:240] + " ..." * (len(text) > 240)
        raise EnvironmentProblem(f"cannot load {name}: {what} cannot be used: {text}; {advice}") from None
    finally:
        sys.stdin = stdin
