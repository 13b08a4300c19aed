"""`learner run 14` to `16`: a reader's functions in batches and trees. Right ones change nothing, wrong ones are
named."""

import functools
import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.rule_table import rule_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.extensions.learner import checklist, loading
from speclab.extensions.learner.__main__ import main
from speclab.extensions.learner.rows_and_trees import command
from speclab.extensions.learner.rows_and_trees.asked import Asked
from speclab.extensions.learner.rows_and_trees.rows import OwnRows
from speclab.extensions.learner.rows_and_trees.sampled import OwnSampledTrees
from speclab.extensions.learner.rows_and_trees.trees import with_branches
from speclab.models.cached import CachedModel
from speclab.system.errors import Problem
from tests.tiny_models import DTYPE_ON, VOCAB, on_engine, perturbed, tiny

STEMS = {exercise.number: exercise.stem for exercise in checklist.exercises()}
WARM = Sampling(temperature=0.8, top_k=6)
N_TOKENS = 40


def part_of(extension: str, module: str):
    """A module of another extension, which this one does not import."""
    return pytest.importorskip(f"speclab.extensions.{extension}.{module}")


def solution(number: int):
    return importlib.import_module(f"solutions.{STEMS[number]}")


def asked_of(number: int, **functions) -> Asked:
    """The solution, in which some functions are others."""
    right = solution(number)
    return Asked(number, SimpleNamespace(**{**vars(right), **functions}), right)


@functools.cache
def pair_on(engine: str) -> tuple[CachedModel, CachedModel]:
    """A target, and a draft that is often right."""
    target = tiny("llama", dtype=DTYPE_ON[engine])
    target, draft = (CachedModel(model, fast=on_engine(engine, model)) for model in (target, perturbed(target, 0.1)))
    return target, draft


@pytest.fixture
def pair() -> tuple[CachedModel, CachedModel]:
    """Both on the eager engine."""
    return pair_on("eager")


def prompt_of(n: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, VOCAB, (1, n), generator=torch.Generator().manual_seed(seed))


# --- batches ----------------------------------------------------------------------------------------------------------

BUDGETS = [N_TOKENS, 1, 11, 23, 2, 17]


def batch(pair, asked: Asked | None, sampling: Sampling = GREEDY, n_rows: int = 2) -> list[list[Round]]:
    """The rounds of each of six texts in a batch."""
    decoding = functools.partial(part_of, "batch")
    requests = [
        decoding("decoding.texts").Request(prompt_of(5 + 4 * (i % 3), i), DecodeSettings(budget, sampling, seed=i))
        for i, budget in enumerate(BUDGETS)
    ]
    model = decoding("decoding.batched_model").BatchedModel
    rules = OwnRows(asked) if asked else None
    drafter = decoding("decoding.drafters").batch_drafter(ModelDrafter(pair[1]), n_rows)
    rounds = decoding("decoding.loops").speculative_decode_batch(model(pair[0], n_rows, rules), drafter, requests, 4)
    texts: list[list[Round]] = [[] for _ in requests]
    for number, round_ in rounds:
        texts[number].append(round_)
    return texts


