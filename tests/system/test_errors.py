"""What a script's main() may end in, and what its user sees: one line and an exit code, or a fault's own traceback."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import check
from speclab.system import terminal
from speclab.system.errors import EnvironmentProblem, Problem, UsageProblem, reports_problems

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (Problem("a\n b"), 1, "error: a b"),
        (UsageProblem("x \x1b[31mred\u202e"), 2, "error: x ␛[31mred‹202E›"),
        (EnvironmentProblem("y"), 3, "error: y"),
        (KeyboardInterrupt(), 130, "stopped"),
        (BrokenPipeError(), 0, ""),  # the reader of a pipe has left
        (FileNotFoundError(2, "No such file", "z"), 3, "error: z: No such file; check the path and the disk"),
        (MemoryError(), 3, "error: out of memory: MemoryError; use a smaller model or shorter texts"),
        (torch.OutOfMemoryError("8 GiB\nmore"), 3, "error: out of memory: 8 GiB; use a smaller model or shorter texts"),
    ],
)
def test_what_a_user_can_mend_is_one_line(error, code, line, capsys):
    assert reports_problems(raises(error))() == code
    assert capsys.readouterr().err == (f"{line}\n" if line else "")


def raises(error: BaseException):
    def main() -> None:
        raise error

    return main


def test_a_fault_of_ours_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        reports_problems(raises(ZeroDivisionError()))()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("ignored", [False, True])
def test_sigterm_arrives_as_ctrl_c_and_an_ignored_signal_stays_ignored(number, ignored, capsys):
    before = signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        assert reports_problems(lambda: os.kill(os.getpid(), number))() == (0 if ignored else 130)
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == ("" if ignored else "stopped\n")


def run(code: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess:
    words = f'"{sys.executable}" -c "$CODE" {shell}'
    environment = {**os.environ, "PYTHONUNBUFFERED": "", "CODE": code, **environment}
    return subprocess.run(words, shell=True, cwd=ROOT, env=environment, capture_output=True, timeout=600)


def script(body: str) -> str:
    return (
        f"import sys\nfrom speclab.system.errors import *\n@reports_problems\ndef main():\n    {body}\nsys.exit(main())"
    )


FULL = b"error: standard output: No space left on device; check the path and the disk\n"


@pytest.mark.parametrize(
    ("body", "shell", "ending"),
    [
        ("terminal.say('x')", "> /dev/full", (3, b"", FULL)),
        ("print('x'); raise Problem('no')", "> /dev/full", (1, b"", b"error: no\n")),
        ("print('x')", "> /dev/full", (3, b"", FULL)),
        ("print('x')", ">&-", (0, b"", b"")),
        ("terminal.note('x'); terminal.progress(1, 'x', 'x').update()", "2>&-", (0, b"", b"")),
        ("raise OSError('odd')", "", (3, b"", b"error: OSError: odd; check the path and the disk\n")),
        ("[print('x' * 1000, flush=True) for _ in range(1000)]", "| head -c 1", (0, b"x", b"")),
    ],
)
def test_outputs_that_are_full_or_gone(body, shell, ending):
    if "/dev/full" in shell and not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    done = run(script(body), shell)
    assert (done.returncode, done.stdout, done.stderr) == ending


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "? ? 2 ?s ? ?"), ("cp1252", "? ? 2 µs ? ?"), ("utf-8", "α ≤ 2 µs 東 ?")]
)
def test_any_text_can_be_printed(encoding, shown):
    done = run(script(r"print('\u03b1 \u2264 2 \u00b5s \u6771 \udcff', end='')"), PYTHONIOENCODING=encoding)
    assert done.stdout.decode(encoding) == shown


STARTUP = "from speclab.system import startup; "


def test_a_script_says_a_word_first_and_ctrl_c_during_its_imports_is_one_line():
    wait = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"
    done = run(STARTUP + wait)
    assert (done.returncode, done.stderr) == (130, b"loading PyTorch\nstopped\n")


@pytest.mark.parametrize(("given", "found"), [({}, b"PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, b"ACTIVE")])
def test_threads_are_told_to_sleep_before_torch_is_loaded(given, found):
    by_a_module = f"import os, sys; exec({STARTUP!r}, {{'__name__': 'a module'}}); "
    done = run(by_a_module + "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)", **given)
    assert (done.stdout, done.stderr) == (found + b" False\n", b""), "what is imported by no script says nothing"


@pytest.mark.parametrize("loop", ["baseline_autoregressive", "optimized_speculative"])
def test_a_loop_begins_with_its_docstring_and_nothing_is_loaded_before_the_first_word(loop):
    lines = (ROOT / f"{loop}.py").read_text("utf-8").splitlines()
    assert lines[1].startswith('"""')
    first = next(line for line in lines if re.match(r"(from|import) (torch|speclab|draft|base)", line))
    assert first.startswith("from speclab.system import startup ")


