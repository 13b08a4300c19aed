"""The places of the lab's own files and of results: a clone uses its own folders, an installed package its data and the
current folder."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
ROOT = _PACKAGE.parent  # of the clone; of an installed package the folder that it was installed into
IS_CLONE = (ROOT / "models" / "lab-pair").is_dir()
DATA = ROOT if IS_CLONE else _PACKAGE / "data"  # holds models/lab-pair and prompts
OUTPUT = ROOT if IS_CLONE else Path.cwd()  # holds results and plots
