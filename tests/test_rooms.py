"""The plan of the code: what the loops load, that nothing imports in a circle, and that the loops differ by the lesson.

That imports run downward is for import-linter, which `make lint` runs.
"""

import ast
import difflib
import re
import subprocess
import sys

from speclab.system.paths import ROOT

MOST_FILES = 17  # with code, that `import optimized_speculative` loads
UPPER = ("records", "theory", "lab", "present", "cli")
LOADED = """
import sys
from pathlib import Path
import speclab
assert "torch" not in sys.modules
import optimized_speculative
root = Path(optimized_speculative.__file__).parent
files = {Path(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
for file in sorted(files):
    if root in file.parents and "site-packages" not in file.parts and file.name != "__init__.py":
        print(file.relative_to(root).as_posix())
assert "speclab.api" not in sys.modules
speclab.load
assert "speclab.api" in sys.modules
speclab.nothing
"""


def test_the_loop_loads_what_a_round_needs_and_nothing_above():
    """And only the names of the API load it."""
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.endswith("AttributeError: module 'speclab' has no attribute 'nothing'\n"), done.stderr
    loaded = done.stdout.split()
    assert "speclab/core/accept.py" in loaded
    assert len(loaded) <= MOST_FILES, loaded
    assert not [file for file in loaded if file.startswith(tuple(f"speclab/{room}/" for room in UPPER))]


# The main() of a loop hands itself to the command line.
ALLOWED = {(script, "speclab.cli.decoding") for script in ("baseline_autoregressive", "optimized_speculative")}
FOLDERS = ("speclab", "training", "tools", "benchmarks")


def imports() -> dict[str, set[str]]:
    """The modules of the project that each of its modules imports; it has no relative imports."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "tests" not in path.parts]
    sources = {path.relative_to(ROOT): path.read_text("utf-8") for path in [*paths, *ROOT.glob("*.py")]}
    known = {".".join(path.with_suffix("").parts): source for path, source in sources.items() if source.strip()}
    found: dict[str, set[str]] = {module: set() for module in known}
    for module, source in known.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                found[module] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found[module] |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {module: names & known.keys() - {module} for module, names in found.items()}


def test_there_is_no_circle():
    """Modules are taken away while they import nothing that is left; what remains imports itself, round about."""
    uses = imports()
    assert all(other in uses[script] for script, other in ALLOWED)
    for script, other in ALLOWED:
        uses[script].discard(other)
    while free := [module for module, others in uses.items() if not others & uses.keys()]:
        for module in free:
            del uses[module]
    assert not uses, sorted(uses)


def added_lines() -> list[str]:
    """Lines of code and comments that the speculative loop's file has and the baseline's has not."""
    files = (ROOT / "baseline_autoregressive.py", ROOT / "optimized_speculative.py")
    # Both texts begin after the module's docstring.
    before, after = (file.read_text("utf-8").split('"""', 2)[2].splitlines() for file in files)
    found = (line[1:].strip() for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:1] == "+")
    return [line for line in found if line and not line.startswith("++")]


def test_the_difference_of_the_loops_is_speculation():
    """Four of five added lines name a part of it; none is about clocks, traces or exercises."""
    added = added_lines()
    parts = r"draft|verify|accept|roll back|commit|rejected|propos|observe|fetch|speculat|n_accepted|NEW"
    about = [line for line in added if re.search(parts, line, re.IGNORECASE)]
    assert len(about) >= 0.8 * len(added), sorted(set(added) - set(about))
    other = re.compile(r"clock|watch|seconds|time\b|trace|impl\b|exercise", re.IGNORECASE)
    assert not [line for line in added if other.search(line)]
