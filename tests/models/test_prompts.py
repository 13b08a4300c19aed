"""The standard prompts and the form of prompt files."""

import io
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from speclab.models import prompts
from speclab.system.errors import UsageProblem

ROOT = Path(__file__).parents[2]


def test_standard_set_is_large_enough_and_distinct():
    """At least 24, three kinds of equal size, no two alike in their first words."""
    pairs = prompts.standard()
    kinds = [kind for kind, _ in pairs]
    assert len(pairs) >= 24
    assert {kinds.count(k) for k in prompts.KINDS} == {len(pairs) // 3}
    assert len({re.sub(r"\s+", " ", text)[:60] for _, text in pairs}) == len(pairs)


def test_copy_prompts_repeat_themselves():
    """Their point: more than a third of their word triples occur twice. Code and prose stay well below."""

    def repeated(text: str) -> float:
        words = re.findall(r"\w+|\S", text)
        triples = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
        return 1 - len(set(triples)) / len(triples)

    mean = {}
    for kind in prompts.KINDS:
        shares = [repeated(text) for k, text in prompts.standard() if k == kind]
        mean[kind] = sum(shares) / len(shares)
    assert mean["copy"] > 2 * max(mean["code"], mean["prose"])


def test_separator_lines_and_line_ends():
    assert prompts.split("a\n%%\nb\n\n%%\n") == ["a", "b\n"]
    assert prompts.split("one %% two\n") == ["one %% two"]
    assert prompts.split("a\r\n%%\r\nb") == ["a", "b"]
    assert prompts.split("\n%%\n \n") == []
    assert prompts.split(" %%\t\n%%\na\x0c%%\x0cb\u2028%%\u2028c\x85\n%%") == ["a\x0c%%\x0cb\u2028%%\u2028c\x85"]
    assert prompts.split("    indented\n") == ["    indented"]


def test_kind_is_the_files_stem(tmp_path):
    (tmp_path / "haiku.txt").write_text("x\n%%\ny\n")
    assert prompts.from_file(str(tmp_path / "haiku.txt")) == [("haiku", "x"), ("haiku", "y")]
    with pytest.raises(UsageProblem, match="cannot read"):
        prompts.from_file(str(tmp_path))


def test_marks_and_line_ends_of_other_systems_are_no_part_of_a_prompt(tmp_path):
    (tmp_path / "w.txt").write_bytes("\ufeffeins\r\nzwei\r\n%%\r\nü\r\n".encode())
    assert prompts.from_file(str(tmp_path / "w.txt")) == [("w", "eins\nzwei"), ("w", "ü")]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/dev/zero", "device"),
        ("a" * 5000, "too long"),
        ("a\0b", "null"),
        ("LATIN", "UTF-8"),
        ("LARGE", "more than 16 MiB"),
        ("FOLDER", "folder"),
    ],
)
def test_files_that_are_no_prompts(tmp_path, name, why):
    (tmp_path / "LATIN").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "FOLDER").mkdir()
    with open(tmp_path / "LARGE", "wb") as file:
        file.truncate(prompts.LARGEST_FILE + 1)
    path = str(tmp_path / name) if name.isupper() else name
    with pytest.raises(UsageProblem, match="cannot read the prompts file") as caught:
        prompts.from_file(path)
    assert why in str(caught.value)


def test_a_pipe_is_read_to_its_end(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=(tmp_path / "fifo").write_text, args=("x\n%%\ny",))
    writer.start()
    assert prompts.from_file(str(tmp_path / "fifo")) == [("fifo", "x"), ("fifo", "y")]
    writer.join()


@pytest.mark.parametrize("stdin", [None, io.TextIOWrapper(io.BytesIO(b"a\xff"))])
def test_standard_input_that_is_closed_or_no_text(monkeypatch, stdin):
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(UsageProblem, match="cannot read the prompts file -"):
        prompts.from_file("-")


def test_words_that_are_no_text_are_refused_and_those_that_the_locale_mangled_are_not():
    with pytest.raises(UsageProblem, match="not UTF-8"):
        prompts.from_arguments(["a\udcff"])
    mangled = "ü".encode().decode("ascii", "surrogateescape")
    assert prompts.from_arguments([mangled, "a"]) == [("prompt", "ü"), ("prompt", "a")]


def test_a_file_is_utf_8_in_every_locale(tmp_path):
    """Also where the system's own encoding is ASCII, and its words cannot hold such a character."""
    (tmp_path / "p.txt").write_bytes("é".encode())
    code = (
        "import sys; from types import SimpleNamespace as Made; from speclab.models import prompts\n"
        "tokenizer = lambda text: Made(input_ids=list(text.encode()))\n"
        "print(prompts.encode(prompts.from_file(sys.argv[1]), tokenizer)[0].id_list, sys.getfilesystemencoding())"
    )
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    words = [sys.executable, "-c", code, str(tmp_path / "p.txt")]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **ascii_only}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(list("é".encode())))


def test_a_text_that_the_tokenizer_does_not_know_is_one_line():
    """A vocabulary of words without one for the unknown: the library raises a plain Exception."""
    words = Tokenizer(WordLevel({"a": 0}))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    assert prompts.encode([("x", "a")], tokenizer)[0].id_list == [0]
    with pytest.raises(UsageProblem, match=r"refuses a prompt: .*UNK.*; give a text"):
        prompts.encode([("x", "b")], tokenizer)

    def hostile(text):
        raise ValueError("no\n\x1b[31mred")

    with pytest.raises(UsageProblem, match=r"a prompt: no ␛\[31mred;"):
        prompts.encode([("x", "b")], hostile)


def test_limit_counts_by_kind():
    import torch

    many = [prompts.Prompt(kind, "x", torch.zeros(1, 1)) for kind in "aabbb"]
    assert [p.kind for p in prompts.first_of_each_kind(many, 2)] == list("aabb")
    assert len(prompts.first_of_each_kind(many, 0)) == 5
