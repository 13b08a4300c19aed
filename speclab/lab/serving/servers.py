"""Servers as processes of this run: started in groups of their own, waited for, and stopped whatever happens.

A server's log goes to a file. Where a server fails, one line names the cause and the last line of the log that says
something; the file is kept then.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from speclab.lab.serving.client import Client
from speclab.lab.serving.installed import Installed
from speclab.system.errors import EnvironmentProblem, Stopped, on_signals
from speclab.system.terminal import harmless, note

START_SECONDS = 900.0  # until a server must be healthy: on a slow machine a large model is read for minutes
LOOK_SECONDS = 0.2  # between two looks at a server that starts
TELL_SECONDS = 20.0  # between two notes about it
DYING_SECONDS = 5.0  # that a server has to end after a request has failed
STOP_SECONDS = 10.0  # that a server has to end after it was asked to
EXITED = "ended with exit code"  # by itself: before it was ready that is a refusal
GROUPS = hasattr(os, "killpg")  # not on Windows

# What loggers put before a message, and lines that say nothing about a cause.
PREFIX = re.compile(r"^(\([\w-]+ pid=\d+\) )?((INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[\w./:]+\] ?)?")
CAUSE = re.compile(r"^\s*([\w.]*(Error|Exception|Interrupt)\b|Value error,|error:|.*: error:)")
NO_CAUSE = ("See root cause", "see root cause", "For further information", "validation error for", "During handling")


class ServerProblem(EnvironmentProblem):
    """A server that failed. `starting`: before it was ready."""

    def __init__(self, text: str, reason: str, starting: bool = False):
        super().__init__(text)
        self.reason, self.starting = reason, starting


def last_meaningful_line(log: str) -> str:
    """The last line of a log that names a cause, else the last one that says something; without what loggers add."""
    lines = [PREFIX.sub("", harmless(line)).strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not any(word in line for word in NO_CAUSE)]
    causes = [line for line in lines if CAUSE.match(line)]
    line = (causes or lines or ["it is empty"])[-1]
    return without_folders(line.partition(" [type=")[0])[:200]


def without_folders(text: str) -> str:
    """`text` with the last part alone of every absolute path: a record names no place of a machine.

    >>> without_folders("no file '/srv/models/target/config.json' in a/b")
    "no file 'config.json' in a/b"
    """
    return re.sub(r"(?<![\w.])/(?:[^\s/'\"]+/)+", "", text)


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@dataclass
class Server:
    """A server: a process of this run, or with `process` None one that somebody else runs."""

    name: str
    client: Client
    process: subprocess.Popen | None = None
    log: Path | None = None
    start_seconds: float | None = None

    def problem(self, what: str, starting: bool = False) -> ServerProblem:
        """One line: which server, what happened to it, and what its log says last."""
        text = "" if self.log is None else self.log.read_text("utf-8", errors="replace")
        line = last_meaningful_line(text)
        where = "" if self.log is None else f"; its log ends with: {line} (all of it: {self.log})"
        reason = line if starting and self.log else f"{what}: {line}" if self.log else what
        return ServerProblem(f"the server of {self.name} {what}{where}", without_folders(reason), starting)

    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self.process.poll() if self.process else None
        if code is None:
            return None
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"{EXITED} {code}"

    def wait_until_healthy(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Return when it answers. ServerProblem where it ends before that, or takes longer than START_SECONDS."""
        begin = told = clock()
        while not self.client.healthy():
            now = clock()
            if how := self.ended():
                raise self.problem(how, starting=how.startswith(EXITED))
            if now - begin > START_SECONDS:
                raise self.problem(f"was not ready after {START_SECONDS:g} s")
            if now - told > TELL_SECONDS:
                told = now
                note(f"  {self.name}: starting for {now - begin:.0f} s")
            time.sleep(LOOK_SECONDS)
        self.start_seconds = clock() - begin

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """A request that fails becomes the line about why: what happened to the server, and what its log says."""
        try:
            yield
        except EnvironmentProblem as problem:
            if self.process is None:
                raise
            end = time.monotonic() + DYING_SECONDS
            while not self.ended() and time.monotonic() < end:
                time.sleep(LOOK_SECONDS / 4)
            how = self.ended()
            raise self.problem(how or f"failed: {problem}") from None

    def stop(self) -> None:
        """End the process and everything that it has started. A second Ctrl-C while it ends makes it quick."""
        if self.process is None:
            return
        try:
            if self.process.poll() is None:
                _signal(self.process, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_SECONDS)
        finally:
            _signal(self.process, signal.SIGKILL if GROUPS else signal.SIGTERM)
            self.process.wait()


def _signal(process: subprocess.Popen, number: int) -> None:
    """To the whole group of a process, also where the process itself has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if GROUPS:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


@contextlib.contextmanager
def log_folder() -> Iterator[Path]:
    """A folder for logs, kept where a server has failed, else removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="speclab-vllm-"))
    keep = False
    try:
        yield folder
    except ServerProblem:
        keep = True
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(
    name: str, installed: Installed, target: str, words: list[str], environment: dict[str, str], folder: Path
) -> Iterator[Server]:
    """A server of this run, healthy; it is stopped at the end, whatever ends the code inside."""
    port = free_port()
    command = [str(installed.python), *installed.entry, target, "--host", "127.0.0.1", "--port", str(port), *words]
    log = folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.log"
    note(f"starting vLLM: {name}")
    server = Server(name, Client(f"http://127.0.0.1:{port}", "target"), log=log)
    asked: list[Stopped] = []
    try:
        with on_signals(asked.append), open(log, "wb") as out:  # no signal gets between a new process and its name here
            server.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=GROUPS,
            )
        if asked:
            raise asked[0]
        server.wait_until_healthy()
        note(f"  {name}: ready after {server.start_seconds:.0f} s")
        yield server
    finally:
        server.stop()