@pytest.mark.parametrize("engine", ["eager", "c"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_the_solutions_keep_the_texts_of_a_batch_apart(sampling, engine):
    """Round for round as the lab does, with more texts than rows, and as each text is alone."""
    pair = pair_on(engine)
    for n_rows in (1, 2, 4):
        asked = asked_of(14)
        found = batch(pair, asked, sampling, n_rows)
        assert found == batch(pair, None, sampling, n_rows)
        assert not asked.first
    assert any(r.n_rejected for rounds in found for r in rounds)
    if sampling.greedy:
        settings = [DecodeSettings(budget) for budget in BUDGETS]
        prompts = [prompt_of(5 + 4 * (i % 3), i) for i in range(len(BUDGETS))]
        plain = [tokens_of(autoregressive_decode(pair[0], *both)) for both in zip(prompts, settings, strict=True)]
        assert [tokens_of(rounds) for rounds in found] == plain


def plus(function, change):
    """The same function, whose answer is changed."""
    return lambda *args: change(function(*args))


RIGHT = {number: solution(number) for number in (14, 15, 16)}
WRONG_ROWS = {
    "positions": plus(RIGHT[14].positions, lambda at: at.clamp(max=12)),
    "visible": plus(RIGHT[14].visible, lambda seen: torch.ones_like(seen)),
    "rolled_back": lambda lengths, n_accepted, ended: [
        0 if over else n + 1 + min(kept, 1) for n, kept, over in zip(lengths, n_accepted, ended, strict=True)
    ],
}


@pytest.mark.parametrize("engine", ["eager", "c"])
@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_wrong_function_of_a_batch_makes_a_wrong_text_and_is_named(name, engine):
    pair = pair_on(engine)
    asked = asked_of(14, **{name: WRONG_ROWS[name]})
    assert [tokens_of(rounds) for rounds in batch(pair, asked)] != [tokens_of(rounds) for rounds in batch(pair, None)]
    assert asked.first.startswith(f"exercise 14: {name} is the first function")


def test_texts_may_be_admitted_in_another_order(pair):
    """That is the solution's own text in every row, and nothing is refused."""

    def last_first(rows, waiting):
        placed, rest = RIGHT[14].admit(rows, waiting[::-1])
        return placed, rest[::-1]

    assert batch(pair, asked_of(14, admit=last_first)) == batch(pair, None)


# --- trees ------------------------------------------------------------------------------------------------------------

SHAPES = [(2, 2, 1), (1, 1, 1, 1), (3,)]


def tree_rounds(pair, asked: Asked | None, shape: tuple[int, ...], n_prompt: int = 7) -> list[Round]:
    """The rounds of a greedy decoding with trees."""
    drafter = part_of("trees", "fixed").TreeDrafter(ModelDrafter(pair[1]), shape)
    [k] = drafter.lengths([4])
    own = command.tree_functions(asked) if asked else command.LoopFunctions(speculative_decode)
    return list(own.rounds(pair[0], own.adapt(drafter, k), prompt_of(n_prompt), k, DecodeSettings(N_TOKENS)))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_solutions_decode_with_trees_as_the_lab_does(pair, shape):
    asked = asked_of(15)
    found = tree_rounds(pair, asked, shape)
    assert found == tree_rounds(pair, None, shape)
    assert not asked.first
    assert any(r.n_accepted > 0 for r in found)
    assert tokens_of(found) == tokens_of(autoregressive_decode(pair[0], prompt_of(7), DecodeSettings(N_TOKENS)))
    assert "keep" not in vars(pair[0]), "the target keeps places by its own rule again"


class Renamed:
    """A drafter or a target whose functions have other names than those that a reader's ones take the place of."""

    def kept(self, path):
        return path


def test_a_function_that_has_another_name_is_no_function_of_the_readers(pair):
    """Else the lab's own one would run, and its text would be taken for the reader's."""
    with pytest.raises(AttributeError, match="keep"):
        next(with_branches(asked_of(15), lambda target: iter([]), Renamed()))
    with pytest.raises(AttributeError, match="children"):
        OwnSampledTrees(Renamed(), asked_of(16))


def siblings_too(parents):
    return torch.ones(len(parents) + 1, len(parents) + 1, dtype=torch.bool).tril()


WRONG_TREES = {
    "positions": lambda parents, length: [length + i for i in range(len(parents) + 1)],
    "mask": siblings_too,
    "best_path": lambda parents, tokens, own: [parents.index(-1)] if parents else [],
    "gather": lambda path, length: list(range(length + 1 + len(path))),
}


@pytest.mark.parametrize("name", WRONG_TREES)
def test_a_wrong_function_of_a_tree_makes_a_wrong_text_and_is_named(pair, name):
    asked = asked_of(15, **{name: WRONG_TREES[name]})
    assert tokens_of(tree_rounds(pair, asked, (3, 2))) != tokens_of(tree_rounds(pair, None, (3, 2)))
    assert asked.first.startswith(f"exercise 15: {name} is the first function")


# --- sampled trees ----------------------------------------------------------------------------------------------------


def sampled_rounds(pair, asked: Asked | None, sampling: Sampling, rule: str, shape=(2, 2)) -> list[Round]:
    """The rounds of a decoding with sampled trees."""
    drafter = part_of("trees", "fixed").TreeDrafter(ModelDrafter(pair[1]), shape, sampled=True)
    [k] = drafter.lengths([4])
    lab = command.LoopFunctions(speculative_decode).judged_by(rule_of(rule))
    own = command.SampledTrees(asked, rule).functions().judged_by(rule_of(rule)) if asked else lab
    return list(own.rounds(pair[0], own.adapt(drafter, k), prompt_of(7), k, DecodeSettings(N_TOKENS, sampling, seed=5)))


@pytest.mark.parametrize("rule", ["token", "follow"])
@pytest.mark.parametrize("sampling", [WARM, Sampling(1.3, top_k=3, top_p=0.9)])
def test_the_solutions_sample_from_trees_as_the_lab_does(pair, sampling, rule):
    """Round for round, given the same random numbers."""
    asked = asked_of(16)
    for shape in ((2, 2), (3,), (1, 1, 1)):
        found = sampled_rounds(pair, asked, sampling, rule, shape)
        assert found == sampled_rounds(pair, None, sampling, rule, shape)
        assert any(r.n_accepted for r in found)
        assert any(r.n_rejected for r in found)
    assert not asked.first


@pytest.mark.parametrize("rule", ["token", "follow"])
def test_at_temperature_0_a_sampled_tree_writes_the_plain_text(pair, rule):
    found = sampled_rounds(pair, asked_of(16), GREEDY, rule)
    assert tokens_of(found) == tokens_of(autoregressive_decode(pair[0], prompt_of(7), DecodeSettings(N_TOKENS)))
    assert any(r.n_accepted == 2 for r in found)


def keeps_the_first(target_row, drawn, uniforms, draw):
    return (0, drawn[0][0]) if drawn else (None, draw(target_row))


def draws_each_from_the_first_row(row, m, draw):
    return [(token, list(row)) for token, _ in RIGHT[16].children(row, m, draw)]


WRONG_SAMPLED = {
    "accept_children": (keeps_the_first, "token"),
    "children": (draws_each_from_the_first_row, "token"),
    "follow": (lambda target_row, tokens, draw: (None, draw(target_row)), "follow"),
}


@pytest.mark.parametrize("name", WRONG_SAMPLED)
def test_a_wrong_function_of_a_sampled_tree_is_named(pair, name):
    function, rule = WRONG_SAMPLED[name]
    asked = asked_of(16, **{name: function})
    assert sampled_rounds(pair, asked, WARM, rule) != sampled_rounds(pair, None, WARM, rule)
    assert asked.first.startswith(f"exercise 16: {name} is the first function")


# --- what cannot be ---------------------------------------------------------------------------------------------------


def raises(*args):
    raise KeyError("here")


IMPOSSIBLE = [
    (14, "positions", lambda lengths, m: RIGHT[14].positions(lengths, m).float(), "float32 of shape"),
    (14, "positions", lambda lengths, m: RIGHT[14].positions(lengths, m) - 9, "not whole numbers from 0 on"),
    (14, "visible", lambda *args: RIGHT[14].visible(*args)[..., 1:], "not a tensor of bool"),
    (14, "visible", lambda *args: None, "None"),
    (14, "rolled_back", lambda lengths, *rest: [999] * len(lengths), "whole number"),
    (14, "rolled_back", lambda lengths, *rest: lengths[1:], "numbers of tokens"),
    (14, "admit", lambda rows, waiting: (rows, waiting), "each of those that wait"),
    (14, "admit", lambda rows, waiting: (RIGHT[14].admit(rows, waiting)[0], waiting), "each of those that wait"),
    (14, "admit", raises, "raised KeyError"),
    (15, "positions", lambda parents, length: [length + 99] * (len(parents) + 1), "whole number"),
    (15, "mask", lambda parents: RIGHT[15].mask(parents).float(), "torch.float32 of shape"),
    (15, "best_path", lambda parents, tokens, own: [1, 1], "follows the one before it"),
    (15, "best_path", lambda parents, tokens, own: [-1], "whole number"),
    (15, "best_path", lambda parents, tokens, own: 3, "follows the one before it"),
    (15, "gather", lambda path, length: list(range(1, length + 2 + len(path))), "must come first"),
    (15, "gather", lambda path, length: list(range(length)), "places of"),
    (15, "gather", raises, "raised KeyError"),
    (16, "children", lambda row, m, draw: [(0, row)] * (m + 1), "at most 2 pairs"),
    (16, "children", lambda row, m, draw: [(0, [share / 2 for share in row])], "that sum to 1"),
    (16, "children", lambda row, m, draw: [(len(row), row)], "whole number"),
    (16, "children", lambda row, m, draw: [draw(row) for _ in range(9)], "draw was called more than 2 times"),
    (16, "children", lambda row, m, draw: draw(row[1:]), "draw was called with"),
    (16, "children", lambda row, m, draw: draw([0] * len(row)), "no distribution"),
    (16, "accept_children", lambda *args: (7, 0), "whole number"),
    (16, "accept_children", lambda *args: 7, "a pair"),
    (16, "accept_children", raises, "raised KeyError"),
]


@pytest.mark.parametrize(("number", "name", "function", "said"), IMPOSSIBLE)
def test_an_impossible_answer_names_the_function_in_one_line(pair, number, name, function, said):
    function.__qualname__ = name
    asked = asked_of(number, **{name: function})
    decode = {
        14: lambda: batch(pair, asked),
        15: lambda: tree_rounds(pair, asked, (2, 2)),
        16: lambda: sampled_rounds(pair, asked, WARM, "token"),
    }[number]
    with pytest.raises(Problem) as problem:
        decode()
    line = str(problem.value)
    assert line.startswith(f"exercise {number}: {name} ")
    assert said in line
    assert "\n" not in line


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run", "14|15|16"),
        ("run 13", "13"),
        ("run 15 --draft model", "exercise 15 reads trees"),
        ("run 15 --temperature 0.8", "leave out --temperature"),
        ("run 15 --rule follow", "leave out --temperature and --rule"),
        ("run 15 --limi", "--limi"),
        ("run 16 --draft tree:2x2:model", "sampled-tree"),
        ("run 16 --rule typical:0.3", "exercise 16 has two rules"),
        ("14 --run compare.py", "learner run 14"),
        ("run 15 --impl exercises", "not finished: 15"),
    ],
)
def test_what_cannot_be_run_is_one_line(words, said, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["check.py"])
    assert main(words.split()) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line


