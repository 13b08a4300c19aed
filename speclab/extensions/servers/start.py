"""Starts two servers, with the lab's pair or with your models: one speculates and one does not, until Ctrl-C.

    python -m speclab.extensions.servers.start llama --program llama-server    # llama.cpp's, from your PATH
    python -m speclab.extensions.servers.start llama --models TARGET DRAFT --slots 8    # GGUF files, or folders
    python -m speclab.extensions.servers.start vllm --models smollm2 ngram     # after `make vllm`; ngram: a lookup

It prints both commands, and how to ask the servers.
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
from typing import IO, Any, NamedTuple

from speclab.system import startup  # isort: skip  - the imports below are slow, and this says so
from speclab.cli import parsing
from speclab.extensions.servers import written_gguf
from speclab.extensions.servers.client import Server
from speclab.models import loading
from speclab.system.errors import EnvironmentProblem, reports_problems
from speclab.system.files import ROOT, shown
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
    parser.add_argument("--models", nargs=2, metavar="MODEL", help="target, draft or ngram (else the lab's)")
    parser.add_argument("-k", "--draft-length", type=parsing.at_least(1, 64), default=4, metavar="K", help="default: 4")
    parser.add_argument("--slots", type=parsing.at_least(1, 64), default=1, help="requests at a time of llama-server")
    parser.add_argument("--port", type=parsing.at_least(1024, 65534), default=8000, help="and the next one for plain")
    args = parser.parse_args(argv)
    if not hasattr(os, "killpg"):
        raise EnvironmentProblem("servers are ended as groups of processes, which Windows lacks; type it in WSL")
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _hang_up)
    with tempfile.TemporaryDirectory() as folder:
        servers = commands(args, Path(folder))
        with started(servers, args.port) as running:
            for port, one in enumerate(servers, args.port):
                say(f"{shlex.join(one)} --port {port}")
            if any(folder in word for one in servers for word in one):
                say(f"the models in {folder} were made for these servers, and go with them")
            target = args.models[0] if args.models else loading.LAB_TARGET
            raw = " --raw" * (not Path(target).is_file() and not loading.load_tokenizer(target).chat_template)
            urls = f"--url {running[0].url} --plain-url {running[1].url}"
            say(f"ask them: python -m speclab.extensions.servers {urls}{raw}")
            while True:
                for server in running:
                    server.check()
                time.sleep(POLL_SECONDS)
    return 0


def _hang_up(*_: object) -> None:
    """End the servers with their terminal, which they would outlive in sessions of their own."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a shell and the kernel both send it
    raise KeyboardInterrupt


def commands(args: argparse.Namespace, folder: Path) -> list[list[str]]:
    """Return what starts the server that speculates, and the one that does not, but for their ports. Neither keeps
    prompts: what a cache has spared one of them would look like speed of the other one. folder: for GGUF files."""
    usual, how = PROGRAMS[args.engine]
    if not shutil.which(program := args.program or usual):
        raise EnvironmentProblem(f"{shown(Path(program))} is not there; {how}")
    target, draft = args.models or [str(loading.LAB_PAIR / name) for name in ("target", "draft")]
    if args.engine == "vllm":
        plain, drafts = _vllm(target, draft, args.draft_length)
    else:
        plain, drafts = _llama(_as_gguf(target, folder), _as_gguf(draft, folder), args.draft_length, args.slots)
    return [[program, *plain, *drafts], [program, *plain]]


