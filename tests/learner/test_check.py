"""check.py in a copy of the lab: a fresh clone, half an answer, a wrong one, code that breaks in every other way."""

import contextlib
import importlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from textwrap import dedent, indent
from types import ModuleType

import pytest

import check
from speclab.learner import checklist, runner
from speclab.learner.guard import has_alarm
from speclab.system import paths
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import harmless
from tests.exercises.conftest import names_used, returning_something

ROOMS = ("exercises", "solutions", "speclab", "prompts", "tests/exercises", "docs/chapters")


@cache
def as_committed(path: str) -> bytes:
    """A stub as a fresh clone has it; as it stands where git does not know it."""
    try:
        shown = subprocess.run(["git", "-C", str(paths.ROOT), "show", f"HEAD:{path}"], capture_output=True)
    except OSError:
        return (paths.ROOT / path).read_bytes()
    return shown.stdout if shown.returncode == 0 else (paths.ROOT / path).read_bytes()


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """What check.py needs of the lab, in a folder of its own; this process works in another one."""
    lab = tmp_path / "a lab"  # a blank in the path must not matter
    for room in ROOMS:
        shutil.copytree(paths.ROOT / room, lab / room, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*paths.ROOT.glob("*.py"), *paths.ROOT.glob("tests/*.py"), paths.ROOT / "pyproject.toml"]:
        shutil.copy(path, lab / path.relative_to(paths.ROOT))
    (lab / "models" / "lab-pair").mkdir(parents=True)  # what tells a clone from an installed lab
    for path in (lab / "exercises").glob("ex*.py"):
        path.write_bytes(as_committed(f"exercises/{path.name}"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "ROOT", lab)
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
    stem = next(exercise.stem for exercise in checklist.exercises() if exercise.number == number)
    good = (lab / "solutions" / f"{stem}.py").read_text()
    assert old in good
    (lab / "exercises" / f"{stem}.py").write_text(good.replace(old, new) if old else good)


def fill(lab: Path, number: int, text: str) -> None:
    stem = next(exercise.stem for exercise in checklist.exercises() if exercise.number == number)
    (lab / "exercises" / f"{stem}.py").write_text(text)


def only(lab: Path, *numbers: int) -> None:
    """Leave these exercises alone in the lab: the others' checks take seconds and nothing of them is asked here."""
    for exercise in checklist.exercises():
        if exercise.number not in numbers:
            exercise.chapter.unlink()


def test_a_fresh_clone_is_all_todo_from_any_folder(clone, tmp_path):
    """The script itself, as it is typed; nothing is red, and nothing is written into the clone."""
    before = sorted(clone.rglob("*"))
    words = [sys.executable, "-B", "a lab/check.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        0,
        "running the checks of exercises 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17 ...\n",
    )
    lines = done.stdout.splitlines()
    rows = [line for line in lines if re.match(r" *\d+  ", line)]
    assert len(rows) == len(checklist.exercises())
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
    assert out.splitlines()[-1] == "all exercises are done"


def test_the_first_unfinished_exercise_comes_next(run, clone):
    """One that fails further down has to wait; after one that is done comes the next chapter."""
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


def test_what_reaches_the_terminal_is_harmless(run, clone):
    """Whatever an error says or the code prints, with pytest's own report too."""
    answer(clone, 0, "n_decoded = n_tokens - 1", r"print('\x1b[2J'); raise ValueError('\x1b[2J\udc80 caf\xe9')")
    out = run("0", "--traceback")[1]
    assert "ValueError: ␛[2J‹DC80› café (exercises/ex00_measuring.py:" in out
    assert "| ␛[2J" in out
    assert harmless(out) == out


def test_a_missing_file_is_named_and_how_to_get_it_back(run, clone):
    only(clone, 0, 5)
    (clone / "exercises" / "ex05_speedup.py").unlink()
    code, out, _ = run("5")
    assert code == 1
    said = " ".join(out.split())
    assert said.count("exercises/ex05_speedup.py cannot be imported: there is no such file") == 1
    assert "next, to get the file back: git checkout -- 'a lab/exercises/ex05_speedup.py', or unpack" in said
    code, out, _ = run()
    assert code == 1
    assert re.search(r"^ 5 .* failing$", out, re.MULTILINE)
    assert run("0")[0] == 0


def test_a_copy_beside_the_exercises_does_not_matter(run, clone):
    before = checklist.exercises()
    fill(clone, 5, "kept for later: no Python\n")
    (clone / "exercises" / "ex05_speedup.py").rename(clone / "exercises" / "ex05_speedup_old.py")
    answer(clone, 5)
    assert checklist.exercises() == before
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
    learner = returning_something(module, monkeypatch)
    assert learner.Mine().start() is learner.Mine().find() is learner.unsaid(1) is None
    with pytest.raises(pytest.fail.Exception, match=r"Mine\.propose returned None; did you forget `return`\?"):
        learner.Mine().propose(3)


def test_half_an_answer_is_so_many_of_so_many(run, clone):
    """Open holes are not wrong; the next hole is named."""
    answer(
        clone, 0, "n_decoded = n_tokens - 1\n", 'from exercises import Todo; raise Todo("ex00: tokens_per_second")\n'
    )
    code, out, _ = run("0")
    assert code == 0
    assert "Measuring honestly   [6 of 9]" in out
    assert "todo  the rate leaves the first token out" in out
    assert "  ok  the first token ends the prefill" in out
    only(clone, 0, 5)
    code, out, _ = run()
    assert code == 0
    assert re.search(r"^ 5 .* todo ", out, re.MULTILINE)
    assert re.search(r"^ 0 .* 6 of 9 ", out, re.MULTILINE)


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
    assert "def test_the_rate_leaves_the_first_token_out(learner):" in out
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
        (b"x = 1\0", "cannot contain null bytes"),
        (b"x = '\xff'", "SyntaxError: (unicode error)"),
        (b"# coding: nonsense\n", "SyntaxError: unknown encoding: nonsense"),
        (b"-" * 100_000 + b"1", "cannot be imported: "),
    ],
)
def test_a_file_that_cannot_be_imported_is_said_once(run, clone, text, said):
    (clone / "exercises" / "ex00_measuring.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    code, out, err = run("0")
    assert code == 1
    assert " ".join(out.split()).count(said) == 1
    assert out.count("FAILS") == 9
    assert out.count("the same as above\n") == 8
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


# --- code that misbehaves ---------------------------------------------------------------------------------------------

alarms = pytest.mark.skipif(not has_alarm(), reason="this system has no alarm to stop a loop")
limits = pytest.mark.skipif(sys.platform != "linux", reason="not every system keeps a process's limits of memory")

# What never ends, and is stopped inside its process.
ENDLESS = {
    "loops": "while True: pass",
    "sleeps": "__import__('time').sleep(10**6)",
    "waits": "__import__('threading').Event().wait()",
    "waits_for_a_caller": "__import__('socket').create_server(('127.0.0.1', 0)).accept()",
    "takes_a_lock_twice": "lock = __import__('threading').Lock()\nfor _ in range(2): lock.acquire()",
    "matches_for_ever": "__import__('re').match('(a+)+b', 'a' * 99)",
}

# What raises, prints or breaks something, all of it in one process.
ODD = {
    "leaves_a_copy": ("if __import__('os').fork() == 0: raise ValueError('of the copy')", None),
    "is_fine": ("return 1", None),
    "asserts": ("assert 1 > 2", "AssertionError (PLACE)"),
    "asserts_with_words": ("assert 1 > 2, 'too small'", "AssertionError: too small (PLACE)"),
    "asks": ("input('yes? ')", "OSError: "),
    "leaves": ("raise SystemExit(3)", "SystemExit: 3 (PLACE)"),
    "ends_a_generator": ("raise GeneratorExit", "GeneratorExit (PLACE)"),
    "ends_an_iteration": ("raise StopIteration", "StopIteration (PLACE)"),
    "raises_no_exception": ("raise type('Odd', (BaseException,), {})('!')", "Odd: ! (PLACE)"),
    "cannot_say": ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 // 0})", "Odd: (its str() raises ZeroD"),
    "says_a_number": ("raise type('Odd', (Exception,), {'__str__': lambda self: 7})", "Odd: (its str() raises TypeErr"),
    "says_itself": (
        "raise type('Odd', (Exception,), {'__str__': lambda self: str(self)})",
        "Odd: (its str() raises Re",
    ),
    "says_very_much": ("raise ValueError('much ' * 10**6)", "ValueError: much much"),
    "says_much_as_a_check": ("__import__('pytest').fail('much ' * 10**6)", "much much"),
    "says_nothing_as_a_check": ("__import__('pytest').fail('')", "Failed (PLACE)"),
    "clears_the_screen": (r"raise ValueError('\x1b[2J\udc80 caf\xe9')", "ValueError: \x1b[2J\udc80 café (PLACE)"),
    "recurs": ("def f(): return f()\nf()", "RecursionError: maximum recursion depth"),
    "asks_for_too_much": ("x = [0] * 10**12", "MemoryError (PLACE)"),
    "goes_elsewhere": ("__import__('os').chdir('/')", None),
}

# What ends the process, or breaks pytest: of this exercise no more is known then.
FATAL = {
    "interrupts": ("raise KeyboardInterrupt", "exit code 2"),
    "ends_pytest": ("__import__('pytest').exit('enough')", "exit code 2"),
    "exits": ("__import__('os')._exit(7)", "exit code 7"),
    "exits_as_if_all_was_well": ("__import__('os')._exit(0)", "exit code 0"),
    "aborts": ("__import__('os').abort()", "SIGABRT (PLACE)"),
    "kills_itself": ("__import__('os').kill(__import__('os').getpid(), 9)", "SIGKILL"),
    "kills_its_group": ("__import__('os').killpg(0, 15)", "SIGTERM"),
    "reads_where_nothing_is": ("__import__('ctypes').string_at(0)", "SIGSEGV (PLACE)"),
    "breaks_a_builtin": ("__import__('builtins').len = None", "exit code"),
    "closes_every_file": ("__import__('os').closerange(0, 99)", "Bad file descriptor"),
    "closes_stdout": ("__import__('sys').stdout.close()", "closed file"),
}


def with_checks(lab: Path, number: int, table: dict[str, tuple[str, str | None]]) -> dict[str, str | None]:
    """An exercise with a function for each row of a table, and a check that calls it.  -> function -> what is said"""
    source, checks, said = "", "", {}
    path = next(exercise.path("exercises") for exercise in checklist.exercises() if exercise.number == number)
    for name, (body, words) in table.items():
        source += f"def {name}():\n{indent(dedent(body).strip(), '    ')}\n"
        checks += f"def test_{name}(learner):\n    learner.{name}()\n\n\n"
        place = f"exercises/{path.name}:{source.count(chr(10))}"
        said[f"test_{name}"] = words and words.replace("PLACE", place)
    path.write_text(source, encoding="utf-8")
    (lab / "tests" / "exercises" / f"test_{path.name}").write_text(checks)
    return said


def patience(lab: Path, **limits: object) -> None:
    """Other limits for the code in this lab."""
    path = lab / "tests" / "exercises" / "conftest.py"
    for name, value in limits.items():
        text, n = re.subn(rf"^{name} = [^#]*", f"{name} = {value}  ", path.read_text(), flags=re.MULTILINE)
        assert n == 1
        path.write_text(text)


def checked(*numbers: int) -> dict[str, str | None]:
    """Run the checks of these exercises.  -> check -> what it says, None where it passes"""
    chosen = [exercise for exercise in checklist.exercises() if exercise.number in numbers]
    runner.run_checks("exercises", chosen)
    return {c.function: c.message if c.outcome != "passed" else None for exercise in chosen for c in exercise.checks}


def hold(found: dict[str, str | None], wanted: dict[str, str | None]) -> None:
    """Every check has ended, in the words that are wanted, in one line."""
    assert found.keys() == wanted.keys()
    for name, words in wanted.items():
        assert (found[name] is None) == (words is None), (name, found[name])
        assert (words or "") in (found[name] or ""), (name, found[name])
        assert len(found[name] or "") < 1200
        assert len((found[name] or "").splitlines()) <= 1


@alarms
def test_what_never_ends_is_stopped_and_the_rest_is_checked(clone, capsys):
    """With the place. Behind it come code that raises whatever there is, and an exercise that is done."""
    patience(clone, SECONDS=1, AGAIN=0.5)
    only(clone, 0, 5, 6)
    answer(clone, 6)
    words = [f"still running after {n} s (" for n in [1, *[0.5] * len(ENDLESS)]]
    endless = with_checks(
        clone, 0, {name: (body, said) for (name, body), said in zip(ENDLESS.items(), words, strict=False)}
    )
    odd = with_checks(clone, 5, ODD)
    found = checked(0, 5, 6)
    hold({name: found[name] for name in endless}, endless)
    hold({name: found[name] for name in odd}, odd)
    assert all("(exercises/ex00_measuring.py:" in found[name] for name in endless)
    rest = [said for name, said in found.items() if name not in endless | odd]
    assert rest == [None] * 10
    assert capsys.readouterr().err.count("running the checks") == 2, "what is done is not run again"


@alarms
def test_code_that_never_ends_when_it_is_imported_is_stopped(clone, capsys):
    """In every check; the next exercise does not notice."""
    patience(clone, SECONDS=1, AGAIN=0.5)
    with_checks(clone, 5, {"is_fine": ("return 1", None)})
    with_checks(clone, 0, {"is_here": ("return 1", None), "is_there": ("return 1", None)})
    fill(clone, 0, "while True: pass\n")
    found = checked(0, 5)
    assert found.pop("test_is_fine") is None
    assert len(found) == 2
    for message, seconds in zip(found.values(), (1, 0.5), strict=True):
        assert message.startswith(
            f"still running after {seconds} s (exercises/ex00_measuring.py:1): a loop without an end"
        )
    assert capsys.readouterr().err == "running the checks of exercises 0, 5 ...\n"


@pytest.mark.parametrize("name", FATAL)
def test_code_that_ends_python_is_said(clone, name):
    """Of the checks that it kept from running, too."""
    wanted = with_checks(clone, 0, {"is_fine": ("return 1", None), name: FATAL[name], "is_late": ("return 1", "")})
    found = checked(0)
    hold(found, wanted)
    assert "did not run: your code ended Python, with " in found["test_is_late"] or name.startswith("closes")


def test_code_that_ends_python_fails_its_own_checks_only(run, clone):
    only(clone, 0, 5, 6)
    answer(clone, 0, "n_decoded = n_tokens - 1", "__import__('os')._exit(7)")
    answer(clone, 5)
    code, out, _ = run()
    assert code == 1
    assert re.search(r"^ 0 .* 6 of 9 ", out, re.MULTILINE)
    assert re.search(r"^ 5 .* done ", out, re.MULTILINE)
    assert re.search(r"^ 6 .* todo ", out, re.MULTILINE)


@pytest.mark.parametrize(
    "body",
    [
        "sum(range(10**13))",
        "try:\n    __import__('time').sleep(99)\nexcept BaseException: pass\nwhile True: pass",
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass",
    ],
    ids=["a loop in C", "catches everything", "has no alarm"],
)
def test_what_nothing_can_interrupt_is_ended(clone, monkeypatch, body):
    """With the process, and the place is said. What has been checked before keeps its outcome."""
    patience(clone, SECONDS=0.5)
    monkeypatch.setattr(runner, "STACK", 1)
    monkeypatch.setattr(runner, "SILENCE", 6)
    words = "still running, and nothing could interrupt it (exercises/ex00_measuring.py:"
    wanted = with_checks(clone, 0, {"is_fine": ("return 1", None), "stands": (body, words)})
    hold(checked(0), wanted)


def test_a_thread_that_is_left_behind_ends_too(clone, monkeypatch):
    monkeypatch.setattr(runner, "SILENCE", 3)
    body = "__import__('threading').Thread(target=__import__('time').sleep, args=(10**6,)).start()"
    wanted = with_checks(clone, 0, {"leaves_a_thread": (body, None)})
    hold(checked(0), wanted)


@limits
def test_memory_and_files_have_an_end(clone):
    """What grows slowly, and a print without an end: no disk is filled, and what is fine passes."""
    conftest = clone / "tests" / "exercises" / "conftest.py"
    text = conftest.read_text()
    assert "4 << 30" in text
    assert "16 << 20" in text
    conftest.write_text(text.replace("4 << 30", "1 << 28").replace("16 << 20", "1 << 20"))
    table = {
        "grows": ("x = []\nwhile True: x.append(bytearray(10**6))", "MemoryError (PLACE)"),
        "prints": ("while True: print('more ' * 99)", "File too large (PLACE)"),
        "prints_elsewhere": ("while True: __import__('os').write(2, b'more ' * 99)", "File too large (PLACE)"),
        "is_fine": ("return 1", None),
        # Nothing is left for pytest either.
        "grows_in_small_steps": ("x = []\nwhile True: x.append([x])", "MemoryError"),
    }
    wanted = with_checks(clone, 0, table)
    hold(checked(0), wanted)


def test_one_exercise_does_not_spoil_the_next(run, clone, capsys):
    """What fails after another one is run again without it."""
    only(clone, 0, 5)
    answer(clone, 5)
    with_checks(clone, 0, {"patches": ("__import__('builtins').sum = None", None)})
    code, out, err = run()
    assert code == 0
    assert len(re.findall(" done ", out)) == 2
    assert err.splitlines()[1:] == ["running the checks of exercise 5 ..."]


def test_a_check_of_which_one_case_never_ended_has_failed(clone):
    path = clone / "tests" / "exercises" / "test_ex00_measuring.py"
    path.write_text(
        "import pytest\n\n@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_x(learner, n):\n    learner.f(n) if n > 1 else 0\n"
    )
    fill(clone, 0, "def f(n):\n    __import__('os')._exit(1)\n")
    hold(checked(0), {"test_x": "your code ended Python, with exit code 1"})


def test_a_torn_line_of_outcomes_is_left_out():
    assert list(runner._parsed(b'{"check": "test_x"}\n\xff\n{"check": "test')) == [{"check": "test_x"}]


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no such signals")
@pytest.mark.parametrize(
    ("name", "by_itself"),
    [("SIGTERM", False), ("SIGTERM", True), ("SIGINT", False), ("SIGHUP", False), (None, False)],
)
def test_nothing_lives_on(clone, name, by_itself):
    """A copy that the code has made ends with the checks, and with check.py where that is told to end.

    by_itself: the code itself sends the signal to check.py.

    The copy holds a pipe open and would write into it; the pipe's end comes when nobody holds it any more.
    """
    pipe = clone / "pipe"
    os.mkfifo(pipe)
    body = f"""
    import os, signal, time
    pipe = open({str(pipe)!r}, "w", buffering=1)
    if os.fork() == 0:
        time.sleep(600)
        pipe.write("lives on\\n")
        os._exit(0)
    pipe.write("ready\\n")
    {f"os.kill(os.getppid(), signal.{name})" if by_itself else ""}
    {"time.sleep(600)" if name else ""}
    """
    with_checks(clone, 0, {"forks": (body, None)})
    words = [sys.executable, "check.py", "0"]
    process = subprocess.Popen(words, cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def opened_in_any_case() -> None:
        """Where the process ends before it opens the pipe, nobody may wait for that."""
        process.wait()
        with contextlib.suppress(OSError):  # nobody waits
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))

    threading.Thread(target=opened_in_any_case, daemon=True).start()
    with pipe.open() as reading:
        assert reading.readline() == "ready\n"
        if name and not by_itself:
            process.send_signal(getattr(signal, name))
        assert reading.read() == ""
    out, err = process.communicate()
    assert process.returncode == (128 + getattr(signal, name) if name else 0)
    assert "Traceback" not in out + err


