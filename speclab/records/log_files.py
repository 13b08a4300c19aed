"""The log of a run on disk, so that a run that is killed keeps what it has measured.

A file holds JSON, one line after the other: first the head of the run, then the lines of every turn, written as soon as
the turn is over. A second measurement, as that of the padded pair, adds a head and lines of its own.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from speclab.records.files import LARGEST, as_dict, parsed
from speclab.records.log import Line
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import read_bytes, shown
from speclab.system.terminal import note


class LogFile:
    """The log that a run writes. It is deleted when the run has written its record."""

    def __init__(self, path: Path):
        self.path = path
        self._head: list[dict[str, Any]] = []  # of the measurement that has no lines yet
        self._is_broken = False  # the disk is full, for example: the run goes on without a log

    @property
    def set_aside_as(self) -> Path:
        """Return the place of a log that a killed run left behind."""
        return self.path.with_name(self.path.name.replace(".log.", ".killed."))

    def set_aside(self) -> Path | None:
        """Move the log of an earlier run that was killed out of the way.  -> where it is; None where there is none"""
        with contextlib.suppress(OSError):
            if any(measurement.lines for measurement in read(self.path)):
                return self.path.replace(self.set_aside_as)
            self.path.unlink()
        return None

    def begin(self, head: dict[str, Any]) -> None:
        """Give the head of a measurement, the fields of runs.LabRun. It is written before the first turn's lines."""
        plain = {name: as_dict(value) if is_dataclass(value) else value for name, value in head.items()}
        self._head = [plain]

    def write(self, lines: Iterable[Line]) -> None:
        """Write the lines of a turn, with their texts."""
        head, self._head = self._head, []
        self._append([*head, *(as_dict(line) for line in lines)])

    def discard(self) -> None:
        """Delete the file, because the record is written."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _append(self, entries: list[dict[str, Any]]) -> None:
        if self._is_broken:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(entry) + "\n" for entry in entries))
        except OSError as error:
            self._is_broken = True
            note(f"{shown(self.path)} cannot be written ({error.strerror}); the run goes on, and must not be killed")


class LoggedMeasurement(NamedTuple):
    """One measurement of a log: its head, and its lines, of which each holds all repeats."""

    head: dict[str, Any]
    lines: list[Line]


def read(path: Path) -> list[LoggedMeasurement]:
    """Return the measurements of a log. A last line that was cut is left out.

    Raises OSError where there is no such file, and EnvironmentProblem where it is no log.
    """
    found: list[LoggedMeasurement] = []
    for text in read_bytes(path, LARGEST).decode("utf-8", "replace").split("\n")[:-1]:
        try:
            entry = json.loads(text)
            if "schema_version" in entry:
                found.append(LoggedMeasurement(entry, []))
                continue
            line, lines = parsed(Line, text), found[-1].lines
            key = line.arm, line.temperature, line.prompt_index
            known = next((other for other in lines if (other.arm, other.temperature, other.prompt_index) == key), None)
            if known:
                known.extend(line)
            else:
                lines.append(line)
        except (ValueError, TypeError, IndexError, RecursionError) as error:
            raise EnvironmentProblem(f"{shown(path)} is no log of a run ({error}); give one that a run wrote") from None
    return found
