"""The plan of the code, drawn from its imports: the block of docs/architecture.md, which tools/readme.py fills.

A test fails when the block is stale, when an import runs upward, or when there is a circle.
"""

import ast
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path

from speclab.system.paths import ROOT

# What stands right above a room of the package, from the ground up.
ABOVE = {
    "models": ("draft_models.py", "baseline_autoregressive.py", "optimized_speculative.py"),
    "cli": ("compare.py", "check.py"),
    "extensions": ("training", "tools", "benchmarks"),
}


def _heights() -> Iterator[tuple[str, int]]:
    """The rooms from the ground up: a room may import the rooms that are lower, and those of its own height where their
    contract has a colon between them. The package's own are the layers of its contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    height = 0
    for group in (group for layer in reversed(layers) for group in layer.split(" | ")):
        for name in group.split(" : "):
            yield f"speclab/{name}" if (ROOT / "speclab" / name).is_dir() else f"speclab/{name}.py", height
        height += 1
        for room in itertools.chain(*(ABOVE.get(name, ()) for name in group.split(" : "))):
            yield room, height
            height += 1


HEIGHTS = dict(_heights())
ROOMS = tuple(HEIGHTS)
# The main() of a loop hands itself to the command line. What trains belongs to a clone: recipes, and one sweep.
ALLOWED = {
    ("baseline_autoregressive.py", "speclab/cli/decoding.py"),
    ("optimized_speculative.py", "speclab/cli/decoding.py"),
    ("speclab/extensions/exits/recipe.py", "training/recipes.py"),
    ("speclab/extensions/mtp/recipe.py", "training/recipes.py"),
    ("speclab/extensions/sweeps/degraded_drafts.py", "training/corpus.py"),
    ("speclab/extensions/sweeps/degraded_drafts.py", "training/steps.py"),
}


def files() -> list[str]:
    """Every file with code in a room, as a path from the root."""
    paths = [
        path for room in ROOMS for path in ([ROOT / room] if room.endswith(".py") else (ROOT / room).rglob("*.py"))
    ]
    names = sorted(path.relative_to(ROOT).as_posix() for path in paths if path.read_text("utf-8").strip())
    return [name for name in names if "/tests/" not in name and not name.endswith("/conftest.py")]


def room_of(file: str) -> str:
    """The room that a file belongs to."""
    return next(room for room in ROOMS if file == room or file.startswith(f"{room}/"))


def imports() -> dict[str, set[str]]:
    """The files that each file imports."""
    known = {file.removesuffix(".py").replace("/", "."): file for file in files()}
    return {file: {known[name] for name in _names(ROOT / file) if name in known} - {file} for file in known.values()}


def _names(path: Path) -> Iterator[str]:
    """The names of modules that a file may import; the project has no relative imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def plan() -> str:
    """The rooms as a Mermaid drawing, without an arrow that two others make already."""
    uses: dict[str, set[str]] = {room: set() for room in ROOMS}
    for file, others in imports().items():
        uses[room_of(file)] |= {room_of(other) for other in others if (file, other) not in ALLOWED} - {room_of(file)}
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {_id(room)}["{room}"]' for room in reversed(ROOMS)]
    for room in reversed(ROOMS):
        below = [near for near in uses[room] if HEIGHTS[near] < HEIGHTS[room]]
        indirect = {far for near in below for far in _reached(uses, near)}
        lines += [f"    {_id(room)} --> {_id(other)}" for other in reversed(ROOMS) if other in uses[room] - indirect]
    return "\n".join([*lines, "```"])


def _reached(uses: dict[str, set[str]], room: str) -> set[str]:
    """All rooms below one, however far. Only lower rooms count, so the search ends also where imports run in a
    circle."""
    lower = {other for other in uses[room] if ROOMS.index(other) < ROOMS.index(room)}
    return lower | {far for near in lower for far in _reached(uses, near)}


def _id(room: str) -> str:
    return room.removesuffix(".py").replace("/", "_")