def test_files_that_cannot_be_read_fail_their_own_checks_only(clone):
    """A folder, a pipe, a link to nowhere, a link to itself."""
    answer(clone, 6)
    chosen = {exercise.number: exercise for exercise in checklist.exercises()}
    chosen = [chosen[number] for number in (0, 1, 3, 4, 6)]
    making = [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path)]
    for make, exercise in zip(making, chosen, strict=False):
        path = exercise.path("exercises")
        path.unlink()
        make(path)
    runner.run_checks("exercises", chosen)
    for exercise in chosen[:-1]:
        path = exercise.path("exercises")
        assert exercise.status.startswith("0 of ")
        for message in [check_.message for check_ in exercise.checks]:
            assert f"exercises/{path.name} cannot be imported: there is no such file" in message
        assert f"git checkout -- 'a lab/exercises/{path.name}', or unpack" in checklist.next_step(
            [exercise], "exercises"
        )
        assert checklist.function_with_hints(exercise) is None
    assert chosen[-1].status == "done"


def test_a_broken_check_file_is_not_the_learners_fault(run, clone):
    path = clone / "tests" / "exercises" / "test_ex00_measuring.py"
    for line, error in (
        ("nowhere", "NameError: name 'nowhere' is not defined"),
        ("import speclab.nowhere", "ModuleNotFoundError: No module named 'speclab.nowhere'"),
        ("(", "SyntaxError: '(' was never closed"),
        ("import os; os._exit(0)", "pytest stopped"),
    ):
        path.write_text(f"def test_x(learner):\n    pass\n\n{line}\n")
        code, out, err = run("0")
        assert (code, out) == (3, "")
        assert error in err
        assert "type: git checkout -- 'a lab/tests'" in err
        assert err.splitlines()[0] == "running the checks of exercise 0 ..."
        assert len(err.splitlines()) == 2


