"""`check.py --run`: a reader's own functions in the loop. Right ones change nothing, wrong ones are never timed in
silence."""

import argparse
import importlib
import json
import re
import signal
import sys
from fractions import Fraction
from types import ModuleType, SimpleNamespace

import numpy
import pytest
import torch

import check
import compare
from draft_models import ModelDrafter, NgramDrafter
from exercises import guard
from exercises.guard import has_alarm
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import Sampling
from speclab.extensions.learner import checks, run
from speclab.extensions.learner.functions import CheckedDrafter, Learner, ask, finite, whole
from speclab.lab.instruments import LoopFunctions
from speclab.models import prompts
from speclab.models.cached import CachedModel
from speclab.records.files import ComparisonRun, read
from speclab.system import extensions, files
from speclab.system.errors import Problem, UsageProblem
from tests.tiny_models import VOCAB, perturbed, tiny

STEMS = {exercise.number: exercise.stem for exercise in checks.exercises()}
Modules = dict[int, ModuleType]
LAB = LoopFunctions(speculative_decode)
GREEDY, SAMPLED = Sampling(), Sampling(temperature=0.9)


def solution(number: int) -> ModuleType:
    return importlib.import_module(f"solutions.{STEMS[number]}")


def solved(*numbers: int) -> Modules:
    return {number: solution(number) for number in numbers}


def written(number: int, **functions) -> Modules:
    """A solution in which some functions are others."""
    return {number: SimpleNamespace(**{**vars(solution(number)), **functions})}


def taking_part(modules: Modules) -> LoopFunctions:
    return Learner("exercises", modules).functions()


@pytest.fixture(scope="module")
def pair() -> tuple[CachedModel, CachedModel]:
    """A target, and a draft that is often right."""
    target = tiny("llama")
    return CachedModel(target), CachedModel(perturbed(target, 0.05))


def rounds(
    pair,
    learner: LoopFunctions,
    sampling: Sampling = GREEDY,
    k: int = 4,
    ngram: bool = False,
    longest: int | None = None,
) -> list[Round]:
    """All rounds of a decoding that is decided by `learner`."""
    prompt = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(3))
    if ngram:
        prompt = prompt.repeat(1, 4)
    drafter = NgramDrafter(2, 1) if ngram else ModelDrafter(pair[1])
    settings = DecodeSettings(60, sampling, seed=5)
    return list(learner.rounds(pair[0], learner.adapt(drafter, longest), prompt, k, settings))


# --- right answers ----------------------------------------------------------------------------------------------------


def popping(drafted, own):
    """Exercise 2's count, in a number of numpy's, from lists that it uses up."""
    n = 0
    while drafted and drafted.pop(0) == own.pop(0):
        n += 1
    drafted.clear()
    return numpy.int64(n)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_solutions_decode_as_the_lab_does(pair, sampling):
    """Round for round, given the same random numbers; prompt lookup stands for one-hot distributions. Numbers of
    numpy's and torch's are right, too, and a list for a pair."""
    two, four = solution(2), solution(4)
    others = written(2, count_accepted=popping, next_token=lambda own, n: torch.tensor([two.next_token(own, n)]))
    others |= written(4, verify_draft=lambda *args: [numpy.int32(n) for n in four.verify_draft(*args)])
    for k, ngram in ((0, False), (4, False), (4, True)):
        expected = rounds(pair, LAB, sampling, k, ngram)
        for modules in (solved(2, 3, 4), others):
            assert rounds(pair, taking_part(modules), sampling, k, ngram) == expected
        if k and not ngram:  # it is sure that they have something to show
            assert any(0 < r.n_accepted < r.n_drafted for r in expected)
            assert any(0 < r.n_accepted == r.n_drafted for r in expected)
            whole_loop = rounds(pair, taking_part(solved(8)), sampling)
            counted = [[(r.tokens, r.n_drafted, r.n_accepted) for r in found] for found in (whole_loop, expected)]
            assert counted[0] == counted[1]


