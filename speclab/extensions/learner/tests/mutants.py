"""Bugs in the exercises' command: a reader's functions trusted too far, or put where they do not belong."""

import operator
from types import ModuleType
from typing import Any

from speclab.extensions.learner import functions, run
from speclab.lab.instruments import Loop, LoopFunctions
from tests.mutants.bugs import mutant

BUGS = {45: "a reader's functions trusted too far, or put where they do not belong"}


@mutant(45, "optimized_speculative_holds_the_text_against_the_baselines", file="test_functions")
def calls_every_text_right() -> None:
    """calls every greedy text the baseline's"""
    functions.judge_divergence = lambda *_: None


@mutant(45, "an_impossible_answer_is_one_line", file="test_functions")
def takes_any_whole_number() -> None:
    """takes a whole number of any size for an answer"""
    functions.whole = lambda smallest, largest: operator.index


@mutant(45, "a_comparison_finds_a_wrong_text", file="test_functions")
def runs_the_labs_own() -> None:
    """names the functions of a reader, and runs the lab's own"""

    def learner_functions(loop: Loop, package: str, modules: Any, unfinished: Any = None) -> LoopFunctions:
        return LoopFunctions(loop, about=f"from {package}/")

    run.learner_functions = learner_functions


@mutant(45, "predictions_and_lengths_stand_at_the_end_of_a_comparison", file="test_functions")
def predicts_without_rejections() -> None:
    """hands exercise 5 the rounds in which every drafted token was accepted"""
    right = run.predicted

    def predicted(learner: ModuleType, row: Any, rounds: list[tuple[int, int]]) -> tuple[float | None, float | None]:
        return right(learner, row, [(drafted, drafted) for drafted, _ in rounds])

    run.predicted = predicted