def test_without_a_package_it_says_what_to_install(run, clone, monkeypatch):
    """Outside the lab's environment the way into it; nobody's files are at fault."""
    install = "type: pip install -r 'a lab/requirements.txt'\n"
    path = clone / "tests" / "exercises" / "test_ex00_measuring.py"
    path.write_text("def test_x(learner):\n    pass\n\nimport nowhere\n")
    code, _, err = run("0")
    assert code == 3
    assert err.endswith(f"test_ex00_measuring.py): ModuleNotFoundError: No module named 'nowhere'; {install}")
    own = clone / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    monkeypatch.setattr(sys, "argv", ["a lab/check.py", "0"])
    assert run("0")[2].endswith("type: 'a lab/.venv/bin/python' 'a lab/check.py' 0\n")


def test_chapters_and_hints_that_are_gone_are_named(run, clone):
    shutil.rmtree(clone / "tests" / "exercises")
    hints = clone / "exercises" / "hints.toml"
    for path, text in ((hints, b"[ex00"), (hints, b"\xff"), (hints, None)):
        path.write_bytes(text) if text is not None else path.unlink()
        with pytest.raises(
            EnvironmentProblem, match=r"hints\.toml .*; type: git checkout -- 'a lab/exercises/hints\.toml'"
        ):
            checklist.hints(checklist.exercises()[0])
    code, out, err = run("0")
    assert (code, out) == (3, "")
    assert "git checkout -- 'a lab/tests" in err
    shutil.rmtree(clone / "docs")
    for words in ((), ("0",), ("0", "--hint")):
        code, out, err = run(*words)
        assert (code, out) == (3, "")
        assert err == "error: there is no chapter in a lab/docs/chapters; type: git checkout -- 'a lab/docs/chapters'\n"