def test_exercise_seven_drafts(pair):
    """MyDrafter takes the n-gram drafter's place, and no other's."""
    learner = taking_part(solved(7))
    found = rounds(pair, learner, ngram=True)
    assert tokens_of(found) == tokens_of(rounds(pair, LAB, k=0, ngram=True))
    assert any(r.n_drafted for r in found)
    given = NgramDrafter(), ModelDrafter(pair[1])
    assert [type(learner.adapt(one, None)) for one in given] == [CheckedDrafter, ModelDrafter]


def test_exercise_six_chooses_every_length(pair):
    """The text stays, the lengths follow the rule, and -k is the longest."""
    seen = []

    def rule(k: int, n_drafted: int, n_accepted: int, longest: int) -> int:
        seen.append((k, n_drafted, n_accepted, longest))
        return 5 if k == 2 else 2

    learner = taking_part(written(6, next_draft_length=rule))
    found = rounds(pair, learner, k=6, longest=6)
    assert tokens_of(found) == tokens_of(rounds(pair, LAB, k=6))
    assert [r.n_drafted for r in found[1:6]] == [4, 2, 5, 2, 5]
    assert seen == [(k, r.n_drafted, r.n_accepted, 6) for (k, *_), r in zip(seen, found[1:], strict=True)]
    assert [k for k, *_ in seen[:4]] == [4, 2, 5, 2]
    assert all(r.n_drafted == 4 for r in rounds(pair, learner)[1:4]), "where nobody names a longest it is off"


# --- answers that cannot be -------------------------------------------------------------------------------------------


def drafting(tokens) -> Modules:
    """An exercise 7 that always proposes this."""

    class Wild(NgramDrafter):
        def propose(self, k, uniforms):
            return SimpleNamespace(tokens=tokens)

    return written(7, MyDrafter=Wild)


