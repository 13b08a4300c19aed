"""check.py in a copy of the lab: a fresh clone, half an answer, a wrong one, code that breaks in every other way."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest

import check
from exercises.guard import has_alarm
from speclab.extensions.learner import checks
from speclab.system import files
from speclab.system.terminal import harmless
from tests.exercises.answers import checks_of, committed, mistakes, with_mistakes
from tests.exercises.conftest import names_used

ROOMS = ("exercises", "solutions", "speclab", "prompts", "tests/exercises", "docs/chapters")


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """What check.py needs of the lab, in a folder of its own; this process works in another one."""
    lab = tmp_path / "a lab"  # a blank in the path must not matter
    for room in ROOMS:
        shutil.copytree(files.ROOT / room, lab / room, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*files.ROOT.glob("*.py"), *files.ROOT.glob("tests/*.py"), files.ROOT / "pyproject.toml"]:
        shutil.copy(path, lab / path.relative_to(files.ROOT))
    (lab / "results").mkdir()
    shutil.copy(files.ROOT / "results" / "cpu-curves.json", lab / "results")  # exercise 17 reads its curves there
    (lab / "models" / "lab-pair").mkdir(parents=True)  # what tells a clone from an installed lab
    for path in (lab / "exercises").glob("ex*.py"):
        path.write_bytes(committed(f"exercises/{path.name}") or path.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files, "ROOT", lab)
    return lab


@pytest.fixture
def run(clone, capsys):
    """Call check.py; returns (exit code, stdout, stderr)."""

    def call(*words):
        code = check.main(list(words))
        return (code, *capsys.readouterr())

    return call


def exercise(number: int) -> checks.Exercise:
    return next(one for one in checks.exercises() if one.number == number)


def answer(number: int, old: str = "", new: str = "") -> None:
    """Fill in an exercise with its solution, or with the solution in which `old` has become `new`."""
    good = exercise(number).path("solutions").read_text()
    assert old in good
    exercise(number).path("exercises").write_text(good.replace(old, new) if old else good)


def only(*numbers: int) -> None:
    """Leave these exercises alone in the lab: the others' checks take seconds and nothing of them is asked here."""
    for one in checks.exercises():
        if one.number not in numbers:
            one.chapter.unlink()


def with_checks(number: int, table: dict[str, tuple[str, str | None]]) -> dict[str, str | None]:
    """An exercise with a function for each row of a table, and a check that calls it.  -> function -> what is said"""
    source, checks, said = "", "", {}
    path = exercise(number).path("exercises")
    for name, (body, words) in table.items():
        source += f"def {name}(){' -> int' * (name == 'forgets')}:\n{indent(dedent(body).strip(), '    ')}\n"
        checks += f"def test_{name}(learner):\n    learner.{name}()\n\n\n"
        place = f"exercises/{path.name}:{source.count(chr(10))}"
        said[f"test_{name}"] = words and words.replace("PLACE", place)
    path.write_text(source, encoding="utf-8")
    exercise(number).test_file.write_text(checks)
    return said


def limits(lab: Path, **limits: object) -> None:
    """Other limits for the code in this lab."""
    path = lab / "tests" / "exercises" / "conftest.py"
    for name, value in limits.items():
        text, n = re.subn(rf"^{name} = [^#]*", f"{name} = {value}  ", path.read_text(), flags=re.MULTILINE)
        assert n == 1
        path.write_text(text)


def checked(*numbers: int) -> dict[str, str | None]:
    """Run the checks of these exercises.  -> check -> what it says, None where it passes"""
    chosen = [exercise(number) for number in numbers]
    checks.run_checks("exercises", chosen)
    return {c.function: c.message if c.outcome != "passed" else None for one in chosen for c in one.checks}


def hold(found: dict[str, str | None], wanted: dict[str, str | None]) -> None:
    """Every check has ended, in the words that are wanted, in one short line."""
    assert found.keys() == wanted.keys()
    for name, words in wanted.items():
        said = found[name]
        assert said is None if words is None else words in said, (name, said)
        assert said is None or (len(said) < 1200 and len(said.splitlines()) == 1), name


FINE = ("return 1", None)

# --- progress ---------------------------------------------------------------------------------------------------------


