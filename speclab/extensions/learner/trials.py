"""Every wrong answer runs in a copy of this process, which is ended when it takes too long; what came out is kept.

A pool of workers would not do: where the system ends or stops one of them, the pool waits for it without an end. Here
each answer has its own process, which leaves its outcome in a file of its own, and nobody waits for anything but the
end of a process or the next tick of the clock.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

from speclab.system import cache, paths
from speclab.system.errors import EnvironmentProblem

TICK = 0.5  # seconds between two looks at the processes
STILL_RUNNING = "still running"  # how the message begins of a check, or of an answer, that was stopped
# What an outcome depends on, beside the limits and versions.
SOURCES = ("exercises", "solutions", "tests", "speclab", "training", "benchmarks", "prompts", "docs/chapters")
SUFFIXES = (".py", ".md", ".toml", ".txt", ".jsonl")


class Limits(NamedTuple):
    """How long an answer may take."""

    case: float  # seconds for one case of a check
    answer: float  # seconds for all checks of the answer


# --- what is kept -----------------------------------------------------------------------------------------------------


class Kept:
    """The outcomes of answers that have been measured with the present code: a line of JSON for each, in a file."""

    def __init__(self, path: Path):
        self.path = path
        self._known: dict[str, list[str]] = {}
        lines = path.read_bytes().splitlines() if path.is_file() else []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):  # the last line may be torn
                entry = json.loads(line)
                self._known[str(entry["answer"])] = [str(message) for message in entry["messages"]]

    def __len__(self) -> int:
        return len(self._known)

    def get(self, stem: str, source: str) -> list[str] | None:
        """Return the messages of the checks that fail on this answer; None where it has not been measured."""
        return self._known.get(_key(stem, source))

    def add(self, stem: str, source: str, messages: list[str]) -> None:
        """Keep an outcome, at once."""
        self._known[_key(stem, source)] = messages
        line = json.dumps({"answer": _key(stem, source), "messages": messages})
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")  # the first newline ends a line that was torn

    def drop(self) -> None:
        """Forget all of it: the page is written."""
        self.path.unlink(missing_ok=True)
        self._known.clear()


def kept(limits: Limits) -> Kept:
    """Return the outcomes that were measured before with the code as it is now, under these limits.

    Raises EnvironmentProblem where the cache folder cannot be used.
    """
    try:
        return Kept(cache.make_folder() / f"wrong-answers-{_state(limits)}.jsonl")
    except OSError as error:
        raise EnvironmentProblem(str(error)) from None


def _state(limits: Limits) -> str:
    """Return a digest of what an outcome depends on: code, chapters, the lab's weights, limits and versions."""
    digest = hashlib.sha256(repr((limits, sys.version, importlib.metadata.version("torch"))).encode())
    found = [path for folder in SOURCES for path in (paths.ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    weights = list((paths.ROOT / "models" / "lab-pair").rglob("*.safetensors"))
    for path in sorted([*paths.ROOT.glob("*.py"), *found, *weights]):
        if path.is_file():
            digest.update(f"{path.relative_to(paths.ROOT)}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _key(stem: str, source: str) -> str:
    return hashlib.sha256(f"{stem}\0{source}".encode()).hexdigest()[:32]


# --- the processes ----------------------------------------------------------------------------------------------------


class _Trial:
    """One answer that is being tried in a copy of this process."""

    def __init__(self, test: Callable[[str, float], list[str]], source: str, limits: Limits, file: Path, is_last: bool):
        self.limits, self.file, self.is_last = limits, file, is_last
        self.seconds = 0.0  # by the clock, without the time in which this process itself was stopped
        file.unlink(missing_ok=True)
        self.process: ForkProcess = multiprocessing.get_context("fork").Process(
            target=_in_the_copy, args=(test, source, limits.case, file)
        )
        self.process.start()

    def messages(self, since_last_look: float) -> list[str] | None:
        """Return what the checks say; None as long as they run."""
        self.seconds += since_last_look
        if self.process.exitcode is not None:
            with contextlib.suppress(OSError, ValueError):
                return json.loads(self.file.read_text("utf-8"))
            return [f"did not run: the answer ended Python, with exit code {self.process.exitcode}"]
        if self.seconds < self.limits.answer:
            return None
        self.end()
        return [f"{STILL_RUNNING} after {self.limits.answer:g} s, and nothing could interrupt it"]

    def end(self) -> None:
        """End the process, also one that the system has stopped, and those that it has started."""
        with contextlib.suppress(OSError):  # it may have ended, or be younger than its group
            if os.getpgid(self.process.pid or 0) == self.process.pid:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def try_all(
    test: Callable[[str, float], list[str]], sources: list[str], limits: Limits, jobs: int
) -> Iterator[tuple[int, list[str]]]:
    """Run `test` on each of these sources, `jobs` at a time, each in a copy of this process.

    test: takes the source of an answer and the seconds for a case, and returns the messages of the checks that fail.
    A source that was stopped, or whose process ended without an outcome, gets a second try with three times the limits:
    the machine may have been busy or paused. What comes of that counts.
    -> (index of a source, the messages), in the order in which they come to their ends
    Raises EnvironmentProblem where the system cannot fork.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        raise EnvironmentProblem("every wrong answer runs in a copy of this process, and this system cannot fork")
    more = Limits(3 * limits.case, 3 * limits.answer)
    waiting = [(index, limits) for index in reversed(range(len(sources)))]
    running: dict[int, _Trial] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    index, allowed = waiting.pop()
                    file = Path(folder) / f"{index}.json"
                    running[index] = _Trial(test, sources[index], allowed, file, is_last=allowed == more)
                start = time.monotonic()
                wait([trial.process.sentinel for trial in running.values()], TICK)
                passed = min(time.monotonic() - start, 2 * TICK)  # longer where this process itself was stopped
                for index, trial in list(running.items()):
                    messages = trial.messages(passed)
                    if messages is None:
                        continue
                    del running[index]
                    if trial.is_last or not _is_doubtful(messages):
                        yield index, messages
                    else:
                        waiting.append((index, more))
        finally:
            for trial in running.values():
                trial.end()


def _is_doubtful(messages: list[str]) -> bool:
    """Tell whether the machine may be the reason for these messages."""
    return any(message.startswith((STILL_RUNNING, "did not run")) for message in messages)


def _in_the_copy(test: Callable[[str, float], list[str]], source: str, seconds: float, file: Path) -> None:
    """Leave the messages in `file`, and print nothing."""
    os.setpgid(0, 0)  # what the answer starts is ended with it
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # the script's own handlers would print
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    messages = json.dumps(test(source, seconds))
    part = file.with_suffix(".part")
    part.write_text(messages, "utf-8")
    part.replace(file)