FOLDERS = (ROOT, *(ROOT / name for name in ("benchmarks", "speclab/extensions", "tools", "training")))
PATHS = {path for folder in FOLDERS for path in folder.glob("*.py" if folder == ROOT else "**/*.py")}
SCRIPTS = [path for path in sorted(PATHS) if re.search(r"^def main\(", path.read_text("utf-8"), re.MULTILINE)]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_reports_its_problems(path):
    text = path.read_text("utf-8")
    # A main that hands over to the command line's room finds it there.
    handed = re.search(r"return (decoding|compare)\.run\(", text)
    there = (ROOT / "speclab" / "cli" / f"{handed[1]}.py").read_text("utf-8") if handed else text
    assert f"@reports_problems\ndef {'run' if handed else 'main'}(" in there
    assert "sys.exit(main())" in text
    if "import torch\n" in text:
        assert text.index("import startup") < text.index("import torch\n"), "Ctrl-C during the imports"


def test_text_that_could_harm_the_terminal_is_shown_as_signs(capsys):
    """The joiners of Persian, Hindi and emoji and a soft hyphen stay; what turns text around or hides it does not."""
    terminal.say("a\x1b]0;title\x07\u202e\udcff\tb\nc")
    terminal.note("d\x9b31m")
    assert tuple(capsys.readouterr()) == ("a␛]0;title␇‹202E›‹DCFF›\tb\nc\n", "d‹009B›31m\n")
    needed = "می\u200cخواهم क्\u200dष 👩\u200d💻 soft\u00adhyphen \u0600١"
    assert terminal.harmless(needed) == needed
    hiding = "\u200b\u200e\u200f\u061c\u202a\u202e\u2060\u2064\u2066\u2069\ufeff\U000e0001\U000e0041\U000e007f"
    assert terminal.harmless(hiding) == "".join(f"‹{ord(char):04X}›" for char in hiding)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_is_only_for_a_terminal(monkeypatch, capsys, is_terminal):
    """Elsewhere a line says once what begins, without control characters."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress(2, "turn", "measuring") as bar:
        bar.update()
    err = capsys.readouterr().err
    assert err.startswith("\rmeasuring:") if is_terminal else err == "measuring: 2 turns\n"


@pytest.mark.parametrize(("folder", "named"), [("", "requirements.txt"), ("docs", "../requirements.txt")])
def test_a_missing_library_is_one_line(folder, named):
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules['torch'] = None; import speclab.system.startup"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / folder, capture_output=True, text=True)
    said = f"error: torch is not installed for this Python; type: pip install -r {named}\n"
    assert (done.returncode, done.stderr) == (3, said)


def test_a_missing_folder_of_exercises_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "speclab" / "extensions" / "learner" / "__pycache__").mkdir(parents=True)  # git leaves it
    monkeypatch.setattr(check, "__file__", str(tmp_path / "check.py"))
    assert check.main([]) == 3
    folder = "speclab/extensions/learner"
    assert capsys.readouterr().err == f"error: the folder {folder} is not here; type: git checkout -- {folder}\n"
