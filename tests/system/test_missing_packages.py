"""Measuring needs the dependencies of pyproject.toml, such as tabulate; everything else is optional and said."""

import subprocess
import sys

from speclab.system.files import ROOT

# As in an environment without them: nobody finds these.
HIDDEN = """
import importlib.machinery, sys
right = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    if name.partition(".")[0] in {"scipy", "pytest"}:
        return None
    return right(name, path, target)
importlib.machinery.PathFinder.find_spec = find_spec
"""


def test_a_comparison_and_the_other_scripts_need_no_further_package(pair_folder, tmp_path):
    words = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft"), "--engine", "eager"]
    words += ["--limit", "1", "--max-new-tokens", "8", "-k", "2", "--temperature", "0", "--alone", "--prompt", "x"]
    scripts = "benchmarks.roofline, benchmarks.gpu, baseline_autoregressive, training.pair, compare"
    code = f"{HIDDEN}\nimport {scripts}; sys.exit(compare.main({[*words, '--out-dir', str(tmp_path)]!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "same text?" in done.stdout  # tables are left out on a busy machine
    results = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert results == ["local.json", "local.md"]
    assert "| draft | " in (tmp_path / "results" / "local.md").read_text()
