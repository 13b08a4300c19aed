"""Names, numbers, prompt bytes, generation settings and records of any kind: a Problem, or what was asked for."""

import argparse
import contextlib
import json
import os
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from speclab.cli import parsing
from speclab.models import loading, prompts
from speclab.records.files import ComparisonRun, read
from speclab.system import files, terminal
from speclab.system.errors import EnvironmentProblem, Problem
from tools import blocks

MANY = settings(max_examples=60)
ODD = ["", " ", ".", "..", "-", "...", "~", "a/b", "../x", "/", "a\0b", "\x1b[31m", "two\nlines", "\u202e", "\ud800"]
NAMES = st.one_of(
    st.sampled_from([*ODD, "ü" * 128, "n" * 255, "n" * 256, "lab:", "lab:1b", "dial:nan", "somebody/model"]),
    st.text(st.characters(), max_size=12),  # surrogates and control characters, too
    st.text(st.characters(), min_size=100, max_size=300),
    st.binary(max_size=12).map(os.fsdecode),  # as Python makes them of a command line
)
NUMBERS = st.one_of(
    st.text("0123456789+-.eEinfa_x ,", max_size=12), st.integers().map(str), st.floats().map(repr), st.text(max_size=4)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """One for every example."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@given(NAMES.filter(lambda name: "/" not in name), st.binary(max_size=50))
@MANY
def test_a_file_is_written_where_the_check_has_said_so_and_nothing_else_is(name, content):
    with new_folder() as folder:
        try:
            files.check_writable(folder / name, "--out-dir")
        except EnvironmentProblem:
            with pytest.raises(EnvironmentProblem):
                files.write_whole(folder / name, content)
            assert os.listdir(folder) == []
        else:
            assert files.write_whole(folder / name, content).read_bytes() == content
            assert os.listdir(folder) == [name]


@given(NAMES)
@MANY
def test_every_name_can_be_shown_and_a_plain_one_is_one_file_in_the_folder(name):
    assert isinstance(files.shown(Path(name)), str)
    shown = [char for char in terminal.harmless(name) if char not in terminal.ALLOWED]
    assert {unicodedata.category(char) for char in shown}.isdisjoint({"Cc", "Cf", "Cs", "Zl", "Zp"})
    assert len(loading.short_name(name).splitlines()) <= 1
    with contextlib.suppress(argparse.ArgumentTypeError), new_folder() as folder:
        files.write_whole(folder / f"{parsing.plain_name(name)}-sweep-context.json", "x")
        assert os.listdir(folder) == [f"{name}-sweep-context.json"]


@given(NUMBERS, st.lists(NUMBERS, max_size=4).map(",".join), st.integers(-3, 3), st.integers(4, 10**9))
@MANY
def test_numbers_lie_in_their_range_and_lists_of_them_are_sorted(text, words, smallest, largest):
    for kind in (int, float):
        with contextlib.suppress(argparse.ArgumentTypeError):
            assert smallest <= parsing.number(kind, smallest, largest)(text) <= largest
        with contextlib.suppress(Problem):
            values = parsing.numbers(words, kind, 0, "-k", 256)
            assert values == sorted(set(values))
            assert all(0 <= value <= 256 for value in values)


@pytest.fixture(scope="module")
def tokenizer(pair_folder):
    return AutoTokenizer.from_pretrained(pair_folder / "target")


PIECES = st.sampled_from(
    [b"%%", b"\n", b"\r\n", b"\r", b" ", b"x", "ü\u2028\x85".encode(), b"\xef\xbb\xbf", b"\0", b"\xff"]
)


@given(st.lists(PIECES | st.binary(max_size=6), max_size=12).map(b"".join), st.text(st.characters(), max_size=20))
@MANY
def test_prompts_are_ids_or_a_problem(tokenizer, data, typed):
    with new_folder() as folder, contextlib.suppress(Problem):
        (folder / "kind.txt").write_bytes(data)
        pairs = prompts.from_file(str(folder / "kind.txt"))
        assert all(kind == "kind" and text.strip() and "\r" not in text for kind, text in pairs)
        assert not [line for _, text in pairs for line in text.split("\n") if line.strip() == "%%"]
        for prompt in prompts.encode(pairs, tokenizer):
            assert 0 <= min(prompt.id_list) <= max(prompt.id_list) < len(tokenizer)
    with contextlib.suppress(Problem):
        (prompt,) = prompts.encode([("prompt", typed)], tokenizer)
        assert prompt.ids.shape[1] > 0
        assert prompt.text.encode()


def shortened(path: Path) -> dict:
    """A committed record with few rows."""
    run = json.loads(path.read_text("utf-8"))
    return run | {"rows": run["rows"][:3] + [r for r in run["rows"] if r["draft"]][:4], "raw": run["raw"][:1]}


RUN = shortened(blocks.DEFAULT_RUN)


@st.composite
def damaged(draw) -> str:
    """The record with some of its values changed or taken out, or the end of its text cut off."""
    run = json.loads(json.dumps(RUN))
    for _ in range(draw(st.integers(0, 3))):
        place = run
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], dict | list) or not place[key] or draw(st.integers(0, 3)) == 0:
                if draw(st.booleans()):
                    place[key] = draw(JSON)
                else:
                    del place[key]
                break
            place = place[key]
    text = json.dumps(run)
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 5)) == 0 else text


@given(st.one_of(damaged(), JSON.map(json.dumps), st.text(max_size=20), st.integers(1, 200_000).map("[".__mul__)))
@MANY
def test_a_record_is_what_its_schema_says_or_a_problem(text):
    with new_folder() as folder:
        (folder / "run.json").write_bytes(text.encode(errors="surrogatepass"))
        with contextlib.suppress(EnvironmentProblem):
            read(folder / "run.json", ComparisonRun)