def _llama(target: str, draft: str, k: int, slots: int) -> tuple[list[str], list[str]]:
    """Return the words for llama.cpp's server, and those for a draft. Each slot has 2,048 positions."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    words = f"--metrics --host 127.0.0.1 -c {2048 * slots} -np {slots} --no-webui --no-cache-prompt -t {threads}"
    plain = ["-m", target, *words.split()]
    if draft == "ngram":  # what followed the last three tokens before
        return plain, f"--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m {k}".split()
    how = f"--spec-type draft-simple --spec-draft-n-max {k} --spec-draft-p-min 0"  # k tokens, however unlikely
    return plain, ["-md", draft, *how.split()]


def _vllm(target: str, draft: str, k: int) -> tuple[list[str], list[str]]:
    """Return the words for vLLM, and those for a draft. target: as --target takes it, which is also its name on the
    server. A head in the `speculators` format says itself what it is."""
    words = "-m vllm.entrypoints.openai.api_server --host 127.0.0.1 --dtype float32 --enforce-eager"
    words += " --max-model-len 1024 --generation-config vllm --no-enable-prefix-caching --model"
    plain = [*words.split(), loading.place_of(target), "--served-model-name", target]
    how: dict[str, Any] = {"method": "draft_model", "num_speculative_tokens": k}
    if draft == "ngram":  # as the lab's own lookup does it
        how |= {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    else:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            how["method"] = json.loads((Path(draft) / "config.json").read_bytes())["speculators_model_type"]
        how["model"] = draft
    # the rounds of a request are told with its answer
    return plain, ["--per-request-spec-decode-metrics", "detailed", "--speculative-config", json.dumps(how)]


def _as_gguf(model: str, folder: Path) -> str:
    """Return a model as a GGUF file, which is made in `folder` where it is none; a lookup stays a word."""
    if model == "ngram" or Path(model).is_file():
        return model
    path = Path(tempfile.mkdtemp(dir=folder)) / f"{Path(model).name}.gguf"
    return str(written_gguf.convert(model, path))


class Running(NamedTuple):
    """A server's address, its process, and the file with what it writes."""

    url: str
    process: subprocess.Popen
    log: IO[bytes]

    def check(self, ended: bool = False) -> None:
        """Raise EnvironmentProblem, with the last line that the server has written, where it has ended."""
        if ended or self.process.poll() is not None:
            self.log.seek(0)
            last = ["nothing", *filter(str.strip, self.log.read().decode(errors="replace").split("\n"))][-1]
            said = " ".join(last.split())[:200]
            raise EnvironmentProblem(f"the server at {self.url} has ended, or does not start; it wrote last: {said}")


@contextlib.contextmanager
def started(commands: Sequence[Sequence[str]], port: int) -> Iterator[list[Running]]:
    """Run servers side by side for as long as the block, the first at this port and each other one at the next, and
    give them once all of them answer. EnvironmentProblem where one does not start, or where a port is taken: another
    server would answer there."""
    running = list[Running]()
    environment = {name: value for name, value in os.environ.items() if name not in startup.SET} | ENVIRONMENT
    for place in range(len(commands)):
        _check_free(port + place)
    with contextlib.ExitStack() as stack:
        for one, command in enumerate(commands, port):
            log = stack.enter_context(tempfile.TemporaryFile())
            how: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
            process = subprocess.Popen([*command, "--port", str(one)], env=environment, **how)
            stack.callback(_end, process)
            running.append(Running(f"http://127.0.0.1:{one}", process, log))
        for found in running:
            _wait(found)
        yield running


def _end(process: subprocess.Popen) -> None:
    """End a process with all that it has started: vLLM's engine outlives its server otherwise."""
    for signal_, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left
            os.killpg(process.pid, signal_)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)


def _check_free(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        why = f"port {port} cannot be taken: {os.strerror(error.errno or 0)}"
        raise EnvironmentProblem(f"{why}; end what listens there, or choose another --port") from None


def _wait(running: Running) -> None:
    end, server = time.monotonic() + START_SECONDS, Server(running.url)
    while running.process.poll() is None and time.monotonic() < end:
        with contextlib.suppress(EnvironmentProblem):
            if server.json("/v1/models")["data"] and server.page("/health") is not None:
                return
        time.sleep(POLL_SECONDS)
    running.check(ended=True)


if __name__ == "__main__":
    sys.exit(main())
