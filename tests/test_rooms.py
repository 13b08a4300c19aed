"""The plan of the code: what the loops load, and that the loops differ by the lesson.

That imports run downward in speclab, and never in a circle, is for import-linter, which `make lint` runs.
"""

import difflib
import re
import subprocess
import sys

from speclab.system.files import ROOT

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
