"""Checks that each extension can be deleted: `python -m tools.extensions`.

Each folder of speclab/extensions is deleted in a copy of the tracked files, and there every other module of the package
and every script is imported. Then all of them are deleted at once, and pytest collects the tests of the ground floor.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from speclab.system.errors import reports_problems

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("speclab", "extensions")
LARGE = 100_000  # bytes; a file of this size or larger is linked, not copied
# Libraries are loaded once, and a process is forked for each copy. No module of the lab is loaded before that.
IMPORT_ALL = """
import importlib, os, pkgutil, sys, traceback
import torch, jinja2, matplotlib.pyplot, pydantic, pytest
import transformers.generation.utils, transformers.models.auto.modeling_auto, transformers.models.llama.modeling_llama
for copy in sys.argv[1:]:
    if not (child := os.fork()):
        os.chdir(copy)
        sys.path[0] = copy
        try:
            package = importlib.import_module("speclab")
            names = [found.name for found in pkgutil.walk_packages(package.__path__, "speclab.")]
            scripts = ["baseline_autoregressive", "optimized_speculative", "draft_models", "compare", "check"]
            for name in [*names, *scripts]:
                importlib.import_module(name)
            importlib.import_module("speclab.system.extensions").modules("register")
        except BaseException:
            print(f"without {os.path.basename(copy)}: {traceback.format_exc()}", flush=True)
            os._exit(1)
        os._exit(0)
    if os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        print(f"without {os.path.basename(copy)}: a signal ended it", flush=True)
"""


def names() -> list[str]:
    """The folders of the extensions."""
    return sorted(path.parent.name for path in (ROOT / FOLDER).glob("*/__init__.py"))


def copied(folder: Path, without: Iterable[str]) -> Path:
    """Copy the files that git does not ignore, but for these extensions; large ones are linked.  -> folder"""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    left_out = tuple(f"{(FOLDER / name).as_posix()}/" for name in without)
    for file in listed.strip("\0").split("\0"):
        source, copy = ROOT / file, folder / file
        if file.startswith(left_out) or not source.is_file():  # deleted, and not yet committed
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.stat().st_size >= LARGE:
            copy.symlink_to(source)
        else:
            shutil.copyfile(source, copy)
    return folder


@reports_problems
def main(argv: list[str] | None = None) -> int:
    """Run the checks, and print what is wrong.  -> exit code"""
    argparse.ArgumentParser("python -m tools.extensions", description=__doc__).parse_args(argv)
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        copies = [str(copied(Path(folder, name), [name])) for name in names()]
        empty = copied(Path(folder, "all of them"), names())
        collect = ["-m", "pytest", "--collect-only", "-qx", "--tb=line", "-p", "no:cacheprovider", "tests"]
        steps = [(["-c", IMPORT_ALL, *copies], folder), (collect, str(empty))]
        said = []
        for words, where in steps:
            done = subprocess.run([sys.executable, *words], cwd=where, env=settings, capture_output=True, text=True)
            said += [done.stdout + done.stderr] if done.returncode or "without " in done.stdout else []
    print(*said, f"extensions: {len(copies)} can be deleted" * (not said), sep="\n")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
