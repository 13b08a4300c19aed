"""The folder of a GPU run: three files that always hold everything that is finished."""

import io
import tarfile
from pathlib import Path

from benchmarks.gpu import summary
from benchmarks.gpu.stages import Target
from benchmarks.gpu.summary import Outcome
from speclab.system.files import check_writable, write_whole
from speclab.system.terminal import note


class Results:
    """The folder of a run. Stages write to the log, and records and pages into `work`, which is elsewhere."""

    def __init__(self, out: Path, work: Path, stages: list[str], targets: list[Target]):
        self.work, self.log = work, out / "log.txt"
        self.outcomes = {name: Outcome("to come", 0.0) for name in stages}
        self._page, self._archive, self._targets = out / "summary.md", out / "records.tar.gz", targets
        self._kept: dict[Path, int] = {}  # what the archive holds
        self._problem = ""
        for path in (self.log, self._page, self._archive):
            check_writable(path, "--out")

    def text(self) -> str:
        """The summary without the pages of the records."""
        return summary.head(self.work / "results", self._targets, self.outcomes)

    def write(self) -> None:
        """Write both files. Where that fails the run goes on, because the disk may have room again."""
        packed, pages = io.BytesIO(), sorted((self.work / "results").glob("[!.]*.md"))
        try:
            files = self._files()
            with tarfile.open(fileobj=packed, mode="w:gz") as archive:
                for path in files:
                    archive.add(path, path.relative_to(self.work))
            write_whole(self._archive, packed.getvalue())
            write_whole(self._page, "\n".join([self.text(), *map(summary.with_title, pages)]))
            self._kept, self._problem = files, ""
        except Exception as problem:  # a full disk, or a record that is not as expected: neither may end the run
            if str(problem) != self._problem:
                note(f"not written, tried again later: {problem}")
            self._problem = str(problem)

    def write_new(self) -> None:
        """Write both files if there is a new record."""
        if self._files() != self._kept:
            self.write()

    def _files(self) -> dict[Path, int]:
        """The records and pages, with the times of their writing, without files that are being written."""
        return {path: path.stat().st_mtime_ns for path in sorted(self.work.glob("*/[!.]*"))}
