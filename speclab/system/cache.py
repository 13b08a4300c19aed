"""The user's cache folder: what takes long to make is kept there, and nobody else may write there."""

import os
import stat
import sys
import tempfile
from pathlib import Path

FOLDER = "SPECLAB_CACHE"  # the environment variable that names another folder


def folder() -> Path:
    """Return the cache folder, which may not be there yet."""
    if given := os.environ.get(FOLDER):
        return Path(given)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "speclab"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "speclab"


def is_own(path: Path) -> bool:
    """Tell whether this user alone can have written a file or into a folder. Raises OSError where there is none."""
    abouts = [place.stat() for place in ((path,) if path.is_dir() else (path, path.parent))]
    others = stat.S_IWGRP | stat.S_IWOTH
    return not hasattr(os, "getuid") or all(s.st_uid == os.getuid() and not s.st_mode & others for s in abouts)


def make_folder() -> Path:
    """Return the cache folder, made where it is missing. Raises OSError, with what to type, where this user cannot
    write there or others can."""
    try:
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
        if is_own(place):
            return place
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        why = getattr(error, "strerror", None) or error
        raise OSError(f"the cache folder cannot be written to: {why}; set {FOLDER}") from None
    raise OSError(f"others can write to {place}; type: chmod 700 {place}")