def test_a_fresh_clone_is_all_todo_from_any_folder(clone, tmp_path):
    """The script itself, as it is typed; nothing is red, and nothing is written into the clone."""
    before = sorted(clone.rglob("*"))
    words = [sys.executable, "-B", "a lab/check.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *_, last = lines = done.stdout.splitlines()
    rows = [line for line in lines if re.match(r" *\d+  ", line)]
    assert len(rows) == len(checks.exercises())
    for n, row in enumerate(rows):
        assert re.fullmatch(rf" *{n}  \S.+\S  +todo +a lab/docs/chapters/{n:02}-[a-z-]+\.md", row), row
    assert "docs/chapters/00-measuring.md, write time_decoding in " in last
    assert last.endswith("then type: python 'a lab/check.py' 0")
    assert sorted(clone.rglob("*")) == before


def test_the_first_unfinished_exercise_comes_next(run):
    """One that fails further down has to wait. Open holes are not wrong; the next hole is named."""
    only(0, 5)
    answer(5, "return accepted / tested", "return accepted")
    code, out, _ = run()
    assert code == 1
    assert re.search(r"^ 5 .* failing$", out, re.MULTILINE)
    assert "write time_decoding" in out.splitlines()[-1]
    answer(0, "n_decoded = n_tokens - 1\n", 'from exercises import Todo; raise Todo("ex00: tokens_per_second")\n')
    code, out, _ = run("0")
    assert (code, "write tokens_per_second in " in out.splitlines()[-1]) == (0, True)
    for said in ("[5 of 7]", "todo  the rate leaves the first token out", "  ok  the first token ends the prefill"):
        assert said in out
    answer(0)
    assert run()[1].splitlines()[-1].endswith("check.py' 5")
    code, out, _ = run("0")
    assert (code, out.splitlines()[-1][:8]) == (0, "all done")


def test_a_wrong_answer_gets_its_message_and_no_traceback(run):
    """And the end of what it has printed, once, with nothing in it that a terminal obeys."""
    shout = r"for i in range(25): print(f'line {i}\x1b[2J')" + "\n    n_decoded = n_tokens"
    answer(0, "n_decoded = n_tokens - 1", shout)
    code, out, _ = run("0")
    assert code == 1
    assert "that counts the first token too" in out.partition("FAILS  the rate leaves the first token out")[2]
    assert not re.search("Error|assert", out)
    printed = [line.strip() for line in out.splitlines() if line.strip().startswith("|")]
    assert printed == [f"| line {i}␛[2J" for i in range(15, 25)]
    assert out.splitlines()[-1].endswith("check.py' 0 --hint")
    assert harmless(out) == out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"x = 1\ny = (\n", "SyntaxError: '(' was never closed (exercises/ex00_measuring.py:2)"),
        (b"import sys\n\nsys.exit(3)\n", "SystemExit: 3 (exercises/ex00_measuring.py:3)"),
        (b"", "exercises/ex00_measuring.py cannot be imported: there is no such file"),
    ],
)
def test_a_file_that_cannot_be_imported_is_said_once(run, clone, text, said):
    path = clone / "exercises" / "ex00_measuring.py"
    path.write_bytes(text) if text else path.unlink()
    code, out, err = run("0")
    assert code == 1
    assert " ".join(out.split()).count(said) == 1
    assert (out.count("FAILS"), out.count("see above\n")) == (7, 6)
    assert "Traceback" not in out + err


# --- code that misbehaves ---------------------------------------------------------------------------------------------

alarms = pytest.mark.skipif(not has_alarm(), reason="this system has no alarm to stop a loop")

# What never ends, and is stopped inside its process.
ENDLESS = {"loops": "while True: pass", "waits": "__import__('threading').Event().wait()"}

# What raises, prints or breaks something, all of it in one process.
ODD = {
    "leaves_a_copy": ("if __import__('os').fork() == 0: raise ValueError('of the copy')", None),
    "is_fine": FINE,
    "asserts": ("assert 1 > 2", "AssertionError (PLACE)"),
    "asks": ("input('yes? ')", "OSError: "),
    "raises_no_exception": ("raise type('Odd', (BaseException,), {})('!')", "Odd: ! (PLACE)"),
    "cannot_say": ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 // 0})", "Odd: (its str() raises ZeroD"),
    "says_very_much": ("raise ValueError('much ' * 10**6)", "ValueError: much much"),
    "clears_the_screen": (r"raise ValueError('\x1b[2J\udc80 caf\xe9')", "ValueError: \x1b[2J\udc80 café (PLACE)"),
    "recurs": ("def f(): return f()\nf()", "RecursionError: maximum recursion depth"),
    "forgets": ("return None", "forgets returned None; did you forget `return`?"),
    "goes_elsewhere": ("__import__('os').chdir('/')", None),
}

