"""Starts two servers, with the lab's pair or with your files: one speculates and one does not, until Ctrl-C.

python -m speclab.extensions.servers.start llama --program llama-server     # llama.cpp's, from your PATH
python -m speclab.extensions.servers.start llama --models TARGET DRAFT --slots 8      # GGUF files, or folders
python -m speclab.extensions.servers.start vllm --models smollm2 ngram      # after `make vllm`; ngram: a lookup
python -m speclab.extensions.servers --url http://127.0.0.1:8000 --plain-url http://127.0.0.1:8001 --raw
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from speclab.cli import parsing
from speclab.extensions.servers.client import Server
from speclab.models import loading
from speclab.system import startup
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import shown
from speclab.system.paths import ROOT
from speclab.system.terminal import say

PROGRAMS = {  # where it usually is, and how to get it
    "llama": ("llama-server", "build llama.cpp, and give its llama-server with --program"),
    "vllm": (str(ROOT / ".venv-vllm" / "bin" / "python"), "a Python that has vLLM is wanted; type: make vllm"),
}
START_SECONDS, POLL_SECONDS, END_SECONDS = 300.0, 0.2, 10.0
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}  # GiB, and no report to anybody


@reports_problems
def main(argv: list[str] | None = None) -> int:
    parser = parsing.make_parser(__doc__, "python -m speclab.extensions.servers.start")
    parser.add_argument("engine", choices=PROGRAMS)
    parser.add_argument("--program", default="", help="llama-server, or the Python that has vLLM (.venv-vllm's)")
    parser.add_argument("--models", nargs=2, metavar="PATH", help="target, draft or ngram (else the lab's)")
    parser.add_argument("-k", "--draft-length", type=parsing.at_least(1, 64), default=4, metavar="K", help="default: 4")
    parser.add_argument("--slots", type=parsing.at_least(1, 64), default=1, help="requests at a time of llama-server")
    parser.add_argument("--port", type=parsing.at_least(1024, 65534), default=8000, help="and the next one for plain")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        servers = commands(args, Path(folder))
        with started(servers, args.port) as (url, plain):
            words = f"--url {url} --plain-url {plain}"
            words += "" if args.models else " --raw"  # the lab's pair has no chat template
            lines = [f"{shlex.join(one)} --port {args.port + place}" for place, one in enumerate(servers)]
            say("\n".join([*lines, f"ask them: python -m speclab.extensions.servers {words}"]))
            while True:
                time.sleep(3600)


def commands(args: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return what starts the server that speculates, and the one that does not, but for their ports. Neither keeps
    prompts: what a cache has spared one of them would look like speed of the other one. folder: for files."""
    usual, how = PROGRAMS[args.engine]
    program = args.program or usual
    if not shutil.which(program):
        raise EnvironmentProblem(f"{shown(Path(program))} is not there; {how}")
    target, draft = args.models or [str(loading.LAB_PAIR / name) for name in ("target", "draft")]
    if args.engine == "vllm":
        return _vllm(program, target, draft, args.draft_length)
    return _llama(program, _as_gguf(target, folder), _as_gguf(draft, folder), args.draft_length, args.slots)


def _llama(program: str, target: str, draft: str, k: int, slots: int) -> list[list[str]]:
    """Return the commands of llama.cpp's server. Each slot has 2,048 positions."""
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    how = f"--metrics --host 127.0.0.1 -c {2048 * slots} -np {slots} --no-webui --no-cache-prompt -t {threads}"
    plain = [program, "-m", target, *how.split()]
    if draft == "ngram":  # what followed the last three tokens before
        lookup = f"--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m {k}"
        return [[*plain, *lookup.split()], plain]
    drafts = f"--spec-type draft-simple --spec-draft-n-max {k} --spec-draft-p-min 0"  # k tokens, however unlikely
    return [[*plain, "-md", draft, *drafts.split()], plain]


def _vllm(program: str, target: str, draft: str, k: int) -> list[list[str]]:
    """Return the commands of vLLM. target: as --target takes it; the server calls it by that name, not by the folder of
    a conversion. A head in the `speculators` format says itself what it is."""
    words = "--dtype float32 --enforce-eager --max-model-len 1024 --generation-config vllm --no-enable-prefix-caching"
    plain = [program, "-m", "vllm.entrypoints.openai.api_server", "--model", loading.place_of(target)]
    plain += ["--served-model-name", target, *words.split()]
    how: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": k}
    if draft == "ngram":  # as the lab's own lookup does it
        how |= {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    else:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            how["method"] = json.loads((Path(draft) / "config.json").read_bytes())["speculators_model_type"]
        how["model"] = draft
    each = ["--per-request-spec-decode-metrics", "detailed"]  # the rounds of a request are told with its answer
    return [[*plain, *each, "--speculative-config", json.dumps(how)], plain]


def _as_gguf(model: str, folder: Path) -> str:
    """Return the model of a folder as a GGUF file in `folder`; what is no folder is one already, or a lookup."""
    if not Path(model).is_dir():
        return model
    import torch  # here: what it and these import is slow

    from speclab.extensions.servers import written_gguf

    weights = loading.load_model(model, torch.device("cpu"), torch.float32)
    path = Path(tempfile.mkdtemp(dir=folder)) / f"{Path(model).name}.gguf"
    return str(written_gguf.write_model(weights, loading.load_tokenizer(model), path))


@contextlib.contextmanager
def started(commands: Sequence[Sequence[str]], port: int) -> Iterator[list[str]]:
    """Run servers for as long as the block, the first at this port and each other one at the next, and give their
    addresses once all of them answer. They start side by side. EnvironmentProblem where one does not start, with the
    last line that it has written, or where a port is taken: another server would answer there."""
    urls = [f"http://127.0.0.1:{port + place}" for place in range(len(commands))]
    for place in range(len(commands)):
        _check_free(port + place)
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(_running([*command, "--port", str(port + place)]))
            for place, command in enumerate(commands)
        ]
        for (process, log), url in zip(running, urls, strict=True):
            _wait(process, url, log)
        yield urls


@contextlib.contextmanager
def _running(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen, IO[bytes]]]:
    """Run a process for as long as the block, and give it with what it writes. What it has started ends with it:
    vLLM's engine outlives its server otherwise."""
    with tempfile.TemporaryFile() as log:
        how: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        try:
            process = subprocess.Popen(command, env={**startup.environment(), **ENVIRONMENT}, **how)
        except OSError as error:
            why = f"{command[0]} cannot be run: {error.strerror}"
            raise EnvironmentProblem(f"{why}; install it, or give the place of another one") from None
        try:
            yield process, log
        finally:
            for signal_, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal_)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)


def _check_free(port: int) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port whose server has just ended is free
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            why = f"port {port} cannot be taken: {error.strerror}; end what listens there, or choose another one"
            raise EnvironmentProblem(why) from None


def _wait(process: subprocess.Popen, url: str, log: IO[bytes]) -> None:
    end, server = time.monotonic() + START_SECONDS, Server(url)
    while process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(EnvironmentProblem):
            if server.json("/v1/models")["data"] and server.page("/health") is not None:
                return
        time.sleep(POLL_SECONDS)
    log.seek(0)
    last = ["nothing", *filter(str.strip, log.read(2**20).decode(errors="replace").split("\n"))][-1]
    raise EnvironmentProblem(f"the server at {url} does not start; it wrote last: {' '.join(last.split())[:200]}")


if __name__ == "__main__":
    sys.exit(main())
