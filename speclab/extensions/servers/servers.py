"""Servers as processes of this run: started in groups of their own, waited for, and stopped whatever happens.

A server's log goes to a file. Where a server fails, one line names the cause and the last line of the log that says
something; the file is kept then.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from speclab.extensions.servers.client import Client
from speclab.extensions.servers.installed import Installed, without_folders
from speclab.system.errors import EnvironmentProblem, signals_at_the_end
from speclab.system.terminal import harmless, note

START_SECONDS = 900.0  # until a server must be healthy: on a slow machine a large model is read for minutes
LOOK_SECONDS = 0.2  # between two looks at a server that starts
TELL_SECONDS = 20.0  # between two notes about it
DYING_SECONDS = 5.0  # that a server has to end after a request has failed
STOP_SECONDS = 10.0  # that a server has to end after it was asked to
GONE_SECONDS = 5.0  # until everything that it has started is gone, too, after it was killed
IDLE_SECONDS = 1.2  # a worker of vLLM looks for its next step in a busy loop for 1 s after the last one
GROUPS = hasattr(os, "killpg")  # not on Windows

# What loggers put before a message, and lines that say nothing about a cause.
PREFIX = re.compile(r"^(\([\w-]+ pid=\d+\) )?((INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[\w./:]+\] ?)?")
CAUSE = re.compile(r"^\s*([\w.]*(Error|Exception|Interrupt)\b|Value error,|Assertion failed,|error:|.*: error:)")
# What a server says that reads its settings and does not take them, and what is no matter of settings all the same.
SETTINGS = re.compile(
    r"^(Value error,|Assertion failed,|(.*: )?error:|([\w.]+\.)?(ValueError|NotImplementedError|ValidationError|"
    r"ImportError|ModuleNotFoundError)\b)"
)
NO_SETTINGS = re.compile(r"memory|in use|connect|download|resolve|timed? ?out|no space", re.IGNORECASE)
TAKEN = re.compile(r"address already in use|errno 98\b|errno 48\b", re.IGNORECASE)
NO_CAUSE = ("See root cause", "see root cause", "For further information", "validation error for", "During handling")


def wait_until_idle() -> None:
    """Wait as long as a server's workers use a core after its last request: the next server needs that core."""
    time.sleep(IDLE_SECONDS)


class ServerProblem(EnvironmentProblem):
    """A server that failed. `refused`: it did not take its settings, and other servers may do."""

    def __init__(self, text: str, reason: str, refused: bool = False, log: Path | None = None):
        super().__init__(text)
        self.reason, self.refused, self.log = reason, refused, log


class PortTaken(ServerProblem):
    """Somebody else listens where a server was to listen."""


def last_meaningful_line(log: str) -> str:
    """The last line of a log that names a cause, else the last one that says something; without what loggers add."""
    lines = [PREFIX.sub("", harmless(line)).strip() for line in log.splitlines()]
    lines = [line for line in lines if line and not any(word in line for word in NO_CAUSE)]
    causes = [line for line in lines if CAUSE.match(line)]
    line = (causes or lines or ["it is empty"])[-1]
    return without_folders(line.partition(" [type=")[0])[:200]


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

    def problem(self, what: str, kind: type[ServerProblem] = ServerProblem, starting: bool = False) -> ServerProblem:
        """One line: which server, what happened to it, and what its log says last."""
        text = "" if self.log is None else self.log.read_text("utf-8", errors="replace")
        line = last_meaningful_line(text)
        where = "" if self.log is None else f"; its log ends with: {line} (all of it: {self.log})"
        refused = starting and bool(SETTINGS.match(line)) and not NO_SETTINGS.search(line)
        reason = line if refused else f"{what}: {line}" if self.log else what
        if starting and TAKEN.search(text):
            kind, refused = PortTaken, False
        return kind(f"the server of {self.name} {what}{where}", without_folders(reason), refused, self.log)

    def ended(self) -> str | None:
        """How the process ended; None while it runs."""
        code = self.process.poll() if self.process else None
        if code is None:
            return None
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def wait_until_healthy(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Return when this very process answers. ServerProblem where it ends before that, or takes too long."""
        begin = told = clock()
        while True:
            healthy = self.client.healthy()
            if how := self.ended():  # asked after its health: whoever answers on the port of a dead server is another
                raise self.problem(how, starting=how.startswith("ended"))
            if healthy:
                break
            now = clock()
            if now - begin > START_SECONDS:
                raise self.problem(f"was not ready after {START_SECONDS:g} s")
            if now - told > TELL_SECONDS:
                told = now
                note(f"  {self.name}: starting for {now - begin:.0f} s")
            time.sleep(LOOK_SECONDS)
        if not self._is_itself():
            raise self.problem("did not get its port: somebody else answers there", PortTaken)
        self.start_seconds = clock() - begin

    def _is_itself(self) -> bool:
        """Whether the one that answers has the name that only this server was given."""
        try:
            return self.client.served_model().name == self.client.model
        except EnvironmentProblem:
            return False

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
            end = time.monotonic() + GONE_SECONDS
            while GROUPS and _signal(self.process, 0) and time.monotonic() < end:
                time.sleep(LOOK_SECONDS / 20)


def _signal(process: subprocess.Popen, number: int) -> bool:
    """To the whole group of a process, also where the process itself has ended.  -> whether anything of it is there"""
    try:
        if GROUPS:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


@dataclass
class Logs:
    """A folder for logs."""

    folder: Path
    keep: bool = False


@contextlib.contextmanager
def log_folder() -> Iterator[Logs]:
    """A folder for logs, kept where a server has failed or refused its settings, else removed at the end."""
    logs = Logs(Path(tempfile.mkdtemp(prefix="speclab-vllm-")))
    try:
        yield logs
    except ServerProblem:
        logs.keep = True
        raise
    finally:
        if not logs.keep:
            shutil.rmtree(logs.folder, ignore_errors=True)


@contextlib.contextmanager
def running(
    name: str, installed: Installed, target: str, words: list[str], environment: dict[str, str], logs: Logs
) -> Iterator[Server]:
    """A server of this run, healthy; it is stopped at the end, whatever ends the code inside.

    Where somebody else takes its port before it does, it is started once more on another one.
    """
    log = logs.folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', name)}.log"

    def start(server: Server) -> None:
        place, own_name = server.client.url.rpartition(":")[2], server.client.model
        own = ["--host", "127.0.0.1", "--port", place, "--served-model-name", own_name]
        _launch(server, [str(installed.python), *installed.entry, target, *own, *words], environment)
        server.wait_until_healthy()

    server = _new(name, log)
    note(f"starting vLLM: {name}")
    try:
        try:
            start(server)
        except PortTaken:
            server.stop()
            server = _new(name, log)
            note(f"  {name}: somebody else has taken its port; starting once more on another one")
            start(server)
        note(f"  {name}: ready after {server.start_seconds:.0f} s")
        yield server
    except ServerProblem:
        logs.keep = True
        raise
    finally:
        server.stop()


def _new(name: str, log: Path) -> Server:
    """A server that is not started yet, with a port and a name that nobody guesses."""
    return Server(name, Client(f"http://127.0.0.1:{free_port()}", f"speclab-{secrets.token_hex(8)}"), log=log)


def _launch(server: Server, command: list[str], environment: dict[str, str]) -> None:
    """Start its process."""
    assert server.log
    with signals_at_the_end(), open(server.log, "wb") as out:  # no signal comes between a process and its name here
        server.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=GROUPS,
        )