# What ends the process, or breaks pytest: of this exercise no more is known then.
FATAL = {
    "interrupts": ("raise KeyboardInterrupt", "exit code 2"),
    "reads_where_nothing_is": ("__import__('ctypes').string_at(0)", "SIGSEGV (PLACE)"),
    "closes_stdout": ("__import__('sys').stdout.close()", "closed file"),
}


@alarms
def test_what_never_ends_is_stopped_and_the_rest_is_checked(clone):
    """With the place, also where the file is imported. Behind it come code that raises whatever there is, and an
    exercise that is done."""
    limits(clone, SECONDS=1, AGAIN=0.5)
    answer(6)
    words = [f"still running after {n} s (exercises/ex00_measuring.py:" for n in (1, 0.5)]
    wanted = with_checks(0, dict(zip(ENDLESS, zip(ENDLESS.values(), words, strict=True), strict=True)))
    wanted |= with_checks(5, ODD) | with_checks(7, {"is_imported": FINE})
    exercise(7).path("exercises").write_text("while True: pass\n")
    wanted["test_is_imported"] = "s (exercises/ex07_ngram.py:1): a loop without an end"
    found = checked(0, 5, 6, 7)
    hold({name: found.pop(name) for name in wanted}, wanted)
    assert found
    assert not any(found.values())


@pytest.mark.parametrize("name", FATAL)
def test_code_that_ends_python_is_said(clone, name):
    """Of the checks that it kept from running, too."""
    wanted = with_checks(0, {"is_fine": FINE, name: FATAL[name], "is_late": ("return 1", "")})
    found = checked(0)
    hold(found, wanted)
    assert "did not run: your code ended Python, with " in found["test_is_late"] or name.startswith("closes")


@pytest.mark.full
def test_what_nothing_can_interrupt_is_ended(clone, monkeypatch):
    """With the process, and the place is said. What has been checked before keeps its outcome."""
    limits(clone, SECONDS=0.5)
    monkeypatch.setattr(checks, "STACK", 1)
    monkeypatch.setattr(checks, "SILENCE", 4)
    thread = "__import__('threading').Thread(target=__import__('time').sleep, args=(10**6,)).start()"
    words = "still running, and nothing could interrupt it (exercises/ex00_measuring.py:"
    wanted = with_checks(0, {"leaves_a_thread": (thread, None), "stands": ("sum(range(10**13))", words)})
    hold(checked(0), wanted)


@pytest.mark.skipif(sys.platform != "linux", reason="not every system keeps a process's limits of memory")
def test_memory_and_files_have_an_end(clone):
    """What grows slowly, and a print without an end: no disk is filled, and what is fine passes."""
    limits(clone, MEMORY_BYTES="1 << 28", FILE_BYTES="1 << 20")
    table = {
        "grows": ("x = []\nwhile True: x.append(bytearray(10**6))", "MemoryError (PLACE)"),
        "prints": ("while True: print('more ' * 99)", "File too large (PLACE)"),
        "is_fine": FINE,
        # It holds itself: where nothing is left, pytest ends too.
        "grows_in_small_steps": ("x = []\nwhile True: x.append([x])", "MemoryError"),
    }
    wanted = with_checks(0, table)
    hold(checked(0), wanted)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_nothing_lives_on(clone):
    """A copy that the code has made ends with the checks: it holds a pipe open, whose end comes when nobody does."""
    pipe = clone / "pipe"
    os.mkfifo(pipe)
    body = f"""
    import os, time
    pipe = open({str(pipe)!r}, "w", buffering=1)
    if os.fork() == 0:
        time.sleep(30)
        pipe.write("lives on")
        os._exit(0)
    """
    with_checks(0, {"forks": (body, None)})
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # the code's open() waits for nobody
    assert checked(0) == {"test_forks": None}
    os.set_blocking(reading, True)
    assert os.read(reading, 9) == b""
    os.close(reading)


