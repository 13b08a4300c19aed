"""The user's cache folder: what takes long to make is kept there, and nobody else may write there."""

import os
from pathlib import Path

FOLDER = "SPECLAB_CACHE"  # the environment variable that names another folder


def is_own(path: Path) -> bool:
    """Tell whether this user alone can have written a file or into a folder. Raises OSError where there is none."""
    about = path.stat()
    return not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o022)


def make_folder() -> Path:
    """Return the cache folder, made where it is missing. Raises OSError where that fails or others can write there."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "speclab")
    try:
        place = Path(os.environ.get(FOLDER) or usual.expanduser())
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        raise OSError(f"the cache folder cannot be made: {error}; set {FOLDER}") from None
    if not is_own(place):
        raise OSError(f"others can write to {place}; type: chmod 700 {place}")
    return place
