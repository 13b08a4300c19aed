"""What keeps the exercises whole: nothing given away, nothing missing, and checks that can fail.

Stubs are read as they are committed, so that answers written into a checkout leave these tests alone.
"""

import ast
import re
import shlex

import pytest

import baseline_autoregressive
import check
import compare
import optimized_speculative
from exercises import simulator
from speclab.cli import flags
from speclab.extensions.learner import checks
from speclab.extensions.learner.functions import ROLES
from speclab.system import files
from tests.exercises.answers import committed

ROOT = files.ROOT
CHAPTERS = {exercise.stem: exercise.chapter for exercise in checks.exercises()}


def as_committed(path: str) -> str:
    """A file as it is in HEAD."""
    text = committed(path)
    if text is None:
        pytest.skip("this is no git checkout, so there are no committed stubs to look at")
    return text.decode()


def public_functions(source: str) -> dict[str, ast.FunctionDef]:
    """Public functions and methods in order; a method is Class.method."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{n.name}": n for n in node.body if isinstance(n, ast.FunctionDef)}
    return {name: node for name, node in found.items() if not name.rpartition(".")[2].startswith("_")}


def holes(source: str) -> dict[str, str]:
    """Functions that raise Todo -> what they raise it with."""
    found = {}
    for name, node in public_functions(source).items():
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and getattr(inner.func, "id", "") == "Todo":
                found[name] = inner.args[0].value
    return found


def body(function: ast.FunctionDef) -> list[str]:
    """What a function does, without its docstring."""
    return [ast.dump(node) for node in function.body[ast.get_docstring(function) is not None :]]


@pytest.mark.parametrize("exercise", checks.exercises(), ids=lambda exercise: exercise.stem)
def test_a_stub_has_holes_and_nothing_in_them(exercise):
    """A hole is a docstring and a raise. Whatever else a stub holds, the solution holds word for word, and both promise
    the same: arguments, annotations, defaults. Every hole has hints of three levels."""
    stem = exercise.stem
    stub, solution = as_committed(f"exercises/{stem}.py"), as_committed(f"solutions/{stem}.py")
    ours, theirs, open_ones = public_functions(stub), public_functions(solution), holes(stub)
    assert exercise.test_file.is_file()
    assert list(ours) == list(theirs)
    assert "Todo" not in solution
    assert "solutions" not in stub.replace("--impl solutions", "")
    for name, node in ours.items():
        assert ast.dump(node.args) == ast.dump(theirs[name].args), name
        assert ast.unparse(node.returns) == ast.unparse(theirs[name].returns), name
        assert ast.get_docstring(node), name
        if stem.startswith("ex08"):  # the bug hunt has no holes
            continue
        if name not in open_ones:
            assert body(node) == body(theirs[name]), f"{name} is no hole and differs from the solution's"
            continue
        assert open_ones[name].rpartition(": ")[0] == stem[:4]
        assert open_ones[name].rpartition(": ")[2].rpartition(".")[2] == name.rpartition(".")[2]
        docstring, last = node.body
        assert isinstance(docstring.value, ast.Constant), f"{name} has no docstring"
        assert isinstance(last, ast.Raise), (
            f"{name} is filled in. If these are your own answers in a commit of yours, this failure is expected: "
            "keep them on a branch of your own"
        )
    assert bool(open_ones) != stem.startswith("ex08")
    assert stub != solution
    known = checks.hints(exercise)
    assert {name.rpartition(".")[2] for name in open_ones} <= set(known)
    for hole, levels in known.items():
        assert len(levels) == 3, hole
        assert all("def " not in level for level in levels), hole


def test_the_table_of_chapter_five_follows_from_its_text():
    """The columns from the costs above the table."""
    text = CHAPTERS["ex05_speedup"].read_text(encoding="utf-8")
    said = re.search(r"At α = ([\d.]+), c = ([\d.]+), o = ([\d.]+)\nand v = 1 \+ ([\d.]+) k", text)
    alpha, c, o, slope = map(float, said.groups())
    rows = re.findall(r"^\| (\d+) \| (\d.*) \|$", text, re.MULTILINE)
    assert [int(k) for k, _ in rows] == [1, 2, 4, 8, 16]
    for k, row in rows:
        book, tau = 1 / (1 - alpha + alpha / int(k)), sum(alpha**i for i in range(int(k) + 1))
        steps = int(k) * c + 1 + slope * int(k) + o
        values = (book, tau, steps, tau / steps, steps - 1, tau / book - 1)
        digits = (2, 2, 3, 2, 3, 2)
        assert row.split(" | ") == [f"{value:.{n}f}" for value, n in zip(values, digits, strict=True)], f"k = {k}"


def test_the_syllabus_agrees_with_the_chapters():
    """Title, link and minutes of every chapter."""
    text = (ROOT / "docs" / "chapters" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| \[(.+?)\]\((.+?)\) \| (\d+) \|", text, re.MULTILINE)
    found = []
    for number, chapter in enumerate(CHAPTERS.values()):
        title, about = chapter.read_text(encoding="utf-8").splitlines()[:2]
        minutes = re.match(r"\*(\d+) minutes", about)[1]
        found.append((str(number), title.removeprefix(f"# {number}. "), chapter.name, minutes))
    assert rows == found


def commands(text: str) -> list[list[str]]:
    """Every command of a chapter's code blocks and of its inline code that begins with python."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    typed = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    typed += re.findall(r"`(python [^`\n]+)`", text)
    return [shlex.split(line, comments=True) for line in typed if not line.startswith("#")]


SCRIPTS = {
    f"{script.__name__}.py": script for script in (check, compare, baseline_autoregressive, optimized_speculative)
} | {"exercises.simulator": simulator}


class Parsed(Exception):
    """The command line was understood."""


@pytest.mark.parametrize("path", [*CHAPTERS.values(), ROOT / "docs" / "chapters" / "README.md"], ids=lambda p: p.name)
def test_every_command_of_a_chapter_can_be_typed(path, monkeypatch, tmp_path):
    """The scripts are there and know the flags; nothing is run."""

    def stop(*args, **kwargs):
        raise Parsed

    for module, name in ((checks, "run_checks"), (flags, "load"), (flags, "setup_from"), (simulator, "fixed")):
        monkeypatch.setattr(module, name, stop)
    found = commands(path.read_text(encoding="utf-8"))
    assert found
    if path.name != "README.md":
        own = {str(int(path.name[:2]))} & {str(n) for n in ROLES}
        assert {w[2] for w in found if w[1:2] == ["check.py"] and "--run" in w} == own, "name the exercise alone"
    for words in found:
        assert words[0] in ("python", "git", "diff"), words
        if words[0] != "python":
            continue
        script, rest = (words[2], words[3:]) if words[1] == "-m" else (words[1], words[2:])
        if words[1] == "-m" and script not in SCRIPTS:
            file = ROOT / script.replace(".", "/")
            known = script == "pytest" or file.with_suffix(".py").is_file() or (file / "__main__.py").is_file()
            assert known, words
            continue
        assert script in SCRIPTS, words
        rest += ["--out-dir", str(tmp_path)] if script == "compare.py" else []
        with pytest.raises(Parsed):
            SCRIPTS[script].main(rest)