# --- files that are gone or broken ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "error", "advice"),
    [
        ("import speclab.nowhere", "No module named 'speclab.nowhere'", "git checkout -- a lab/tests"),
        ("import os; os._exit(0)", "pytest stopped", "git checkout -- a lab/tests"),
        ("import nowhere", "No module named 'nowhere'", "pip install -r a lab/requirements.txt"),
    ],
)
def test_a_broken_check_file_is_not_the_learners_fault(run, clone, line, error, advice):
    """Neither is a package that is not installed."""
    exercise(0).test_file.write_text(f"def test_x(learner):\n    pass\n\n{line}\n")
    code, out, err = run("0")
    assert (code, out) == (3, "")
    assert error in err
    assert advice in err
    assert len(err.splitlines()) == 2


def test_check_answers_at_once():
    """Before pytest runs nothing is loaded but the standard library and a few small files of the lab."""
    code = "import sys, check, speclab.extensions.learner.__main__; "
    code += "print(*sorted(name for name in sys.modules if '.' not in name or 'speclab' in name))"
    done = subprocess.run([sys.executable, "-c", code], cwd=files.ROOT, capture_output=True, text=True)
    modules = set(done.stdout.split())
    assert not modules & {"torch", "transformers", "numpy", "pytest", "draft_models"}, done.stderr
    rooms = {name.rpartition(".")[0] for name in modules if name.count(".") == 2}
    assert rooms == {"speclab.system", "speclab.extensions", "speclab.cli"}
    assert {name for name in modules if "speclab.cli." in name} == {"speclab.cli.parsing"}


# --- hints, and what follows from what --------------------------------------------------------------------------------


def test_every_check_leads_to_a_hint():
    for one in checks.exercises():
        for name, function in checks_of(one.stem).items():
            failed = checks.Check(name, names_used(function), "failed")
            assert checks.function_with_hints(replace(one, checks=[failed])), name


def test_hints_go_with_the_first_unfinished_function(run):
    """Up to the level asked for; a wrong function before one that is still open."""
    levels = [" ".join(level.split()) for level in checks.hints(exercise(0))["time_decoding"]]
    code, out, _ = run("0", "--hint", "2")
    assert code == 0
    assert out.startswith("time_decoding, in a lab/exercises/ex00_measuring.py")
    assert [level in " ".join(out.split()) for level in levels] == [True, True, False]
    answer(0, "n_decoded = n_tokens - 1", "n_decoded = n_tokens")
    assert run("0", "--hint")[1].startswith("tokens_per_second, in")
    answer(0)
    assert run("0", "--hint")[1].startswith("no hint is about exercise 0 as it is")


def test_two_mistakes_in_one_function_are_both_said_and_said_once(run):
    stem, beginnings = exercise(2).stem, ("an end in", "the budget")
    names = [name for name in mistakes(stem) if name.startswith(beginnings)]
    exercise(2).path("exercises").write_text(with_mistakes(stem, *names))
    out = " ".join(run("2")[1].split())
    assert [out.count(f"this mistake: {name}") for name in names] == [1, 1]


# --- in a run ---------------------------------------------------------------------------------------------------------


def test_a_hole_falls_back_to_the_labs_own_and_says_so(clone, pair_folder, tmp_path, capsys):
    """The whole thing as it is typed, in a process of its own; with a wrong function nothing is loaded."""
    only(2, 6)
    answer(6)
    answer(2, "return own[n_accepted]", 'from exercises import Todo; raise Todo("ex02: next_token")')
    models = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft")]
    machine = ["--threads", "1", "--engine", "eager", "--prompt", "def f(x):", "--max-new-tokens", "9"]
    words = [sys.executable, "a lab/check.py", "--run", "optimized_speculative.py", *models, *machine]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "from exercises/: 6 (the draft length)" in done.stderr
    assert "the lab's own: 2 (greedy verification: " in done.stderr
    assert "the baseline's text: identical" in done.stdout
    answer(2, "return own[n_accepted]", "return own[0]")
    assert check.main(["--run", "optimized_speculative.py", "--target", "nowhere"]) == 1
    assert "so nothing was run" in capsys.readouterr().err
