"""`run`: a batch or a tree is decoded with the functions that you wrote in exercises/.

    python -m speclab.extensions.learner run 14                    # your functions keep the texts of a batch apart
    python -m speclab.extensions.learner run 15                    # yours read a tree, choose a path in it, and keep it
    python -m speclab.extensions.learner run 16                    # yours draw the children of a tree, and test them
    python -m speclab.extensions.learner run 16 --rule follow      # the same, judged by your `follow`
    python -m speclab.extensions.learner run 14 --impl solutions   # the solutions instead

The checks run first. What else is typed is given to the command underneath: to `python -m speclab.extensions.batch
decode` for 14, to `optimized_speculative.py` for 15 and 16. For example:

    python -m speclab.extensions.learner run 14 -B 3 --limit 2
    python -m speclab.extensions.learner run 15 --draft tree:best:feature -k 8 --prompt "class Stack:"

What comes out: every text, and a line that says whether it is the one of plain decoding. A sampled text (16) is held
against the one that the lab's own functions write with the same random numbers, and the same prompt is decoded once
more at temperature 0 and held against plain decoding. Where a text is wrong, the line names the first function that
answers other than the solution, and the exit code is 1.
"""

import copy
import functools
import importlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import optimized_speculative
from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.cli import decoding, parsing
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.rule_table import rule_of
from speclab.core.rules import TOKEN
from speclab.core.sampling import GREEDY
from speclab.extensions.learner import checklist, loading
from speclab.extensions.learner.functions import OWN_RUNS, judge_text
from speclab.extensions.learner.rows_and_trees.asked import Asked
from speclab.extensions.learner.rows_and_trees.rows import OwnRows
from speclab.extensions.learner.rows_and_trees.sampled import OwnSampledTrees, OwnWalk
from speclab.extensions.learner.rows_and_trees.trees import OwnTrees, accept, with_branches
from speclab.lab.instruments import LoopFunctions
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system import extensions
from speclab.system.errors import UsageProblem

PROG = "python -m speclab.extensions.learner run"
SHAPE = "tree:2x2x1:model"
SAMPLED = "sampled-tree:2x2:model"
FOLLOW = "follow"
NOT_JUDGED = "a sampled text has no baseline to equal; leave out --temperature"


def run(words: list[str], packages: Iterable[str]) -> int:
    """Decode with the functions of an exercise.  -> exit code

    words: the exercise, then flags. packages: where functions may be, the reader's own last. Raises UsageProblem for
    other words and where the exercise is not finished, Problem where a check of it fails.
    """
    parser = parsing.make_parser(__doc__ or "", PROG)
    parser.add_argument("exercise", type=int, choices=OWN_RUNS, metavar="|".join(map(str, OWN_RUNS)))
    parser.add_argument("--impl", choices=packages, default="exercises", help="whose code (default: %(default)s)")
    args, rest = parser.parse_known_args(words)
    way = WAYS[args.exercise]
    typed = [*way.words, *rest]
    way.check(typed)
    [exercise] = [one for one in checklist.exercises() if one.number == args.exercise]
    learner = loading.finished(args.impl, [exercise], asked_for=True).modules[args.exercise]
    asked = Asked(args.exercise, learner, importlib.import_module(f"solutions.{exercise.stem}"))
    about = f"from {args.impl}/: {args.exercise} ({exercise.title})"
    return way.start(asked, typed, replace(way.functions(asked, typed), about=about))


# --- a batch ----------------------------------------------------------------------------------------------------------


def rows_functions(asked: Asked, words: list[str] | None = None) -> LoopFunctions:
    """Exercise 14: every text is held against the target's own; what keeps the texts apart is `OwnRows`."""
    return LoopFunctions(speculative_decode, is_right=functools.partial(_is_the_targets, asked))


def _start_batch(asked: Asked, words: list[str], functions: LoopFunctions) -> int:
    return extensions.command("batch")(words, functions, OwnRows(asked))


def _is_the_targets(asked: Asked, setup: Setup, prompt: Prompt, settings: DecodeSettings, tokens: list[int]) -> bool:
    """Hold a greedy text against plain decoding, and print the verdict."""
    if not settings.sampling.greedy:
        print(NOT_JUDGED)
        return True
    baseline = tokens_of(autoregressive_decode(setup.target, prompt.ids.to(setup.device), settings))
    return _said(*judge_text(setup, prompt, baseline, tokens), asked)


def _said(fine: bool, verdict: str, asked: Asked) -> bool:
    print(verdict if fine or not asked.first else f"{verdict}; {asked.first}")
    return fine


def _start_loop(asked: Asked, words: list[str], functions: LoopFunctions) -> int:
    return optimized_speculative.main(words, functions)


# --- a tree -----------------------------------------------------------------------------------------------------------


def tree_functions(asked: Asked, words: list[str] | None = None) -> LoopFunctions:
    """Exercise 15: a tree is read, judged and kept by four functions."""
    return LoopFunctions(
        functools.partial(with_branches, asked, speculative_decode),
        accept=functools.partial(accept, asked),
        adapt=lambda drafter, longest: OwnTrees(drafter, asked),
        is_right=functools.partial(_is_the_targets, asked),
    )


