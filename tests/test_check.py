"""check.py in a copy of the lab: a fresh clone, half an answer, a wrong one, code that breaks in every other way."""

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

import check
from tests.exercises.conftest import returning_something

ROOMS = ("exercises", "solutions", "speclab", "experiments", "prompts", "tests/exercises", "docs/chapters")
PATIENCE = "experiments/unfinished.py"


@cache
def as_committed(path: str) -> bytes:
    """A stub as a fresh clone has it; as it stands where git does not know it."""
    try:
        shown = subprocess.run(["git", "-C", str(check.ROOT), "show", f"HEAD:{path}"], capture_output=True)
    except OSError:
        return (check.ROOT / path).read_bytes()
    return shown.stdout if shown.returncode == 0 else (check.ROOT / path).read_bytes()


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """What check.py needs of the lab, in a folder of its own; this process works in another one."""
    lab = tmp_path / "a lab"  # a blank in the path must not matter
    for room in ROOMS:
        shutil.copytree(check.ROOT / room, lab / room, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*check.ROOT.glob("*.py"), *check.ROOT.glob("tests/*.py"), check.ROOT / "pyproject.toml"]:
        shutil.copy(path, lab / path.relative_to(check.ROOT))
    for path in (lab / "exercises").glob("ex*.py"):
        path.write_bytes(as_committed(f"exercises/{path.name}"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check, "ROOT", lab)
    monkeypatch.setattr(check, "CHECKS", lab / "tests" / "exercises")
    return lab


@pytest.fixture
def run(clone, capsys):
    """Call check.py; returns (exit code, stdout, stderr)."""

    def call(*words):
        code = check.main(list(words))
        return (code, *capsys.readouterr())

    return call


def answer(lab: Path, number: int, old: str = "", new: str = "") -> None:
    """Fill in an exercise with its solution, or with the solution in which `old` has become `new`."""
    stem = next(exercise.stem for exercise in check.exercises() if exercise.number == number)
    good = (lab / "solutions" / f"{stem}.py").read_text()
    assert old in good
    (lab / "exercises" / f"{stem}.py").write_text(good.replace(old, new) if old else good)


def fill(lab: Path, number: int, text: str) -> None:
    stem = next(exercise.stem for exercise in check.exercises() if exercise.number == number)
    (lab / "exercises" / f"{stem}.py").write_text(text)


def only(lab: Path, *numbers: int) -> None:
    """Leave these exercises alone in the lab: the others' checks take seconds and nothing of them is asked here."""
    for exercise in check.exercises():
        if exercise.number not in numbers:
            exercise.chapter.unlink()


def test_a_fresh_clone_is_all_todo_from_any_folder(clone, tmp_path):
    """The script itself, as it is typed; nothing is red, and nothing is written into the clone."""
    before = sorted(clone.rglob("*"))
    words = [sys.executable, "-B", "a lab/check.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "running the checks of exercises 0, 1, 2, 3, 4, 5, 6, 7, 8 ...\n")
    lines = done.stdout.splitlines()
    rows = [line for line in lines if re.match(r" *\d+  ", line)]
    assert len(rows) == 9
    for n, row in enumerate(rows):
        assert re.fullmatch(rf" *{n}  \S.+\S  +todo +a lab/docs/chapters/{n:02}-[a-z-]+\.md", row), row
    assert lines[-1].startswith("next: read a lab/docs/chapters/00-measuring.md, write time_decoding in ")
    assert lines[-1].endswith("then type: python 'a lab/check.py' 0")
    assert sorted(clone.rglob("*")) == before


def test_solutions_are_done(run, clone):
    """The quick ones; what says it of all is tests/exercises/ itself."""
    only(clone, 0, 5, 6)
    code, out, _ = run("--impl", "solutions")
    assert code == 0
    assert out.count(" done ") == 3
    assert "todo" not in out
    assert "FAILS" not in out
    assert out.splitlines()[-1] == "all done: the lab is yours"


def test_the_first_unfinished_exercise_comes_next(run, clone):
    """One that fails further down has to wait; behind one that is done stands the next chapter."""
    only(clone, 0, 5, 6)
    answer(clone, 5, "return accepted / tested", "return accepted")
    code, out, _ = run()
    assert code == 1
    assert re.search(r"^ 5 .* failing$", out, re.MULTILINE)
    assert out.splitlines()[-1].startswith("next: read a lab/docs/chapters/00-measuring.md, write time_decoding in ")
    answer(clone, 0)
    assert run()[1].splitlines()[-1] == "next, for what is wrong: python 'a lab/check.py' 5"
    code, out, _ = run("0")
    assert code == 0
    assert out.splitlines()[-1] == (
        "next: read a lab/docs/chapters/05-speedup.md, or see where you are: python 'a lab/check.py'"
    )
    answer(clone, 6)
    assert run("6")[1].splitlines()[-1] == "next: see where you are: python 'a lab/check.py'"


def test_a_missing_file_is_named_and_how_to_get_it_back(run, clone):
    (clone / "exercises" / "ex05_speedup.py").unlink()
    for words in (("5",), ()):
        code, out, err = run(*words)
        assert (code, out) == (2, "")
        assert "a lab/exercises/ex05_speedup.py is missing" in err
        assert "type: git checkout -- 'a lab/exercises/ex05_speedup.py', or" in err
        assert "archive" in err
        assert len(err.splitlines()) == 1
    assert run("0")[0] == 0


def test_a_copy_beside_the_exercises_does_not_matter(run, clone):
    before = check.exercises()
    fill(clone, 5, "kept for later: no Python\n")
    (clone / "exercises" / "ex05_speedup.py").rename(clone / "exercises" / "ex05_speedup_old.py")
    answer(clone, 5)
    assert check.exercises() == before
    code, out, _ = run("5")
    assert code == 0
    assert "[done]" in out


def test_what_the_code_prints_is_shown_with_the_first_failure(run, clone):
    """The end of it, once; of a passing check nothing."""
    shout = 'for i in range(25): print(f"line {i}")\n    n_decoded = n_tokens'
    answer(clone, 0, "n_decoded = n_tokens - 1", shout)
    for words in (("0",), ("0", "--traceback")):
        out = run(*words)[1]
        assert [line.strip() for line in out.splitlines() if "line" in line and "|" in line] == [
            f"| line {i}" for i in range(15, 25)
        ]
        assert out.count("your code printed, the last 10 of 25 lines:") == 1
        said = out.splitlines()
        at = next(i for i, line in enumerate(said) if "your code printed" in line)
        assert "that counts the first token too" in said[at - 1]
    answer(clone, 0, "n_decoded = n_tokens - 1", 'print("quiet")\n    n_decoded = n_tokens - 1')
    assert "quiet" not in run("0")[1]


def test_a_forgotten_return_is_called_that(run, clone):
    """Instead of the TypeError that it leads to."""
    answer(clone, 0, "return first - start, end - first, n_tokens", "first - start, end - first, n_tokens")
    out = run("0")[1]
    assert "time_decoding returned None; did you forget `return`?" in out
    assert "TypeError" not in out


def test_a_method_may_return_none_where_that_is_promised(monkeypatch):
    module = ModuleType("exercises.a_drafter")
    source = """
    class Mine:
        def propose(self, k: int) -> list[int]:
            "forgotten"

        def start(self) -> None:
            "nothing to say"

        def find(self) -> int | None:
            "not always there"

    def unsaid(k):
        "no promise"
    """
    exec(dedent(source), module.__dict__)
    mine = returning_something(module, monkeypatch)
    assert mine.Mine().start() is mine.Mine().find() is mine.unsaid(1) is None
    with pytest.raises(pytest.fail.Exception, match=r"Mine\.propose returned None; did you forget `return`\?"):
        mine.Mine().propose(3)


def test_half_an_answer_is_so_many_of_so_many(run, clone):
    """Open holes are not wrong; the next hole is named."""
    answer(
        clone, 0, "n_decoded = n_tokens - 1\n", 'from exercises import Todo; raise Todo("ex00: tokens_per_second")\n'
    )
    code, out, _ = run("0")
    assert code == 0
    assert "Measuring honestly   [5 of 8]" in out
    assert "todo  the rate leaves the first token out" in out
    assert "  ok  the first token ends the prefill" in out
    only(clone, 0, 5)
    code, out, _ = run()
    assert code == 0
    assert re.search(r"^ 5 .* todo ", out, re.MULTILINE)
    assert re.search(r"^ 0 .* 5 of 8 ", out, re.MULTILINE)


def test_a_wrong_answer_gets_its_message_and_no_traceback(run, clone):
    answer(clone, 0, "n_decoded = n_tokens - 1", "n_decoded = n_tokens")
    code, out, _ = run("0")
    assert code == 1
    assert "FAILS  the rate leaves the first token out" in out
    assert "you got 4.5: that counts the first token too, whose seconds are in the prefill" in out
    assert "Error" not in out
    assert "assert" not in out
    assert out.splitlines()[-1] == "next, for a hint: python 'a lab/check.py' 0 --hint"
    code, out, _ = run("0", "--traceback")
    assert code == 1
    assert "def test_the_rate_leaves_the_first_token_out(mine):" in out
    only(clone, 0, 5)
    code, out, _ = run()
    assert code == 1
    assert "3 failing" in out
    assert out.splitlines()[-1] == "next, for what is wrong: python 'a lab/check.py' 0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def tokens_per_second(:\n", "ex00_measuring.py cannot be imported: SyntaxError"),
        ("import math\nx = nothing\n", "NameError: name 'nothing' is not defined (exercises/ex00_measuring.py:2)"),
        ("import no_such_library\n", "No module named 'no_such_library' (exercises/ex00_measuring.py:1)"),
        ("import sys\n\nsys.exit(3)\n", "SystemExit: 3 (exercises/ex00_measuring.py:3)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_said_once(run, clone, text, said):
    fill(clone, 0, text)
    code, out, err = run("0")
    assert code == 1
    assert " ".join(out.split()).count(said) == 1
    assert out.count("FAILS") == 8
    assert "Traceback" not in out + err
    assert out.splitlines()[-1] == "next, for another look when you have changed it: python 'a lab/check.py' 0"


def test_there_is_no_hint_for_a_file_that_cannot_be_imported(run, clone):
    fill(clone, 0, "import no_such_library\n")
    code, out, _ = run("0", "--hint")
    assert (code, out) == (0, "no hint is about what is wrong here; type: python 'a lab/check.py' 0\n")


def test_a_syntax_error_has_its_line(run, clone):
    fill(clone, 0, "x = 1\ny = (\n")
    out = run("0")[1]
    assert "(exercises/ex00_measuring.py:2)" in " ".join(out.split())


def test_an_exception_has_the_learners_line(run, clone):
    answer(clone, 5, "accepted = sum(n_accepted for _, n_accepted in rounds)", "accepted = rounds[99]")
    out = " ".join(run("5")[1].split())
    line = (clone / "exercises" / "ex05_speedup.py").read_text().splitlines().index("    accepted = rounds[99]") + 1
    assert f"IndexError: list index out of range (exercises/ex05_speedup.py:{line})" in out


@pytest.mark.skipif(not hasattr(__import__("signal"), "setitimer"), reason="this system has no alarm to stop a loop")
def test_a_loop_without_an_end_is_stopped(run, clone):
    """After its seconds, with the place; the other checks of the file get less patience."""
    patience = clone / PATIENCE
    text = patience.read_text()
    assert '"call": 10' in text
    patience.write_text(text.replace('"call": 10', '"call": 0.3').replace('"again": 1', '"again": 0.1'))
    answer(clone, 0, "start = first = now()", "while True:\n        pass")
    code, out, _ = run("0")
    assert code == 1
    said = " ".join(out.split())
    assert "still running after 0.3 s of processor time (exercises/ex00_measuring.py:" in said
    assert "still running after 0.1 s" in said
    assert "ok the rate leaves the first token out" in said
    fill(clone, 0, "while True:\n    pass\n")
    patience.write_text(text.replace('"setup": 60', '"setup": 0.3').replace('"again": 1', '"again": 0.1'))
    code, out, _ = run("0")
    assert code == 1
    assert "still running after 0.3 s of processor time (exercises/ex00_measuring.py:" in " ".join(out.split())


def test_code_that_ends_python_fails_its_own_checks_only(run, clone):
    answer(clone, 0, "n_decoded = n_tokens - 1", "__import__('os')._exit(7)")
    answer(clone, 5)
    code, out, _ = run("0")
    assert code == 1
    assert "did not run: your code ended Python, with exit code 7" in out
    assert "  ok  the first token ends the prefill" in out
    only(clone, 0, 5, 6)
    code, out, _ = run()
    assert code == 1
    assert re.search(r"^ 0 .* 5 of 8 ", out, re.MULTILINE)
    assert re.search(r"^ 5 .* done ", out, re.MULTILINE)
    assert re.search(r"^ 6 .* todo ", out, re.MULTILINE)


def test_a_broken_check_file_is_not_the_learners_fault(run, clone):
    (clone / "tests" / "exercises" / "test_ex00_measuring.py").write_text(
        "def test_x(mine):\n    pass\n\nimport nowhere\n"
    )
    code, _, err = run("0")
    assert code == 3
    assert "tests/exercises/test_ex00_measuring.py): ModuleNotFoundError: No module named 'nowhere'" in err
    assert "git checkout" in err
    assert err.splitlines()[0] == "running the checks of exercises 0 ..."
    assert len(err.splitlines()) == 2


def test_without_pytest_it_says_what_to_install(run, monkeypatch):
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    code, _, err = run("0")
    assert code == 3
    assert "pip install -r requirements.txt" in err


def test_hints_go_with_the_first_unfinished_function(run, clone):
    """Up to the level asked for; a wrong function before one that is still open."""
    known = check.hints()["ex00"]
    code, out, _ = run("0", "--hint")
    assert code == 0
    assert out.startswith("time_decoding, in a lab/exercises/ex00_measuring.py")
    said = " ".join(out.split())
    assert " ".join(known["time_decoding"][0].split()) in said
    assert " ".join(known["time_decoding"][1].split()) not in said
    said = " ".join(run("0", "--hint", "3")[1].split())
    assert all(" ".join(level.split()) in said for level in known["time_decoding"])
    answer(clone, 0, "n_decoded = n_tokens - 1", "n_decoded = n_tokens")
    assert run("0", "--hint")[1].startswith("tokens_per_second, in")
    answer(clone, 0)
    assert "is done" in run("0", "--hint")[1]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["99"], ["no exercise 99", "0 to 8", "check.py"]),
        (["two"], ["two", "--help"]),
        (["--hint"], ["--hint needs an exercise", "check.py' 3 --hint"]),
        (["--traceback"], ["--traceback needs an exercise"]),
        (["3", "--hint", "4"], ["4", "--help"]),
        (["--impl", "mine"], ["mine", "--help"]),
    ],
)
def test_bad_usage_is_one_line(run, words, named):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in named:
        assert word in err
