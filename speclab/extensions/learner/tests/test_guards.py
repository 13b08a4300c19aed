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
from speclab.extensions.learner import checklist, runner
from speclab.extensions.learner.functions import ROLES
from speclab.models.cached import CachedModel
from speclab.system import paths
from tests.exercises.answers import committed, with_wrong_answer

ROOT = paths.ROOT
STEMS = [exercise.stem for exercise in checklist.exercises()]
CHAPTERS = {exercise.stem: exercise.chapter for exercise in checklist.exercises()}
HEADINGS = ["Goal", "Picture", "Predict", "Do", "Check", "Run it for real", "Explain", "Quiz"]


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


def test_every_number_has_one_exercise():
    assert [int(stem[2:4]) for stem in STEMS] == [*range(18)]


@pytest.mark.parametrize("stem", STEMS)
def test_a_stub_has_holes_and_nothing_in_them(stem):
    """A hole is a docstring and a raise. Whatever else a stub holds, the solution holds word for word."""
    stub, solution = as_committed(f"exercises/{stem}.py"), as_committed(f"solutions/{stem}.py")
    theirs = public_functions(solution)
    if stem.startswith("ex08"):
        assert not holes(stub)
        assert stub != solution
        return
    assert holes(stub)
    for name, node in public_functions(stub).items():
        if name not in holes(stub):
            assert ast.dump(node) == ast.dump(theirs[name]), f"{name} is no hole and differs from the solution's"
            continue
        assert holes(stub)[name].rpartition(": ")[0] == stem[:4]
        assert holes(stub)[name].rpartition(": ")[2].rpartition(".")[2] == name.rpartition(".")[2]
        docstring, last = node.body
        assert isinstance(docstring.value, ast.Constant), f"{name} has no docstring"
        assert isinstance(last, ast.Raise), (
            f"{name} is filled in. If these are your own answers in a commit of yours, this failure is expected: "
            "keep them on a branch of your own"
        )
    assert "solutions" not in stub.replace("--impl solutions", "")


@pytest.mark.parametrize("stem", STEMS)
def test_exercise_and_solution_promise_the_same(stem):
    """Name by name: arguments, annotations, defaults, docstring; and the words above."""
    stub, solution = as_committed(f"exercises/{stem}.py"), as_committed(f"solutions/{stem}.py")
    ours, theirs = public_functions(stub), public_functions(solution)
    assert list(ours) == list(theirs)
    for name, node in ours.items():
        assert ast.dump(node.args) == ast.dump(theirs[name].args), name
        assert ast.unparse(node.returns) == ast.unparse(theirs[name].returns), name
        assert ast.get_docstring(node) == ast.get_docstring(theirs[name]), name
        assert ast.get_docstring(node), name
    number = int(stem[2:4])
    first = {kind: source.splitlines()[0] for kind, source in (("Exercise", stub), ("Solution", solution))}
    for kind, line in first.items():
        assert line.startswith(f'"""{kind} {number}: '), line
    assert first["Exercise"].partition(":")[2] == first["Solution"].partition(":")[2]
    assert "Todo" not in solution


@pytest.mark.parametrize("stem", STEMS)
def test_every_exercise_has_its_five_parts(stem):
    """Chapter, stub, solution, checks, hints of three levels for every hole."""
    exercise = next(e for e in checklist.exercises() if e.stem == stem)
    for path in (exercise.path("exercises"), exercise.path("solutions"), exercise.test_file):
        assert path.is_file(), path
    known = checklist.hints(exercise)
    wanted = {name.rpartition(".")[2] for name in holes(as_committed(f"exercises/{stem}.py"))}
    assert wanted <= set(known)
    for hole, levels in known.items():
        assert len(levels) == 3, hole
        assert all(len(level) > 20 and "```" not in level and "def " not in level for level in levels), hole
        assert len(set(levels)) == 3, hole


@pytest.mark.parametrize("stem", STEMS)
def test_a_chapter_has_its_form(stem):
    """Title, minutes and papers, the eight headings in order, a picture of 80 columns, two quiz questions."""
    text, number = CHAPTERS[stem].read_text(encoding="utf-8"), int(stem[2:4])
    lines = text.splitlines()
    assert re.fullmatch(rf"# {number}\. \S.*", lines[0])
    assert re.fullmatch(r"\*\d+ minutes.*[Pp]apers?: .*\d{4}\.\d{4,5}.*\*", lines[1]), lines[1]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    sections = dict(zip(HEADINGS, re.split(r"^## .+$", text, flags=re.MULTILINE)[1:], strict=True))
    pictures = re.findall(r"```text\n(.*?)```", sections["Picture"], re.DOTALL)
    assert pictures
    assert all(len(line) <= 80 for picture in pictures for line in picture.splitlines())
    assert "<summary>One possible answer</summary>" in sections["Explain"]
    assert len(re.findall(r"^\*\*[12]\.", sections["Quiz"], re.MULTILINE)) == 2
    assert sections["Quiz"].count("<details>") == 2
    assert f"python check.py {number}" in sections["Check"]
    run = [words for words in commands(sections["Run it for real"]) if "--run" in words]
    own = {("check.py", str(number), "--run")} if number in ROLES else set()
    assert {tuple(words[1:4]) for words in run} == own, "name the exercise: others may be finished too"
    assert own or "have no part in a run" in " ".join(text.split())
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")
    assert all(len(line) <= 120 for line in lines)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_table_of_chapter_five_follows_from_its_text():
    """The columns from the costs above the table; the picture and the prediction from the same pass."""
    text = CHAPTERS["ex05_speedup"].read_text(encoding="utf-8")
    said = re.search(r"At α = ([\d.]+), c = ([\d.]+), o = ([\d.]+)\nand v = 1 \+ ([\d.]+) k", text)
    alpha, c, o, slope = map(float, said.groups())
    rows = [cells(line) for line in text.splitlines() if re.match(r"\| \d+ \| \d", line)]
    assert [int(row[0]) for row in rows] == [1, 2, 4, 8, 16]
    for first, *row in rows:
        k = int(first)
        book, tau = 1 / (1 - alpha + alpha / k), sum(alpha**i for i in range(k + 1))
        steps = k * c + 1 + slope * k + o
        values = (book, tau, steps, tau / steps, steps - 1, tau / book - 1)
        digits = (2, 2, 3, 2, 3, 2)
        assert row == [f"{value:.{n}f}" for value, n in zip(values, digits, strict=True)], f"k = {k}"
    assert "with k = 4, c = 0.1, v = 1.1, o = 0.05" in text
    assert "k = 8, c = 0.1, v = 1.2, o = 0.05" in text
    assert "k = 4 (v = 1.1)" in text
    assert (1 + 4 * slope, 1 + 8 * slope) == pytest.approx((1.1, 1.2))
    assert f"With α = 13/16 and k = 4 that makes {sum((13 / 16) ** i for i in range(5)):.2f}" in text
    assert f"concludes: {1 / (1 - 0.42 + 0.42 / 8):.2f} times" in text


