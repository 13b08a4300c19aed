"""Bugs in the exercises' command: a reader's functions trusted too far, or put where they do not belong."""

import operator
from types import ModuleType
from typing import Any

from speclab.drafts.lengths import AutoLength
from speclab.extensions.learner import adapters, functions, predictions, run
from speclab.extensions.learner.rows_and_trees import asked, command, rows, trees
from speclab.lab.instruments import Loop, LoopFunctions
from tests.mutants.bugs import mutant

BUGS = {45: "a reader's functions trusted too far, or put where they do not belong"}


@mutant(45, "which_drafts_are_the_learners", file="test_functions")
def reads_on_under_auto() -> None:
    """lets exercise 11 draft where the lab asks a head after each token whether it goes on"""
    functions.IN_ITS_PLACE = {**functions.IN_ITS_PLACE, AutoLength: functions._hybrid}


@mutant(45, "optimized_speculative_holds_the_text_against_the_baselines", file="test_functions")
def calls_every_text_right() -> None:
    """calls every greedy text the baseline's"""
    functions.judge_text = lambda *_: (True, "the baseline's text: identical")


@mutant(45, "an_impossible_answer_is_one_line", file="test_functions")
def takes_any_whole_number() -> None:
    """takes a whole number of any size for an answer"""
    adapters.whole = lambda smallest, largest: operator.index


@mutant(45, "a_comparison_finds_a_wrong_text", file="test_functions")
def runs_the_labs_own() -> None:
    """names the functions of a reader, and runs the lab's own"""

    def learner_functions(loop: Loop, package: str, modules: Any, unfinished: Any = None) -> LoopFunctions:
        return LoopFunctions(loop, about=f"from {package}/")

    run.learner_functions = learner_functions


@mutant(45, "predictions_and_lengths_stand_at_the_end_of_a_comparison", file="test_functions")
def predicts_without_rejections() -> None:
    """hands exercise 5 the rounds in which every drafted token was accepted"""
    right = predictions.predicted

    def predicted(learner: ModuleType, row: Any, rounds: list[tuple[int, int]]) -> predictions.Predicted:
        return right(learner, row, [(drafted, drafted) for drafted, _ in rounds])

    predictions.predicted = predicted


@mutant(45, "a_run_names_the_function_that_makes_the_text_wrong", file="test_rows_and_trees")
def holds_nothing_against_plain_decoding() -> None:
    """calls the text of a batch or a tree right, whatever a reader's functions made of it"""
    command.judge_text = lambda *_: (True, "the baseline's text: identical")
    command._said = lambda fine, verdict, asked: True


@mutant(45, "a_wrong_function_of_a_batch_makes_a_wrong_text_and_is_named", file="test_rows_and_trees")
def reads_as_the_lab_does() -> None:
    """asks a reader which places a token of a batch reads, and lets it read what the solution says"""

    def visible(self: rows.OwnRows, lengths: list[int], m: int, total: int) -> Any:
        self._asked("visible", lengths, m, total, check=rows.yes_or_no((len(lengths), m, total)))
        return self._asked.right.visible(lengths, m, total)

    rows.OwnRows.visible = visible


@mutant(45, "a_wrong_function_of_a_tree_makes_a_wrong_text_and_is_named", file="test_rows_and_trees")
def keeps_by_the_labs_rule() -> None:
    """lets the lab say which places of the cache stay after a tree"""
    command.with_branches = lambda asked, decode, *args, **further: decode(*args, **further)


@mutant(45, "a_wrong_function_of_a_sampled_tree_is_named", file="test_rows_and_trees")
def names_nobody() -> None:
    """takes every answer for the solution's"""
    asked.difference = lambda given, expected: ""


@mutant(45, "an_impossible_answer_names_the_function_in_one_line", file="test_rows_and_trees")
def follows_any_numbers() -> None:
    """takes any numbers of tokens for a path"""
    trees._path = lambda parents, answer: list(answer)
