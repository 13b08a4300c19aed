"""Files: read up to a limit, checked before a run, written whole or not at all; and the lab's places for them."""

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note

_PACKAGE = Path(__file__).resolve().parent.parent
ROOT = _PACKAGE.parent  # of the clone; of an installed package the folder that it was installed into
IS_CLONE = (ROOT / "models" / "lab-pair").is_dir()
DATA = ROOT if IS_CLONE else _PACKAGE / "data"  # holds models/lab-pair and prompts
OUTPUT = ROOT if IS_CLONE else Path.cwd()  # holds results and plots
CACHE = "SPECLAB_CACHE"  # the environment variable that names another cache folder


def shown(path: Path) -> str:
    """Return a path as one would type it from the current directory."""
    with contextlib.suppress(OSError, ValueError):  # no current directory, or another drive of Windows
        return min(os.path.relpath(path), str(path), key=len)
    return str(path)


def read_bytes(path: Path, most: int) -> bytes:
    """Read all of a file or a pipe. Raises OSError or ValueError where it is none, or holds more than `most` bytes."""
    if path.exists() and not path.is_file() and not path.is_fifo():
        raise OSError(errno.EINVAL, "it is a folder or a device, no file")
    with open(path, "rb") as file:
        return at_most(file.read(most + 1), most)


def at_most(data: bytes, most: int) -> bytes:
    """Return the bytes. Raises OSError where there are more than `most`."""
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it holds more than {most // 2**20} MiB")
    return data


def check_writable(path: Path, flag: str) -> None:
    """See that `write_whole` will be able to write `path`, and make its folder. `flag` chooses another place."""
    with _told(path, f"give {flag} another place"):
        folder = _target(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def write_whole(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all: under another name beside its place, then there. Links stay."""
    with _told(path, "choose another place"):
        target = _target(path)
        part = target.with_name(f".{secrets.token_hex(8)}.part")
        try:
            part.write_bytes(content.encode(errors="replace") if isinstance(content, str) else content)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return path


def write_all(steps: Iterable[Callable[[], Path | None]], remark: str = "") -> None:
    """Do every step, and say at the end which files were written. A step that writes a file returns its path."""
    written = [shown(path) for step in steps if (path := step())]
    more = f" and {len(written) - 3} more" * (len(written) > 3)
    if written:
        note(f"wrote {', '.join(written[:3])}{more}{remark}")


@contextlib.contextmanager
def _told(path: Path, advice: str) -> Iterator[None]:
    """Turn an error of the operating system inside into one line."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise EnvironmentProblem(f"cannot write {shown(path)}: {why}; {advice}") from None


def _target(path: Path) -> Path:
    """Return the file that `path` means, links followed. Raises OSError where it is no file that may be written."""
    target = Path(os.path.realpath(path))
    is_there = target.is_symlink() or target.exists()  # a link that is left leads to itself
    if is_there and not (target.is_file() and os.access(target, os.W_OK)):
        raise OSError(errno.EINVAL, "it is no regular file, or read-only")
    return target


def is_own(path: Path) -> bool:
    """Tell whether this user alone can have written a file or into a folder. Raises OSError where there is none."""
    about = path.stat()
    return not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o022)


def cache_folder() -> Path:
    """Return the user's folder for what takes long to make. Raises EnvironmentProblem where others can write to it."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "speclab")
    try:
        place = Path(os.environ.get(CACHE) or usual).expanduser().absolute()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        raise EnvironmentProblem(f"the cache folder cannot be made: {error}; set {CACHE}") from None
    if not is_own(place):
        raise EnvironmentProblem(f"others own {place}, or can write to it; set {CACHE}, or type: chmod 700 {place}")
    return place