@pytest.fixture
def run(pair_folder, capsys, monkeypatch):
    """`run` on the tiny pair, with these functions in place of the solution's.  -> exit code, what was printed"""

    def call(number: int, *words: str, **functions):
        learner = asked_of(number, **functions).learner
        monkeypatch.setattr(loading, "finished", lambda *args, **rest: loading.Chosen({number: learner}, {}))
        draft = str(pair_folder / "draft")
        drafts = {14: draft, 15: f"tree:3x2:{draft}", 16: f"sampled-tree:2x2:{draft}"}
        machine = ["--target", str(pair_folder / "target"), "--threads", "1", "--engine", "eager"]
        typed = ["--draft", drafts[number], "--prompt", "def f(x):", "--prompt", "x + 1, x + 1,", *machine]
        code = main(["run", str(number), "--impl", "solutions", *typed, "--max-new-tokens", "24", *words])
        return (code, *capsys.readouterr())

    return call


@pytest.mark.parametrize("number", [14, 15, 16])
def test_a_run_holds_every_text_against_plain_decoding(run, number):
    """And says whose functions decided."""
    code, out, err = run(number)
    assert code == 0
    assert out.count("the baseline's text: identical") == 2
    assert f"impl    from solutions/: {number} " in err
    assert out.count("with the same random numbers: identical") == 2 * (number == 16)
    assert "WRONG" not in out


WRONG = {14: WRONG_ROWS["visible"], 15: WRONG_TREES["best_path"], 16: keeps_the_first}


@pytest.mark.parametrize(("number", "name"), [(14, "visible"), (15, "best_path"), (16, "accept_children")])
def test_a_run_names_the_function_that_makes_the_text_wrong(run, number, name):
    code, out, _ = run(number, **{name: WRONG[number]})
    assert code == 1
    lines = [line for line in out.splitlines() if "WRONG TEXT" in line]
    assert lines
    assert all(f"exercise {number}: {name} is the first function" in line for line in lines)