def test_the_jump_of_chapter_six_is_one():
    """k = 8 is worse than k = 7, and k = 11 better than both."""
    text = " ".join(CHAPTERS["ex06_draft_length"].read_text(encoding="utf-8").split())
    assert "it costs 1 up to 8 tokens and 1.2 from 9 to 12, with α = 0.9, c = 0.02 and o = 0." in text
    seven, eight, eleven = (
        sum(0.9**i for i in range(k + 1)) / (0.02 * k + (1 if k + 1 <= 8 else 1.2)) for k in (7, 8, 11)
    )
    assert eight < seven < eleven
    assert f"k = 7 gives {seven:.2f}, k = 8 only {eight:.2f}, and k = 11 gives {eleven:.2f}, more than both" in text


def test_the_syllabus_agrees_with_the_chapters():
    """Title, minutes and papers of every chapter; the core path's sum."""
    text = (ROOT / "docs" / "chapters" / "README.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if re.match(r"\| \d+ \|", line)
    ]
    rows = [row for row in rows if len(row) == 5]
    assert [int(row[0]) for row in rows] == [int(stem[2:4]) for stem in STEMS]
    core = 0
    for (number, link, minutes, _, papers), chapter in zip(rows, CHAPTERS.values(), strict=True):
        title, about = chapter.read_text(encoding="utf-8").splitlines()[:2]
        assert title == f"# {number}. {link[1:].partition(']')[0]}"
        assert link.endswith(f"({chapter.name})")
        assert about.startswith(f"*{minutes} minutes")
        assert set(re.findall(r"\d{4}\.\d{5}", about)) == set(re.findall(r"\d{4}\.\d{5}", papers))
        core += int(minutes) if int(number) <= 5 else 0
    assert core == 180
    assert "three hours" in text


def commands(text: str) -> list[list[str]]:
    """Every command of a chapter's code blocks and of its inline code that begins with python."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    typed = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.strip()]
    typed += re.findall(r"`(python [^`\n]+)`", text)
    return [shlex.split(line, comments=True) for line in typed if not line.startswith("#")]


SCRIPTS = {
    f"{script.__name__}.py": script for script in (check, compare, baseline_autoregressive, optimized_speculative)
}


class Parsed(Exception):
    """The command line was understood."""


@pytest.mark.parametrize("path", [*CHAPTERS.values(), ROOT / "docs" / "chapters" / "README.md"], ids=lambda p: p.name)
def test_every_command_of_a_chapter_can_be_typed(path, monkeypatch, tmp_path):
    """The scripts are there and know the flags; nothing is run."""

    def stop(*args, **kwargs):
        raise Parsed

    for module, name in (
        (runner, "run_checks"),
        (flags, "load"),
        (flags, "setup_from"),
        (simulator, "fixed"),
    ):
        monkeypatch.setattr(module, name, stop)
    found = commands(path.read_text(encoding="utf-8"))
    assert found
    for words in found:
        assert words[0] in ("python", "git", "diff"), words
        if words[0] != "python":
            continue
        if words[1] == "-m":
            module, rest = words[2], words[3:]
            if module == "exercises.simulator":
                with pytest.raises(Parsed):
                    simulator.main(rest)
            elif module == "pytest":
                continue
            else:
                path = ROOT / module.replace(".", "/")
                assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
            continue
        script, rest = words[1], words[2:]
        assert script in SCRIPTS, words
        if script == "compare.py":
            rest += ["--out-dir", str(tmp_path)]
        with pytest.raises(Parsed):
            SCRIPTS[script].main(rest)


def test_a_wrong_method_leaves_the_labs_classes_alone():
    """Those that a solution imports have methods of the same name."""
    before = CachedModel.prefill
    learner = with_wrong_answer(
        "ex07_ngram", "MyDrafter.prefill", "def prefill(self, target, prompt, sampling):\n    pass"
    )
    assert CachedModel.prefill is before
    assert learner.CachedModel is CachedModel
    assert learner.MyDrafter.prefill.__code__.co_filename == "<string>"
