"""The folder of a GPU run: three files that always hold everything that is finished."""

import contextlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.gpu import stages, summary
from benchmarks.gpu.stages import Stage
from speclab.system.errors import Problem
from speclab.system.files import check_writable, write_whole
from speclab.system.terminal import note


class Results:
    """The folder of a run. Stages write into `work`, which is elsewhere and may hold any number of files."""

    def __init__(self, out: Path, work: Path, all_stages: list[Stage]):
        self.work, self.log = work, work / "log.txt"
        self.outcomes = {stage.name: summary.Outcome(stage.name, "to come", 0.0) for stage in all_stages}
        self._page, self._log, self._archive = (out / name for name in ("summary.md", "log.txt", "records.tar.gz"))
        self._sizes = stages.names_of(all_stages)
        self._kept: dict[Path, tuple[int, int]] = {}  # size and time of what the archive holds
        self._log_size = 0
        self._problem = ""

    def check(self) -> None:
        """Before anything is measured."""
        for path in (self._log, self._page, self._archive):
            check_writable(path, "--out")

    def set(self, name: str, what: str, seconds: float = 0.0) -> None:
        """What became of a stage."""
        self.outcomes[name] = summary.Outcome(name, what, seconds)

    def text(self) -> str:
        """The summary without the pages of the records."""
        return summary.head(self.work / "results", self._sizes, list(self.outcomes.values()))

    def write(self) -> None:
        """All three files. Where that fails the run goes on: the disk may have room again."""
        self._tried(self._write_log, self._write_archive, self._write_page)

    def _tried(self, *steps: Callable[[], object]) -> None:
        try:
            for step in steps:
                step()
            self._problem = ""
        except (Problem, OSError) as problem:
            if str(problem) != self._problem:
                note(f"not written, tried again later: {problem}")
            self._problem = str(problem)

    def _write_log(self) -> None:
        content = self.log.read_bytes() if self.log.exists() else b""
        write_whole(self._log, content)
        self._log_size = len(content)

    def _write_page(self) -> None:
        pages = sorted((self.work / "results").glob("*.md"))
        write_whole(self._page, "\n".join([self.text(), *map(summary.with_title, pages)]))

    def write_surely(self) -> KeyboardInterrupt | None:
        """The same, again where Ctrl-C comes in between.  -> Ctrl-C, if it came"""
        try:
            self.write()
        except KeyboardInterrupt as stop:
            self.write()
            return stop
        return None

    def write_new(self) -> None:
        """The same if there is a new record; the log if there is more of it."""
        if self._files() != self._kept:
            self.write()
        elif self.log.stat().st_size != self._log_size:
            self._tried(self._write_log)

    def _files(self) -> dict[Path, tuple[int, int]]:
        """The records and pages with size and time; no file that is being written."""
        files = {}
        for path in sorted(self.work.glob("*/*")):
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith(".") and path.is_file():
                    files[path] = path.stat().st_size, path.stat().st_mtime_ns
        return files

    def _write_archive(self) -> None:
        files, packed = self._files(), io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for path in files:
                archive.add(path, path.relative_to(self.work))
        write_whole(self._archive, packed.getvalue())
        self._kept = files
