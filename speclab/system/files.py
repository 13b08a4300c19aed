"""Files: read up to a limit, checked before anything is measured, written whole or not at all."""

import contextlib
import errno
import json
import os
import secrets
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from speclab.system import paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note

NAMED = 3  # files that a list of what was written names
LEAST_FREE = 20 * 2**20  # bytes on the disk; a record with its pictures takes a few million


def shown(path: Path) -> str:
    """Return a path as one would type it from the current directory."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except (ValueError, OSError):  # another drive, or a current directory that is gone
        return str(path)


def install_advice() -> str:
    """Return the command to type where a package is missing: the same words for the Python that has it, where the lab
    has made one."""
    own = paths.ROOT / ".venv" / "bin" / "python"
    if own.exists() and Path(sys.prefix).resolve() != (paths.ROOT / ".venv").resolve():
        return shlex.join([shown(own), *sys.argv])
    return shlex.join(["pip", "install", "-r", shown(paths.ROOT / "requirements.txt")])


def read_bytes(path: Path, most: int) -> bytes:
    """Read all bytes of a file or a pipe. Raises OSError or ValueError where it is no such thing or holds more than
    `most` bytes."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is a device, no file")
    with open(path, "rb") as file:
        return at_most(file.read(most + 1), most)


def at_most(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it holds more than {most // 2**20} MiB")
    return data


def parse_json(text: str) -> Any:
    """Parse a JSON text. Raises ValueError, with a short reason, where it is no JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def prepare_folder(folder: Path, flag: str) -> None:
    """Make the folder and see that files can be written there. `flag` chooses another one."""
    with _told(folder, f"choose another folder with {flag}"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise OSError(errno.ENOTDIR, "it is no folder") from None
        with tempfile.TemporaryFile(dir=folder):
            pass
        if shutil.disk_usage(folder).free < LEAST_FREE:
            raise OSError(errno.ENOSPC, f"less than {LEAST_FREE // 2**20} MiB are free")


def check_writable(path: Path, flag: str) -> None:
    """See that `write_whole` will be able to write `path`, and make its folder. `flag` chooses another file."""
    with _told(path, f"give {flag} another place"):
        target = _target(path)
    prepare_folder(target.parent, flag)


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all: under a name of its own beside its place, then in its place.

    A link is followed and stays. An old file's mode stays; a new one gets the usual mode.
    """
    data = content.encode(errors="replace") if isinstance(content, str) else content
    with whole_file(path) as part, _told(path, "choose another place"), open(part, "xb") as file:
        file.write(data)
    return path


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give the name of a new file to write, which takes the place of `path` at the end. If anything fails or stops it
    before that, the old file stays. Links and modes are as `write_whole` leaves them."""
    with _told(path, "choose another place"):
        target = _target(path)
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        yield part
        with _told(path, "choose another place"):
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_all(steps: Iterable[Callable[[], Path | None]], remark: str = "") -> None:
    """Do every step, and say at the end which files were written. A step that writes a file returns its path."""
    written = [shown(path) for step in steps if (path := step())]
    more = f" and {len(written) - NAMED} more files" * (len(written) > NAMED)
    if written:
        note(f"wrote {', '.join(written[:NAMED])}{more}{remark}")


@contextlib.contextmanager
def _told(path: Path, advice: str) -> Iterator[None]:
    """Turn an error of the operating system inside into one line."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise EnvironmentProblem(f"cannot write {shown(path)}: {why}; {advice}") from None


def _target(path: Path) -> Path:
    """Return the file that `path` means, links followed. Raises OSError where it is there and is no file that may be
    written."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a folder")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device or a pipe, no regular file")
    if not os.access(target, os.W_OK):
        raise OSError(errno.EACCES, "it is read-only")
    return target