def test_a_broken_list_of_hints_comes_after_the_result(run, clone):
    fill(clone, 0, "def tokens_per_second(n, s):\n    return 7\n")
    (clone / "exercises" / "hints.toml").write_text("[")
    code, out, err = run("0")
    assert code == 3
    assert out.count("FAILS") == 9
    assert err.splitlines()[-1].startswith("error: a lab/exercises/hints.toml is no list of hints: ")


@pytest.mark.parametrize("exercise", checklist.exercises(), ids=lambda exercise: exercise.stem)
def test_every_check_leads_to_a_hint(exercise):
    module = importlib.import_module(f"tests.exercises.test_{exercise.stem}")
    checks = [value for name, value in vars(module).items() if name.startswith("test_")]
    assert checks
    for function in checks:
        failed = checklist.Check(function.__name__, names_used(function), "failed")
        assert checklist.function_with_hints(replace(exercise, checks=[failed])), function.__name__


def test_hints_go_with_the_first_unfinished_function(run, clone):
    """Up to the level asked for; a wrong function before one that is still open."""
    known = checklist.hints(checklist.exercises()[0])
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
        (["99"], ["99", "0, 1, 2, 3, 4, 5, 6, 7, 8", "--help"]),
        (["two"], ["two", "--help"]),
        (["--hint"], ["--hint needs an exercise", "check.py' 3 --hint"]),
        (["--traceback"], ["--traceback needs an exercise"]),
        (["3", "--hint", "4"], ["4", "--help"]),
        (["--impl", "learner"], ["learner", "--help"]),
    ],
)
def test_bad_usage_is_one_line(run, words, named):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    for word in named:
        assert word in err


