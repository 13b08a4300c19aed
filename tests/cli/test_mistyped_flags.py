"""A mistyped flag is answered in one line, before anything is loaded that takes seconds."""

import subprocess
import sys

import pytest

from speclab.system import extensions
from speclab.system.paths import ROOT

SCRIPT = """
import runpy, sys
name, *sys.argv[1:] = sys.argv[1:]
run = runpy.run_path if name.endswith(".py") else runpy.run_module
try:
    run(name, run_name="__main__")
except SystemExit as end:
    print(end.code, *sorted({"torch", "transformers"} & set(sys.modules)))
"""
EXTENSIONS = [f"{extensions.PACKAGE}.{name}" for name in extensions.commands()]
SCRIPTS = ("baseline_autoregressive.py", "optimized_speculative.py", "compare.py", "check.py")


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", SCRIPT, *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("words", [("--tempreature", "1"), ("--seed", "-1")], ids=["flag", "value"])
def test_torch_is_not_loaded(script, words):
    done = run(script, *words)
    assert done.stdout == "2\n", done
    assert done.stderr.startswith("error: "), done
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("module", EXTENSIONS)
def test_an_extension_answers_as_fast(module):
    done = run(module, "--tempreature", "1")
    assert done.stdout == "2\n", done
    assert done.stderr.startswith("error: "), done
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["optimized_speculative.py", "compare.py"])
@pytest.mark.parametrize("words", [("--draft", "help"), ("--rule", "help"), ("--help",)], ids=" ".join)
def test_a_list_and_a_help_load_neither_torch_nor_the_library(script, words):
    """They name what extensions add, too."""
    done = run(script, *words)
    assert done.stdout.splitlines()[-1] == "0", done
    assert "FILE.gguf" in done.stdout or "typical:E" in done.stdout


@pytest.mark.parametrize(
    "words",
    [("--draft", "modle"), ("--draft", "ngram,hybird"), ("-k", "9999"), ("-k", "two"), ("--temperature", "-1")],
    ids=" ".join,
)
def test_a_wrong_value_is_answered_at_once(words):
    done = run("compare.py", *words)
    assert done.stdout == "2\n", done
    assert done.stderr.startswith("error: "), done
    assert done.stderr.count("\n") == 1


def test_flags_without_a_mistake_go_on_to_the_run():
    """Loading is what notices that there is no such folder."""
    done = run("baseline_autoregressive.py", "--target", "./no-such-folder")
    assert done.stdout == "3 torch transformers\n", done
