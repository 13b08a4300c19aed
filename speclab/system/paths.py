"""Where the lab's own files are: in a clone, or beside the installed package."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
ROOT = PACKAGE.parent  # of the clone
