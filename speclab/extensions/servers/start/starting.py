"""Servers as processes of this machine: what starts them, and that they end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from speclab.extensions.servers.ask.client import Client
from speclab.models import sources
from speclab.system.errors import EnvironmentProblem
from speclab.system.paths import ROOT

START_SECONDS, POLL_SECONDS, END_SECONDS = 300.0, 0.2, 10.0
LOOKUP, MODEL = "ngram", "draft_model"  # vLLM's words; the first one is that of --models, too
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}  # GiB, and no report to anybody
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"


def llama(program: str, target: Path, slots: int = 1) -> list[str]:
    """Return the command of a plain llama-server. slots: requests that it answers at a time, 2,048 positions each. It
    reads every prompt, like vLLM below: what a cache has spared one server would look like speed of the other one."""
    words = [program, "-m", str(target), "--metrics", "--host", "127.0.0.1", "-c", str(2048 * slots), "-np", str(slots)]
    return [*words, "--no-webui", "--no-cache-prompt", "-t", str(max(1, len(os.sched_getaffinity(0)) // 2))]


def drafted(draft: Path, draft_length: int) -> list[str]:
    """Return the flags with which llama-server drafts: with a second model always k tokens, and with LOOKUP those that
    followed the last three tokens before."""
    if str(draft) == LOOKUP:
        words = ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"]
        return [*words, "--spec-ngram-simple-size-m", str(draft_length)]
    words = ["-md", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(draft_length)]
    return [*words, "--spec-draft-p-min", "0"]


def vllm(program: str | None, target: Path, draft: Path, draft_length: int) -> tuple[list[str], list[str]]:
    """Return the command of a plain vLLM server, and the flags with which it speculates. target: as --target takes it,
    so that a GGUF file is converted. draft: a model, a head in the `speculators` format, or LOOKUP, which looks up as
    many tokens as the lab's own lookup does."""
    words = [program or str(VLLM_PYTHON), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", sources.place_of(str(target))]
    words += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--generation-config", "vllm"]
    settings: dict[str, Any] = {"method": _method(draft), "num_speculative_tokens": draft_length}
    settings |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4} if str(draft) == LOOKUP else {"model": str(draft)}
    return [*words, "--no-enable-prefix-caching"], ["--speculative-config", json.dumps(settings)]


def _method(draft: Path) -> str:
    """Return vLLM's word for a kind of draft. A head says it itself, and whatever else is a folder is a model."""
    if str(draft) == LOOKUP:
        return LOOKUP
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return str(json.loads((draft / "config.json").read_bytes()).get("speculators_model_type") or MODEL)
    return MODEL


@contextlib.contextmanager
def started(command: Sequence[str], port: int) -> Iterator[str]:
    """Run a server for as long as the block, and give its address once it answers. EnvironmentProblem where it does not
    start, with the last line that it has written, or where the port is taken: another server would answer there."""
    _check_free(port)
    url, environment = f"http://127.0.0.1:{port}", {**os.environ, **ENVIRONMENT}
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        except OSError as error:
            why = f"{command[0]} cannot be run: {error.strerror}"
            raise EnvironmentProblem(f"{why}; install it, or give the place of another one") from None
        try:
            _wait(process, url, log)
            yield url
        finally:
            _end(process)


def _check_free(port: int) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port whose server has just ended is free
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            raise EnvironmentProblem(
                f"port {port} cannot be taken: {error.strerror}; end what listens there, or choose another port"
            ) from None


def _end(process: subprocess.Popen) -> None:
    """End a server and what it has started: vLLM's engine outlives its server otherwise."""
    for signal_, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _wait(process: subprocess.Popen, url: str, log) -> None:
    end, client = time.monotonic() + START_SECONDS, Client(url)
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(EnvironmentProblem):
            if client.json("/v1/models")["data"] and client.page("/health") is not None:
                return
        time.sleep(POLL_SECONDS)
    log.seek(0)
    lines = log.read(2**20).decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "nothing")
    raise EnvironmentProblem(f"the server at {url} does not start; it wrote last: {' '.join(last.split())[:200]}")
