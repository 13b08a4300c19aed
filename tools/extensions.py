"""Checks that an extension can be deleted, and that the ground floor does not speak of extensions.

    python -m tools.extensions

Each folder of speclab/extensions is deleted in a copy of the tracked files, and there every other module of the package
and every script is imported. Then all of them are deleted at once, and pytest collects the tests of the ground floor.
The second check looks for words of extensions in the files that a reader opens first. What is still found stands in
STILL_THERE, a list that can only shrink.
"""

import importlib
import multiprocessing
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path

from speclab.system.errors import reports_problems

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path("speclab", "extensions")
SCRIPTS = ("baseline_autoregressive", "optimized_speculative", "draft_models", "compare", "check")
LARGE = 100_000  # bytes; a file of this size or larger is linked, not copied
# Loaded once, before a process is forked for each copy. Nothing of the lab may be among them.
PRELOADED = ["torch", "transformers.models.auto.modeling_auto", "transformers.generation.utils"]
PRELOADED += ["transformers.models.llama.modeling_llama", "matplotlib.pyplot", "jinja2", "pydantic", "pytest"]

GROUND_FILES = ("baseline_autoregressive.py", "optimized_speculative.py", "draft_models.py", "speclab/core/*.py")
GROUND_WORDS = (
    r"\b(?:trees?|encoder|replays?|replayed|learner|early exit|servers?|vllm|retokenize|intersect|lossy|LOSSY|dial"
    r"|batches|batched|lockstep|recurrent)\b"
)
STILL_THERE: dict[str, set[str]] = {
    "speclab/core/graphs.py": {"replay", "replayed", "replays"},  # PyTorch's own words for CUDA graphs
}


@reports_problems
def main() -> int:
    """Run the checks, and print what is wrong.  -> exit code"""
    began = time.perf_counter()
    wrong = [*words_of_extensions(), *no_packages(), *deleted()]
    for line in wrong:
        print(line)
    print(f"extensions: {len(wrong)} problems, {time.perf_counter() - began:.0f} s")
    return int(bool(wrong))


def words_of_extensions() -> list[str]:
    """One line for each word that is new in a file, and for each listed one that is no longer found."""
    paths = [path for pattern in GROUND_FILES for path in sorted(ROOT.glob(pattern))]
    found = {
        path.relative_to(ROOT).as_posix(): set(re.findall(GROUND_WORDS, path.read_text("utf-8"))) for path in paths
    }
    wrong = []
    for file in sorted(found.keys() | STILL_THERE.keys()):
        here, listed = found.get(file, set()), STILL_THERE.get(file, set())
        wrong += [f"{file}: the word {word!r} belongs to an extension" for word in sorted(here - listed)]
        wrong += [f"{file}: {word!r} is gone, take it out of STILL_THERE" for word in sorted(listed - here)]
    return wrong


def no_packages() -> list[str]:
    """The folders that have a register.py or a __main__.py and no __init__.py, so that nothing would find them."""
    hooks = [file for name in ("register.py", "__main__.py") for file in (ROOT / FOLDER).glob(f"*/{name}")]
    found = sorted({hook.parent for hook in hooks})
    return [f"{folder.name}: give it an __init__.py" for folder in found if not (folder / "__init__.py").exists()]


def names() -> list[str]:
    """The folders of the extensions."""
    return sorted(path.parent.name for path in (ROOT / FOLDER).glob("*/__init__.py"))


def deleted() -> list[str]:
    """Delete each extension in a copy, then all of them.  -> a traceback for everything that does not work there"""
    # A process is forked where the system can do so, from one that has loaded the libraries.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names():
            copy = copied(Path(folder, name), [name])
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_import_all, args=(copy, theirs))
            process.start()
            theirs.close()
            wrong += [f"without {FOLDER / name}: {line}" for line in _received(ours)]
            process.join()
        copy = copied(Path(folder, "none"), names())
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-qx", "--tb=line", "-p", "no:cacheprovider", "tests"],
            cwd=copy,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            wrong.append(
                f"without any extension, tests/ does not collect:\n{done.stdout.rpartition(' ERRORS ')[2]}{done.stderr}"
            )
    return wrong


def _received(connection: Connection) -> list[str]:
    try:
        return connection.recv()
    except EOFError:
        return ["the process that imports the rest has died"]


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


def _import_all(folder: Path, connection: Connection) -> None:
    """Import every module of the copy's package and its scripts, in a process of its own, and send what went wrong."""
    os.chdir(folder)
    sys.path[:] = [str(folder), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tools"]:
        del sys.modules[name]  # it is the original's
    wrong = []
    try:
        package = importlib.import_module("speclab")
        for module in (*(found.name for found in pkgutil.walk_packages(package.__path__, "speclab.")), *SCRIPTS):
            importlib.import_module(module)
        importlib.import_module("speclab.system.extensions").load()
    except Exception:
        wrong.append(traceback.format_exc())
    connection.send(wrong)


if __name__ == "__main__":
    sys.exit(main())
