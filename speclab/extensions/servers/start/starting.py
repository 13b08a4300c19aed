"""Servers as processes of this machine: what starts them, and that they end."""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from speclab.extensions.servers.ask.client import Client
from speclab.system.errors import EnvironmentProblem

START_SECONDS, POLL_SECONDS, END_SECONDS = 300.0, 0.2, 10.0
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}  # GiB, and no report to anybody


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
    """Run a process for as long as the block, and give it with what it writes."""
    environment = {**os.environ, **ENVIRONMENT}
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        except OSError as error:
            why = f"{command[0]} cannot be run: {error.strerror}"
            raise EnvironmentProblem(f"{why}; install it, or give the place of another one") from None
        try:
            yield process, log
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


def _wait(process: subprocess.Popen, url: str, log: IO[bytes]) -> None:
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