def test_check_answers_at_once():
    """Before pytest runs nothing is loaded but the standard library and a few small files of the lab."""
    code = "import sys, check; print(*sorted(name for name in sys.modules if '.' not in name or 'speclab' in name))"
    done = subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, capture_output=True, text=True)
    modules = set(done.stdout.split())
    assert not modules & {"torch", "transformers", "numpy", "pytest", "draft_models"}, done.stderr
    rooms = {name.rpartition(".")[0] for name in modules if name.count(".") == 2}
    assert rooms == {"speclab.system", "speclab.learner", "speclab.cli"}
    assert {name for name in modules if "speclab.cli." in name} == {"speclab.cli.parsing"}


def test_an_installed_lab_says_that_exercises_need_a_clone(monkeypatch):
    monkeypatch.setattr(checklist.paths, "IS_CLONE", False)
    with pytest.raises(EnvironmentProblem, match="belong to a clone"):
        checklist.exercises()


def test_what_fails_because_of_something_above_is_one_line(run, clone):
    """One wrong rule: the messages of its own checks; those that rest on it are named as such."""
    answer(clone, 4, "return uniform * draft_prob < target_prob", "return uniform < target_prob")
    out = run("4")[1]
    failing = [line for line in out.splitlines() if line.lstrip().startswith("FAILS")]
    assert len(failing) >= 5
    assert all("follows from the above" in line for line in failing[2:])
    assert not any("follows from the above" in line for line in failing[:2])  # of the wrong rule itself
    assert out.count("the draft's probability is left out") == 1
    assert "chi-square" not in out