@pytest.mark.parametrize(
    ("modules", "sampling", "named"),
    [
        (written(2, count_accepted=lambda drafted, own: 99), GREEDY, ["exercise 2", "99", "from 0 to 4"]),
        (written(2, next_token=lambda own, n: None), GREEDY, ["exercise 2", "None"]),
        (written(2, next_token=lambda own, n: own[99]), GREEDY, ["raised IndexError: list index"]),
        (written(3, catch_up=lambda committed, n: None), GREEDY, ["exercise 3", "returned None"]),
        (written(3, tokens_to_keep=lambda cached, n: cached + 1), GREEDY, ["exercise 3", "not a whole number"]),
        (written(3, catch_up=lambda committed, n: committed[-1:]), GREEDY, ["exercise 3", "cache lacks: ["]),
        (written(4, verify_draft=lambda *args: (0, -1)), SAMPLED, ["exercise 4", "-1"]),
        (written(6, next_draft_length=lambda *args: 7), GREEDY, ["exercise 6", "7", "from 0 to 6"]),
        (drafting(torch.zeros(1, 9, dtype=torch.long)), GREEDY, ["exercise 7", "propose returned"]),
        (drafting(torch.full((1, 1), VOCAB)), GREEDY, ["exercise 7", "propose returned"]),
        (written(8, decode=lambda *args: iter([1 // 0])), GREEDY, ["exercise 8", "ZeroDivisionError"]),
    ],
)
def test_an_impossible_answer_is_one_line(pair, modules, sampling, named):
    """Which exercise, which function, what it said, and to which arguments: its checks have passed."""
    with pytest.raises(Problem) as caught:
        rounds(pair, taking_part(modules), sampling, k=4, longest=6, ngram=7 in modules)
    assert caught.value.exit_code == 1
    for word in [*named, "on real data; its arguments were "]:
        assert word in str(caught.value)


def test_what_is_no_number_is_one_line():
    """A number of another kind becomes a float."""
    for answer in (4.0, numpy.float64(4), "4", None, torch.tensor([1, 2])):
        with pytest.raises(Problem, match="not a whole number"):
            ask(2, lambda found: found[0], (answer,), check=whole(0, 9))
    for answer in ("0.5", None, 1j, float("nan"), float("inf"), torch.tensor([0.5, 0.5])):
        with pytest.raises(Problem, match=r"exercise 5: .* not a finite number"):
            ask(5, lambda found: found[0], (answer,), check=finite)
    for kind in (Fraction, numpy.float32, torch.tensor):
        answer = ask(5, lambda kind=kind: kind(0.5), check=finite)
        assert (answer, type(answer)) == (0.5, float)


def test_an_error_inside_a_library_has_the_learners_line():
    """Not the library's: that one cannot be mended. What is no Exception is one line, too."""
    space = {}
    source = "import torch\n\ndef rule(x):\n    return torch.einsum('i,j', x)\n"
    exec(compile(source, str(files.ROOT / "exercises" / "ex02_greedy.py"), "exec"), space)
    with pytest.raises(Problem, match=r"rule raised .*\(exercises/ex02_greedy\.py:4\) -- on real data"):
        ask(2, space["rule"], torch.ones(3))
    with pytest.raises(Problem, match=r"exercise 2: exit raised SystemExit: 3"):
        ask(2, sys.exit, 3)


# --- what never ends --------------------------------------------------------------------------------------------------


def forever(*_):
    while True:
        pass


def forever_after_a_round(*_):
    yield Round([1], prefill=True)
    forever()


class Endless:
    """A number that never ends to be read."""

    __index__ = forever


ENDLESS = {  # what is named, and what never ends
    "decode": lambda pair: rounds(pair, taking_part(written(8, decode=forever_after_a_round))),
    "Endless": lambda _: ask(2, Endless, check=whole(0, 9)),
    "forever": lambda _: ask(0, forever, lab_inside=True),
}


@pytest.mark.skipif(not has_alarm(), reason="this system has no alarm to stop a loop")
@pytest.mark.parametrize("name", ENDLESS)
def test_what_never_ends_is_stopped(pair, monkeypatch, name):
    """The alarm and its handler are as before. A pass of the lab within the call has ten times as long."""
    monkeypatch.setattr(guard, "SECONDS", {"decode": 0.05, "Endless": 0.1, "forever": 0.01}[name])
    before, armed = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with pytest.raises(Problem, match=rf"{name} is still running after 0\.[15] s: a loop .* -- on real data"):
        ENDLESS[name](pair)
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == armed
    assert signal.getsignal(signal.SIGALRM) is before


# --- which exercises --------------------------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch):
    """The checks' outcomes by exercise: "failed", "todo", "passed", or several of them."""
    outcomes: dict[int, list[str]] = {}

    def fill_in(package, chosen):
        for exercise in chosen:
            found = outcomes.get(exercise.number, ["todo"])
            exercise.checks = [checks.Check(f"test_number_{i}", [], what, f"why {i}") for i, what in enumerate(found)]

    monkeypatch.setattr(checks, "run_checks", fill_in)
    return outcomes


def test_what_is_finished_is_used_and_the_rest_is_named(checked, capsys):
    checked |= {2: ["passed"], 6: ["passed", "todo"]}
    assert run.load("solutions", [], {2, 3, 6, 8}) == solved(2)
    err = capsys.readouterr().err
    assert "the lab's own: 3 (" in err
    assert ": 1 of 2)" in err
    checked[1] = ["passed"]
    assert taking_part(run.load("solutions", [1], {1})).shapes(2, 4, 8, 2, 1000)["scores"] == (2, 4, 6)
    for numbers in ([3], [2, 3]):
        with pytest.raises(UsageProblem, match=r"not finished: .*3 \(which tokens stay.*todo\)"):
            run.load("exercises", numbers, {2, 3, 8})


def test_failing_checks_end_it_as_check_py_says_them(checked, capsys):
    checked |= {2: ["passed", "failed"], 3: ["failed", "failed"]}
    with pytest.raises(Problem, match=r"^checks fail, so nothing was run; type: .*check\.py 2") as caught:
        run.load("exercises", [], {2, 3})
    assert caught.value.exit_code == 1
    err = capsys.readouterr().err
    assert [err.count(word) for word in ("Exercise 2", "Exercise 3", "FAILS", "why")] == [1, 1, 3, 4]


def test_two_accept_rules_do_not_go_together(monkeypatch, capsys):
    """Another exercise has no opinion of the rule, and so no complaint either."""
    monkeypatch.setattr(run, "load", lambda *_: solved(10))
    words = ["--temperature", "0.8", "--rule", "block"]
    assert check.main(["10", "--run", "compare.py", *words]) == 2
    assert "--rule block and exercise 10 decide the same" in capsys.readouterr().err
    monkeypatch.setattr(run, "load", lambda *_: solved(3))
    seen = []
    monkeypatch.setattr(compare, "main", lambda words, functions: seen.append(words) or 7)
    assert check.main(["3", "--run", "compare.py", *words]) == 7
    assert seen == [["--alone", "--draft", "model,ngram", *words]], "no second size; what is typed stays"


def test_a_command_of_an_extension_gets_the_functions_that_it_uses(monkeypatch):
    """It says which words it was given, and which parts of a loop it can show."""

    def parse(words):
        return argparse.Namespace(draft="ngram", uses=words)

    got, usable = [], []
    command = SimpleNamespace(parse=parse, main=lambda words, functions: got.append((words, functions)) or 5)
    monkeypatch.setattr(extensions, "names", lambda module: ["looking"])
    monkeypatch.setitem(sys.modules, "speclab.extensions.looking.__main__", command)
    monkeypatch.setattr(run, "load", lambda *given: usable.append(given[-1]) or solved(1))
    assert check.main(["1", "--run", "looking", "shapes"]) == 5
    assert check.main(["1", "--run", "looking", "accept", "keeps", "adapt"]) == 5
    assert usable == [{1}, {2, 3, 4, 6, 7, 9}]
    assert [words for words, _ in got] == [["shapes"], ["accept", "keeps", "adapt"]]
    assert all(functions.shapes is not None for _, functions in got)


# --- the scripts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def script(pair_folder, capsys, monkeypatch):
    """A script on the tiny pair, with these modules in place of what run.load would choose."""

    def call(name: str, modules: Modules, *words: str, package: str = "exercises"):
        monkeypatch.setattr(run, "load", lambda *_: modules)
        machine = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager"]
        code = check.main(["--impl", package, "--run", name, *machine, *words])
        return (code, *capsys.readouterr())

    return call


def biased(own, n_accepted):
    """Exercise 2's next token, a wrong one where nothing was accepted."""
    return own[n_accepted] if n_accepted else (own[0] + 1) % 40


def test_optimized_speculative_holds_the_text_against_the_baselines(script, pair_folder):
    """An error begins on a line of its own: the text so far has been printed without an end of line."""
    name = "optimized_speculative.py"
    words = ["--draft", str(pair_folder / "draft"), "--prompt", "def f(x):", "--max-new-tokens", "24"]
    code, out, err = script(name, solved(2, 3), *words, package="solutions")
    assert (code, "the baseline's text: identical" in out) == (0, True)
    assert "impl    from solutions/: 2 (greedy verification), 3 (which tokens stay, and catch-up)" in err
    code, out, _ = script(name, written(2, next_token=biased), *words)
    assert code == 1
    assert re.search(r"WRONG TEXT: from new token .* exercises 2\b", out)
    code, out, err = script(name, written(2, next_token=lambda own, n: own[99]), *words)
    assert (code, out[-1:]) == (1, "\n")
    assert err.splitlines()[-1].startswith("error: exercise 2: ")


def test_the_baseline_is_rated_by_exercise_zero(script):
    name, words = "baseline_autoregressive.py", ["--prompt", "def f(x):", "--prompt", "x", "--max-new-tokens", "12"]
    code, out, _ = script(name, solved(0), *words)
    assert (code, out.count("\nyours, after a warm-up: 12 tokens, prefill")) == (0, 2)
    code, _, err = script(name, written(0, tokens_per_second=lambda *_: "fast"), *words)
    assert (code, "returned" in err) == (1, True)


@pytest.fixture
def comparison(script, pair_folder, tmp_path, monkeypatch):
    """compare.py on the tiny pair and two prompts, without pictures.  -> exit code, stdout, stderr, record"""
    monkeypatch.setattr(prompts, "standard", lambda: [("code", "def f(x):"), ("prose", "x + 1, x + 1,")])
    monkeypatch.setattr("speclab.present.pictures.comparison", lambda *args: [])

    def call(modules, *words, package="exercises"):
        size = ["--limit", "1", "--max-new-tokens", "12", "--repeats", "1", "--out-dir", str(tmp_path)]
        drafts = ["--draft", f"{pair_folder / 'draft'},ngram"]
        result = script("compare.py", modules, *drafts, *size, *words, package=package)
        path = tmp_path / "results" / "local.json"
        return (*result, read(path, ComparisonRun) if path.exists() else None)

    return call


def cells_of(table: str) -> list[list[str]]:
    """The cells of a table's rows, by its columns."""
    return [line.split() for line in table.splitlines() if re.search(r"\d", line)]


def test_predictions_and_lengths_stand_at_the_end_of_a_comparison(comparison, tmp_path):
    """A row of each fixed length for exercise 5, a row of each draft for exercise 6; and whose rows these are."""
    five, predictions = solution(5), []

    def predicted_speedup(*given):
        predictions.append((*given, five.predicted_speedup(*given)))
        return predictions[-1][-1]

    modules = solved(2, 3, 4, 7) | written(5, predicted_speedup=predicted_speedup)
    modules |= written(6, best_draft_length=lambda alpha, c, v, o, longest: 2)
    code, out, _, record = comparison(modules, "-k", "2,4", "--temperature", "0,0.8", package="solutions")
    assert code == 0
    about = Learner("solutions", modules).functions().about
    assert record.settings["functions"] == about
    assert f"impl    {about}" in out
    assert f"took part in the speculative rows: {about}" in " ".join(out.split())
    assert "7 (the n-gram drafter)" in (tmp_path / "results" / "local.md").read_text()
    rows = [row for row in record.rows if row.draft and row.prompt_kind == "all"]
    tested = [row for row in rows if row.acceptance_rate is not None]
    _, table, lengths = re.split("What you predicted|The draft lengths that you would take", out)
    for row, (*_, alpha, yours, measured, _, _) in zip(rows, cells_of(table), strict=True):
        assert alpha == (f"{row.acceptance_rate:.2f}" if row in tested else "-"), "counted as the lab does"
        assert measured == f"{row.speedup:.2f}x"
        assert (yours == "-") == (row not in tested or row.draft_cost is None)
    priced = [row for row in tested if row.draft_cost is not None]
    for row, (alpha, k, c, v, o, speedup) in zip(priced, predictions, strict=True):
        costs = row.draft_cost, row.verify_cost, row.overhead
        assert (alpha, k, c, v, o) == pytest.approx((row.acceptance_rate, row.draft_length, *costs))
        assert speedup == pytest.approx(sum(alpha**i for i in range(k + 1)) / (k * c + v + o), rel=1e-5)
    assert predictions
    shown = cells_of(lengths)
    assert {(method, t) for method, t, *_ in shown} == {(row.method, f"{row.temperature:g}") for row in tested}
    for method, t, _, *said in shown:
        same = [row for row in tested if (row.method, f"{row.temperature:g}") == (method, t)]
        best, two = max(same, key=lambda row: row.speedup), next(row for row in same if row.draft_length == 2)
        assert said == ["2", f"{two.speedup:.2f}x", str(best.draft_length), f"{best.speedup:.2f}x"]


def test_a_comparison_finds_a_wrong_text(comparison):
    """A function that its checks let pass decides wrongly in the run: the run says so, and the exit code too."""
    code, _, _, record = comparison(written(2, next_token=biased), "-k", "2", "--temperature", "0")
    assert code == 1
    assert any(not entry["passed"] for entry in record.correctness)
    assert "BUG" in json.dumps(record.correctness)
