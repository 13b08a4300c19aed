"""Files: read up to a limit, checked before anything is measured, written whole or not at all, even where one fails."""

import contextlib
import errno
import fnmatch
import json
import math
import os
import secrets
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from speclab.system import paths
from speclab.system.errors import EnvironmentProblem, Problem, UsageProblem, report
from speclab.system.terminal import note

NAMED = 3  # files of one folder that a list of what was written names
LEAST_FREE = 20 * 2**20  # bytes on the disk; a record with its pictures takes a few million


def shown(path: Path) -> str:
    """Return a path as one would type it from the current directory."""
    try:
        return min(os.path.relpath(path), str(path), key=len)
    except (ValueError, OSError):  # another drive, or a current directory that is gone
        return str(path)


def command(script: Path, *words: str) -> str:
    """Return the words that run a script of the lab from the current directory."""
    return shlex.join(["python", shown(script), *words])


def install_advice() -> str:
    """Return the command to type where a package is missing: the same words for the Python that has it, where the lab
    has made one."""
    own = paths.ROOT / ".venv" / "bin" / "python"
    if own.exists() and Path(sys.prefix).resolve() != (paths.ROOT / ".venv").resolve():
        return shlex.join([shown(own), *sys.argv])
    return shlex.join(["pip", "install", "-r", shown(paths.ROOT / "requirements.txt")])


# --- reading ----------------------------------------------------------------------------------------------------------


def read_bytes(path: Path, most: int) -> bytes:
    """Read all bytes of a file or a pipe. Raises OSError or ValueError where it is no such thing or holds more than
    `most` bytes."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
        raise OSError(errno.EINVAL, "it is a folder" if stat.S_ISDIR(mode) else "it is a device, no file")
    with open(path, "rb") as file:
        return at_most(file.read(most + 1), most)


def at_most(data: bytes, most: int) -> bytes:
    """Return `data`, or raise OSError where it is longer."""
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it holds more than {most // 2**20} MiB")
    return data


def parse_json(text: str) -> Any:
    """Parse a JSON text. Raises ValueError, with a short reason, where it is no JSON, is nested too deeply, has one
    name twice in an object, or has a whole number that no float can hold. NaN and infinity pass, so that the reader of
    the entry can name it."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:40]!r} is there twice")
        found[name] = value
    return found


def _whole(digits: str) -> int:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{digits[:20]}... is too large")
    return int(digits)


# --- before anything is measured --------------------------------------------------------------------------------------


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


def check_replaceable(folder: Path, patterns: Sequence[str], flag: str) -> None:
    """See that a folder that `whole_folder` will replace holds nothing but such files. Raises UsageProblem where it
    holds others.

    patterns: patterns of their names, as a shell takes them. flag: the flag that chooses another folder.
    """
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    others = (name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns))
    if other := next(others, None):
        raise UsageProblem(
            f"{flag}: {other} is in {shown(folder)}, and everything there would be replaced; give {flag} its own folder"
        )


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
    if any(_is_open_at(target, number) for number in (1, 2)):
        raise OSError(errno.EBUSY, "this run prints into it")
    return target


def _is_open_at(path: Path, descriptor: int) -> bool:
    """Tell whether standard output (1) or standard error (2) goes to this file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:  # the descriptor is closed
        return False


# --- writing ----------------------------------------------------------------------------------------------------------


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
    part = _beside(target)
    try:
        yield part
        with _told(path, "choose another place"):
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _beside(target: Path) -> Path:
    """Return a name in the same folder that nothing else has."""
    return target.with_name(f".{secrets.token_hex(8)}.part")


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder to fill, which takes the place of `folder` at the end. If anything fails or stops it before
    that, the old one stays.

    No single rename replaces a folder that holds files: the old one is moved aside first. A process that is killed
    between the two renames leaves both beside the place, under names that end in .part.
    """
    target = Path(os.path.realpath(folder))
    new, old = _beside(target), _beside(target)
    try:
        with _told(folder, "choose another place"):
            new.mkdir(parents=True)
        yield new
        with _told(folder, "choose another place"):
            if target.exists():
                target.replace(old)
            new.replace(target)
    finally:
        if old.exists() and not target.exists():
            old.replace(target)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _listed(paths: list[Path]) -> str:
    """Return three files of a folder by name, more of them by number."""
    folders: dict[Path, list[str]] = {}
    for path in paths:
        folders.setdefault(path.parent, []).append(shown(path))
    return ", ".join(
        ", ".join(names) if len(names) <= NAMED else f"{len(names)} files in {shown(folder)}"
        for folder, names in folders.items()
    )


def do_all(steps: Sequence[Callable[[], Path | None]], remark: str = "") -> int:
    """Do every step of printing and writing, also after one that fails. A step that writes a file returns its path.

    What failed is said at once, what was written at the end; a fault of the lab is raised after that. So is Ctrl-C:
    the step that it stops is done again after all others.
    remark: what is said behind the list of what was written.
    -> exit code, 0 where nothing failed
    """
    written: list[Path | None] = []
    fault: BaseException | None = None
    stop: BaseException | None = None
    code = 0
    left = list(steps)
    while left:
        step = left.pop(0)
        try:
            written.append(step())
        except BrokenPipeError:  # the reader of a pipe left; the files are wanted all the same
            pass
        except (Problem, OSError) as problem:
            code = report(problem)
        except KeyboardInterrupt as error:
            left += [] if stop else [step]
            stop = stop or error
        except (SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic of a library is no Exception
            fault = fault or error
    if paths := list(filter(None, written)):
        note(f"wrote {_listed(paths)}{remark}")
    if ended := fault or stop:
        raise ended
    return code