def test_two_mistakes_of_different_functions_are_both_said(run, clone):
    answer(clone, 2)
    path = clone / "exercises" / "ex02_greedy.py"
    wrong = path.read_text().replace("return own[n_accepted]", "return own[-1]").replace("break  #", "continue  #")
    path.write_text(wrong)
    out = " ".join(run("2")[1].split())
    assert "agreements after the first rejected draft" in out
    assert "the last one was chosen after drafts that are rejected" in out
    assert out.count("follows from the above") >= 3


@pytest.mark.parametrize(
    ("mine", "its", "follows"),
    [
        ((["f", "g"], False), (["f"], False), True),
        ((["f"], False), (["f"], False), False),  # another idea about the same function
        ((["f"], True), (["f"], False), True),
        ((["f"], False), (["f", "g"], False), False),
        ((["f", "g"], False), (["f"], True), False),
        ((["g"], True), (["f"], False), False),
        ((["g"], True), ([], False), False),
    ],
)
def test_what_follows_from_what(mine, its, follows):
    one, other = (checklist.Check("test_x", [], "failed", reach=reach, is_whole=whole) for reach, whole in (mine, its))
    assert one.follows_from(other) == follows


def test_no_failure_is_silent(run, clone):
    """Bare assertions, messages without a word, the same message twice: every red line says something."""
    bodies = ("assert 1 > 2", "raise AssertionError", "raise ValueError", "__import__('pytest').fail('')")
    for body in bodies:
        source = (clone / "exercises" / "ex05_speedup.py").read_text()
        for name in ("acceptance_rate", "expected_tokens", "predicted_speedup"):
            source = source.replace(f'raise Todo("ex05: {name}")', body)
        fill(clone, 5, source)
        lines = run("5")[1].splitlines()
        for line, after in itertools.pairwise(lines):
            if line.lstrip().startswith("FAILS"):
                said = re.search(r"  (the same as above|follows from the above)$", line)
                assert said or (after.startswith(" " * 9) and after.strip()), (body, line)
        fill(clone, 5, as_committed("exercises/ex05_speedup.py").decode())
