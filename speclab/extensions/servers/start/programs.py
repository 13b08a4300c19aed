"""The programs that are started as servers, llama-server and vLLM, and what they draft with: weights, or a lookup.

A further program is one more class here. No process is started here.
"""

import contextlib
import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speclab.models import loading, sources
from speclab.system.files import shown
from speclab.system.paths import ROOT


@dataclass(frozen=True)
class Program(ABC):
    """A program, and what it is told. place: where it is; empty: where it usually is. slots: requests that it answers
    at a time, where it has to be told."""

    place: str = ""
    slots: int = 1
    usual, how = "", ""  # where it usually is, and how to get it

    @property
    def command(self) -> str:
        """Return the program as it is started."""
        return self.place or self.usual

    def missing(self) -> str:
        """Return what is not there and how to get it; empty where the program can be run."""
        return "" if shutil.which(self.command) else f"{shown(Path(self.command))} is not there; {self.how}"

    @abstractmethod
    def plain(self, target: str) -> list[str]:
        """Return the command of a server that does not speculate, and reads every prompt: what a cache has spared one
        of two servers would look like speed of the other one."""

    @abstractmethod
    def lookup(self, k: int) -> list[str]:
        """Return the flags with which it looks up k tokens a round in the text so far."""

    @abstractmethod
    def weights(self, place: Path, k: int) -> list[str]:
        """Return the flags with which it drafts k tokens a round with a model, or with a head that it knows."""

    @abstractmethod
    def readable(self, model: str, folder: Path) -> str:
        """Return a model in the form that it reads. model: as somebody has typed it. folder: where a file may be
        written."""

    def both(self, target: str, draft: "Served", k: int) -> list[list[str]]:
        """Return the commands of two servers of one target: the first drafts k tokens a round, the other one none."""
        plain = self.plain(target)
        return [[*plain, *draft(self, k)], plain]


class LlamaServer(Program):
    """llama.cpp's server, which reads GGUF files."""

    usual, how = "llama-server", "build llama.cpp, and give its llama-server with --program"

    def plain(self, target: str) -> list[str]:
        """Return the command of a server that does not speculate; each slot has 2,048 positions."""
        slots, threads = str(self.slots), str(max(1, len(os.sched_getaffinity(0)) // 2))
        words = [self.command, "-m", target, "--metrics", "--host", "127.0.0.1", "-c", str(2048 * self.slots)]
        return [*words, "-np", slots, "--no-webui", "--no-cache-prompt", "-t", threads]

    def lookup(self, k: int) -> list[str]:
        """Return the flags with which it drafts what followed the last three tokens before."""
        words = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"]
        return [*words, "--spec-ngram-simple-size-m", str(k)]

    def weights(self, place: Path, k: int) -> list[str]:
        """Return the flags with which it drafts k tokens with a second model, however unlikely they are."""
        words = ["-md", str(place), "--spec-type", "draft-simple", "--spec-draft-n-max", str(k)]
        return [*words, "--spec-draft-p-min", "0"]

    def readable(self, model: str, folder: Path) -> str:
        """Return the model of a folder as a GGUF file in `folder`; what is no folder is one already."""
        if not Path(model).is_dir():
            return model
        import torch  # here: what it and these import is slow

        from speclab.extensions.servers.start import written_gguf

        weights = loading.load_model(model, torch.device("cpu"), torch.float32)
        path = Path(tempfile.mkdtemp(dir=folder)) / f"{Path(model).name}.gguf"
        return str(written_gguf.write_model(weights, loading.load_tokenizer(model), path))


class Vllm(Program):
    """vLLM in the Python that `make vllm` makes, or in another one."""

    usual, how = str(ROOT / ".venv-vllm" / "bin" / "python"), "a Python that has vLLM is wanted; type: make vllm"

    def plain(self, target: str) -> list[str]:
        """Return the command of a server that does not speculate. target: as --target takes it, so that a GGUF file is
        converted; the server calls it by that name, and not by the folder of the conversion."""
        words = [self.command, "-m", "vllm.entrypoints.openai.api_server"]
        words += ["--model", sources.place_of(target), "--served-model-name", target]
        words += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--generation-config", "vllm"]
        return [*words, "--no-enable-prefix-caching"]

    def lookup(self, k: int) -> list[str]:
        """Return the flags with which it looks up as many tokens as the lab's own lookup does."""
        return _settings("ngram", k, prompt_lookup_min=2, prompt_lookup_max=4)

    def weights(self, place: Path, k: int) -> list[str]:
        """Return the flags for a model, or for a head in the `speculators` format, which says itself what it is."""
        method = "draft_model"
        with contextlib.suppress(OSError, ValueError, AttributeError):
            method = json.loads((place / "config.json").read_bytes()).get("speculators_model_type") or method
        return _settings(str(method), k, model=str(place))

    def readable(self, model: str, folder: Path) -> str:
        """Return the model as it is."""
        return model


def _settings(method: str, k: int, **more: Any) -> list[str]:
    return ["--speculative-config", json.dumps({"method": method, "num_speculative_tokens": k, **more})]


# What a server drafts with: the flags with which a program drafts k tokens a round with it.
Served = Callable[[Program, int], list[str]]


def lookup(program: Program, k: int) -> list[str]:
    """Draft with a lookup in the text so far."""
    return program.lookup(k)


def weights(place: Path) -> Served:
    """Draft with the weights in a file or a folder."""
    return lambda program, k: program.weights(place, k)


def read(word: str) -> Served:
    """Return what somebody has typed: `ngram`, which is a lookup, or the place of weights."""
    return lookup if word == "ngram" else weights(Path(word))
