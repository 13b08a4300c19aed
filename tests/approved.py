"""Screens and pages as text files: what a program shows is read and approved once, and a test notices every change.

SPECLAB_APPROVE=1 writes the files again; look at what git says has changed.
"""

import os
from pathlib import Path


def is_approved(path: Path, text: str) -> None:
    """Assert that the file holds this text."""
    if os.environ.get("SPECLAB_APPROVE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    assert text == path.read_text("utf-8"), f"{path.name} is not what was approved; see tests/approved.py"
