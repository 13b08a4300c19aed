"""Bugs in what guards the lab against names and records from outside."""

from speclab.present import tables
from tests.mutants.bugs import mutant
from training import work


@mutant(44, "nothing_of_a_name_is_markup_in_markdown", file="present/test_markdown")
def leaves_a_bar_in_a_cell() -> None:
    """writes a name with a bar into a table, which gets one cell more"""
    tables._cell = tables.escaped


@mutant(44, "a_checkpoint_with_wrong_facts_is_one_line[an optimizer's number in words]", file="training/test_training")
def believes_the_optimizer_of_a_checkpoint() -> None:
    """goes on with whatever numbers a checkpoint has for the optimizer"""
    work._load_stepper = lambda stepper, saved: stepper.load_state_dict(saved)
