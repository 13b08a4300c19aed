"""compare.py on a tiny pair: one whole run that many tests read, and runs of a test's own."""

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

import pytest

import compare
from speclab.models import prompts
from speclab.records.files import ComparisonRun, read

TEXTS = (("code", "def f(x):"), ("prose", "return x"), ("copy", "x + 1, x + 1,"))


class Ran(NamedTuple):
    code: int
    out: str
    err: str
    folder: Path

    @property
    def page(self) -> str:
        return (self.folder / "results" / "local.md").read_text("utf-8")

    @property
    def record(self) -> ComparisonRun:
        return read(self.folder / "results" / "local.json", ComparisonRun)


def call(pair: Path, folder: Path, *words: str, texts=TEXTS) -> Ran:
    """Run it on these prompts, by their kinds; the last of words that are given twice counts."""
    models = ["--target", str(pair / "target"), "--draft", f"{pair / 'draft'},ngram"]
    size = ["--limit", "1", "--max-new-tokens", "16", "-k", "2,4", "--threads", "1", "--engine", "eager"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompts, "standard", lambda: list(texts))
        code = compare.main([*models, *size, "--out-dir", str(folder), *words])
    return Ran(code, out.getvalue(), err.getvalue(), folder)


@pytest.fixture
def run(pair_folder, tmp_path):
    return lambda *words, **how: call(pair_folder, tmp_path, *words, **how)


@pytest.fixture(scope="session")
def whole(pair_folder, tmp_path_factory) -> Ran:
    """Drafts of every kind at both temperatures, two repeats, k = 0 and lengths that are chosen."""
    draft = pair_folder / "draft"
    kinds = f"{draft},ngram,hybrid:ngram+{draft}"
    return call(pair_folder, tmp_path_factory.mktemp("whole"), "--draft", kinds, "-k", "0,3,auto", "--repeats", "2")
