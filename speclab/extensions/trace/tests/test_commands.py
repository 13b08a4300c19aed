"""The commands: a page, the terminal, shapes; and what they refuse, in one line each."""

import re
import shlex
from types import SimpleNamespace

import pytest

import optimized_speculative
from optimized_speculative import speculative_decode
from solutions.ex01_shapes import shapes as of_exercise
from speclab.core.accept import accept_from_logits
from speclab.extensions.trace import follow
from speclab.extensions.trace.__main__ import main, parse
from speclab.extensions.trace.tests.test_trace import Tags
from speclab.lab.instruments import LoopFunctions
from speclab.models import loading
from speclab.system.errors import Problem
from speclab.system.files import ROOT
from tests.cli.bad_inputs import Row
from tests.cli.test_bad_inputs import check_row, folder, is_one_line  # noqa: F401 - a fixture


@pytest.mark.parametrize(
    "words", [[], ["--temperature", "0.8"], ["--draft", "ngram"], ["-k", "0"], ["--draft", "dial:0.7:free"]]
)
def test_a_trace_is_the_decoding(models, capsys, tmp_path, words):
    """The counts on the page are those that the script prints: the trace decodes with the same dice."""
    words = [*models, "--ignore-eos", "--prompt", "def f(x):", *words]
    assert optimized_speculative.main(words) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("rounds "))
    n_rounds, n_drafted, n_accepted = (int(part.split()[-1]) for part in line.split(", ")[:3])
    assert main([str(tmp_path / "new" / "t.html"), *words]) == 0
    page = (tmp_path / "new" / "t.html").read_text("utf-8")
    assert f"{n_rounds} rounds, {n_drafted} drafted, {n_accepted} accepted" in page
    assert "t.html" in capsys.readouterr().err
    assert str(tmp_path) not in page
    data = Tags(page).data
    if "--temperature" not in words:
        assert "Both texts are the same" in page
    else:
        assert all(len(token) == 4 for round_ in data["sampled"][0]["rounds"][1:] for token in round_["own"])


@pytest.mark.parametrize("words", [[], ["-"]])
def test_a_trace_in_the_terminal(models, capsys, words):
    assert main([*words, *models, "--prompt", "def f(x):"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "tokens per round" in out
    assert "signs" in out


def test_other_functions_take_part(models, capsys):
    """They are in the place of the lab's own, and the head names them."""
    judged = []

    def accept(*given):
        judged.append(given)
        return accept_from_logits(*given)

    functions = LoopFunctions(speculative_decode, accept=accept, about="somebody's rule")
    assert main([*models, "--prompt", "def f(x):"], functions) == 0
    out, err = capsys.readouterr()
    assert len(judged) >= out.count("/4")
    assert "impl    somebody's rule" in err
    assert set(parse([]).uses) == {"accept", "keeps", "adapt"}


@pytest.mark.parametrize("wrong", [False, True])
def test_what_others_say_of_shapes_stands_beside_them(models, capsys, wrong):
    said = {"ids": (99,)} if wrong else {}
    functions = LoopFunctions(speculative_decode, shapes=lambda *sizes: of_exercise(*sizes) | said)
    assert main(["shapes", *models, "--prompt", "def f(x):"], functions) == int(wrong)
    assert ("(99,)" in capsys.readouterr().out) == wrong
    assert parse(["shapes"]).uses == ("shapes",)


TRACE, MODEL = "-m speclab.extensions.trace", "--target target --threads 1 --engine eager --prompt x"
BAD = [
    ("nonsense.html --nonsense", 2, ("--nonsense", "--help")),
    ("a.html b.html", 2, ("b.html", "--help")),
    ("empty-folder", 3, ("empty-folder", "FILE")),
    ("''", 2, ("FILE", "empty")),
    ("file/x.html", 3, ("file/x.html", "FILE")),
    ("fifo", 3, ("fifo", "no regular file")),
    ("--target nowhere", 3, ("nowhere",)),
    ("--draft dial:0.5:free --temperature 1", 2, ("dial",)),
    ("--draft dial:0.8:free -k auto", 2, ("-k auto", "give -k a number")),
    ("shapes stray", 2, ("stray", "--help")),
    ("shapes -k auto", 2, ("auto", "whole number")),
    ("shapes --draft tree:2x2:draft", 2, ("shapes knows chains only",)),
]


@pytest.mark.parametrize(("words", "code", "said"), BAD, ids=[words for words, *_ in BAD])
def test_bad_input_is_one_line(folder, capfd, monkeypatch, words, code, said):  # noqa: F811
    name = "shapes" * words.startswith("shapes")
    command = f"{TRACE} {name} {MODEL} {words.removeprefix(name)}"
    check_row(folder, capfd, monkeypatch, Row(command, code, said))


def test_shapes_refuses_models_with_two_texts(monkeypatch, capsys):
    family = SimpleNamespace(one_text=False, plural="models with two texts")
    monkeypatch.setattr(loading, "family_named", lambda name: (family, None))
    assert main(["shapes", "--target", "somebody/x"]) == 2
    is_one_line(capsys.readouterr().err, "shapes does not know models with two texts, and somebody/x is one")


def test_every_command_of_a_page_can_be_typed(monkeypatch, capsys, tmp_path):
    """Nothing is loaded: the flags are known."""

    def load(args, *given, **named):
        raise Problem("typed")

    monkeypatch.setattr(follow, "load", load)
    monkeypatch.chdir(tmp_path)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "notebooks" / "tour.ipynb"]
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines()]
    command = re.compile(r"python (?:-m speclab\.extensions\.trace|check\.py \d+ --run trace)\b([^`#]*)")
    typed = [found[1] for line in lines for found in command.finditer(line)]
    assert len(typed) >= 8
    for words in map(shlex.split, typed):
        assert main(words) == 1, words
        assert capsys.readouterr().err == "error: typed\n", words
