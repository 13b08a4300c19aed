"""A bug in what guards the lab against names from outside."""

from speclab.present import tables
from tests.mutants.bugs import mutant


@mutant(44, "nothing_of_a_name_is_markup_in_markdown", file="present/test_markdown")
def leaves_a_bar_in_a_cell() -> None:
    """writes a name with a bar into a table, which gets one cell more"""
    tables._cell = tables.escaped
