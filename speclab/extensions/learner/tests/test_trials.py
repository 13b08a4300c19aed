"""Wrong answers in processes of their own: none can stop the others, and what was measured is kept."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from speclab.extensions.learner import trials, wrong_answers
from speclab.extensions.learner.mutations import Mutant

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="every answer runs in a copy of the process")
QUICK = trials.Limits(case=9, answer=0.5)


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch):
    monkeypatch.setattr(trials, "TICK", 0.05)


def outcomes(test, sources, limits=QUICK, jobs=2):
    return dict(trials.try_all(test, sources, limits, jobs))


def stubborn():
    """Runs on, whatever is raised inside."""
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass


def stopped():
    """A process that the system stops, and that nobody lets go on."""
    os.kill(os.getpid(), signal.SIGSTOP)


def killed():
    """A process that the system ends, as it does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("end", [stubborn, stopped, killed, lambda: os._exit(0), lambda: time.sleep(1e6)])
def test_an_answer_that_never_comes_holds_nobody_up(end, jobs):
    def test(source, _):
        if source == "bad":
            end()
        return [source]

    sources = ["a", "bad", "b", "bad", "c"]
    found = outcomes(test, sources, jobs=jobs)
    assert {index: found[index] for index in (0, 2, 4)} == {0: ["a"], 2: ["b"], 4: ["c"]}
    for index in (1, 3):
        (message,) = found[index]
        assert wrong_answers.NO_WORDS.match(message)
        assert wrong_answers.Outcome(None, [message]).hung == (end.__name__ != "killed" and "did not" not in message)


@pytest.mark.parametrize("end", [stopped, killed])
def test_a_pause_of_the_machine_is_no_outcome(end, tmp_path):
    """What comes of the second try counts, and it may take longer."""

    def test(source, seconds):
        first = tmp_path / source
        if not first.exists():
            first.touch()
            end()
        return [source, f"{seconds:g}"]

    assert outcomes(test, ["a", "b", "c"]) == {i: [name, "27"] for i, name in enumerate("abc")}


def test_a_case_that_was_stopped_gets_a_second_try(tmp_path):
    def test(source, seconds):
        return [f"still running after {seconds:g} s"] if seconds < 20 and source == "slow" else ["the right words"]

    assert outcomes(test, ["slow", "quick"]) == {0: ["the right words"], 1: ["the right words"]}


def test_a_pause_of_this_process_takes_nobodys_time(monkeypatch):
    """The clock jumps ahead by an hour between two looks at it, as where the whole machine was paused."""
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr(trials.time, "monotonic", lambda: next(hours))
    moments = trials.wait

    def hardly_wait(objects, _):
        return moments(objects, 0.02)

    monkeypatch.setattr(trials, "wait", hardly_wait)

    def test(source, seconds):
        return ["in time"] if seconds == QUICK.case else ["only when it was tried again"]

    assert outcomes(test, ["a"], QUICK._replace(answer=600)) == {0: ["in time"]}


def test_no_process_is_left_behind(tmp_path):
    """Also where the run is stopped in the middle."""

    def test(source, _):
        (tmp_path / source).write_text(str(os.getpid()))
        return [] if source == "quick" else stubborn()

    going = trials.try_all(test, ["quick", "slow"], trials.Limits(9, 900), 2)
    assert next(going) == (0, [])
    for _ in range(200):
        if (tmp_path / "slow").exists() and (tmp_path / "slow").read_text():
            break
        time.sleep(0.1)
    going.close()
    for name in ("quick", "slow"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


def test_what_was_measured_is_kept(tmp_path, monkeypatch):
    """A run that is stopped goes on where it was; a torn line costs one answer."""
    (exercise,) = (e for e in wrong_answers.checklist.exercises() if e.number == 3)
    tried = tmp_path / "tried"
    tried.mkdir()

    def failing(stem, source, seconds):
        (tried / source).touch()
        return [f"wrong: {source}"]

    monkeypatch.setattr(wrong_answers, "failing_checks", failing)
    answers = [Mutant("f", "none", name, name) for name in "abcd"]
    file = tmp_path / "kept.jsonl"
    first = wrong_answers.run_all(exercise, answers[:2], 2, trials.Kept(file))
    assert {path.name for path in tried.iterdir()} == {"a", "b"}
    (tried / "a").unlink()
    (tried / "b").unlink()
    with open(file, "a") as lines:
        lines.write(json.dumps({"answer": trials._key(exercise.stem, "c"), "messages": ["torn"]})[:-3])
    store = trials.Kept(file)
    assert len(store) == 2
    both = wrong_answers.run_all(exercise, answers, 2, store)
    assert both[:2] == first
    assert [outcome.messages for outcome in both] == [[f"wrong: {name}"] for name in "abcd"]
    assert {path.name for path in tried.iterdir()} == {"c", "d"}
    assert len(trials.Kept(file)) == 4
    store.drop()
    assert len(trials.Kept(file)) == 0


def test_other_code_has_outcomes_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trials.paths, "ROOT", tmp_path)
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "ex.py").write_text("a = 1")
    before = trials.kept(QUICK)
    before.add("ex", "source", ["message"])
    assert trials.kept(QUICK).get("ex", "source") == ["message"]
    assert trials.kept(trials.Limits(1, 1)).get("ex", "source") is None
    for changed in ("solutions/ex.py", "draft_models.py", "prompts/code.txt"):
        (tmp_path / changed).parent.mkdir(exist_ok=True)
        (tmp_path / changed).write_text("a = 2")
        assert trials.kept(QUICK).get("ex", "source") is None, changed
        trials.kept(QUICK).add("ex", "source", ["message"])


def test_what_an_answer_has_started_ends_with_it(tmp_path):
    """An answer starts a process that never ends, and runs too long itself."""
    note = tmp_path / "pid"
    source = (
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )

    def test(text: str, seconds: float) -> list[str]:
        exec(text, {})
        return []

    ((_, messages),) = trials.try_all(test, [source], trials.Limits(1, 2), 1)
    assert messages[0].startswith(trials.STILL_RUNNING)
    end = time.monotonic() + 20
    while _runs(int(note.read_text("utf-8"))):
        assert time.monotonic() < end
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    """Whether a process is there, and is more than the entry that its parent has yet to read."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