def _check_tree(words: list[str]) -> None:
    """Raise UsageProblem for a decoding in which exercise 15 has no part."""
    args = decoding.parse(optimized_speculative.__doc__ or "", words, True)
    if not args.choice.branches:
        raise UsageProblem(f"--draft {args.draft}: exercise 15 reads trees; give one, for example --draft {SHAPE}")
    if args.temperature > 0 or args.rule != TOKEN.name:
        raise UsageProblem(
            "exercise 15 keeps what is the target's own choice, at temperature 0; leave out --temperature and --rule, "
            f"or sample from a tree: {PROG} 16"
        )


# --- a sampled tree ---------------------------------------------------------------------------------------------------


class SampledTrees:
    """Exercise 16 in a run: who drafts, who judges, and what the lab's own functions would have written."""

    def __init__(self, asked: Asked, rule: str):
        self.asked, self.rule = asked, rule_of(rule)
        self.judge = OwnWalk(asked, lambda: self.trees, rule == FOLLOW)
        self.trees: Any = None  # what drafts, from the first text on
        self.lab: Any = None  # the same as the lab has it
        self.k = 0

    def functions(self) -> LoopFunctions:
        """The parts of the loop that are the reader's."""
        return LoopFunctions(
            speculative_decode, accept=self.judge, adapt=self.adapt, rule=self.rule, is_right=self.is_right
        )

    def adapt(self, drafter: Drafter, longest: int | None) -> Drafter:
        """The drafter whose children the reader draws."""
        if self.trees is None:
            self.lab, self.k = copy.deepcopy(drafter), longest or 0
            self.trees = OwnSampledTrees(drafter, self.asked)
        return self.trees

    def rounds(self, setup: Setup, prompt: Prompt, settings: DecodeSettings, own: bool) -> list[Round]:
        """The rounds of a prompt with the reader's functions, or with the lab's own."""
        ids, drafter = prompt.ids.to(setup.device), self.trees if own else self.lab
        judge = self.judge if own else self.rule.accept
        return list(speculative_decode(setup.target, drafter, ids, self.k, settings, accept=judge))

    def is_right(self, setup: Setup, prompt: Prompt, settings: DecodeSettings, tokens: list[int]) -> bool:
        """Hold a text against the lab's own and, at temperature 0, against plain decoding; print both verdicts."""
        fine = True
        if not settings.sampling.greedy:
            expected = tokens_of(self.rounds(setup, prompt, settings, own=False))
            verdict = "the text of the lab's own functions with the same random numbers: identical"
            if tokens != expected:
                pairs = enumerate(zip(tokens, expected, strict=False))
                place = next((i for i, (new, old) in pairs if new != old), min(len(tokens), len(expected)))
                verdict = (
                    "WRONG TEXT: the lab's own functions with the same random numbers write another one from new "
                    f"token {place} on"
                )
            fine = _said(tokens == expected, verdict, self.asked)
            settings = replace(settings, sampling=GREEDY)
            tokens = tokens_of(self.rounds(setup, prompt, settings, own=True))
            print("at temperature 0: ", end="")
        return _is_the_targets(self.asked, setup, prompt, settings, tokens) and fine


def sampled_functions(asked: Asked, words: list[str] | None = None) -> LoopFunctions:
    """Exercise 16: the children of a sampled tree are drawn and judged by three functions."""
    args = decoding.parse(optimized_speculative.__doc__ or "", words, True)
    return SampledTrees(asked, args.rule).functions()


def _check_sampled(words: list[str]) -> None:
    """Raise UsageProblem for a decoding in which exercise 16 has no part."""
    args = decoding.parse(optimized_speculative.__doc__ or "", words, True)
    if not args.choice.text.startswith("sampled-tree"):
        raise UsageProblem(f"--draft {args.draft}: exercise 16 draws the children of a tree; give --draft {SAMPLED}")
    if args.rule not in (TOKEN.name, FOLLOW):
        raise UsageProblem(f"--rule {args.rule}: exercise 16 has two rules; leave it out, or give --rule {FOLLOW}")


# --- which command ----------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How an exercise runs."""

    words: list[str]  # the command's, before those that are typed
    check: Callable[[list[str]], None]  # looks at all of them
    functions: Callable[[Asked, list[str]], LoopFunctions]
    start: Callable[[Asked, list[str], LoopFunctions], int]  # the command


SHORT = ["--max-new-tokens", "48"]
WAYS = {
    # Two rows for three prompts: the row that is free first takes another text.
    14: Way(["decode", "-B", "2", "--limit", "1", *SHORT], lambda words: None, rows_functions, _start_batch),
    15: Way(["--draft", SHAPE, *SHORT], _check_tree, tree_functions, _start_loop),
    16: Way(
        ["--draft", SAMPLED, "--temperature", "0.8", "--top-k", "8", *SHORT],
        _check_sampled,
        sampled_functions,
        _start_loop,
    ),
}
