"""Bugs of the rounded target that change no text: only what is accepted, and what a forecast says of it."""

from torch import Tensor

from speclab.extensions.int8 import rounded
from tests.mutants.bugs import mutant

FILE = "test_int8"
BUGS = {47: "a rounded draft that is not the one its law describes"}


@mutant(47, "a_product_is_that_of_rounded_rows", file=FILE)
def rounds_all_rows_by_the_largest_number() -> None:
    """gives all rows of a matrix one step"""
    right = rounded.largest_of
    rounded.largest_of = lambda rows: right(rows).amax().expand(len(rows), 1)


@mutant(47, "everything_but_the_matrices_is_the_targets", file=FILE)
def rounds_the_targets_own_weights() -> None:
    """rounds the matrices of the target in place, so that both arms are fast and wrong"""
    right = rounded.rounded_rows

    def in_place(weight: Tensor) -> tuple[Tensor, Tensor]:
        rows, scales = right(weight)
        weight.copy_(rows * scales[:, None])
        return rows, scales

    rounded.rounded_rows = in_place


@mutant(47, "a_product_that_saturates_is_refused_when_it_is_loaded", file=FILE)
def looks_at_no_product() -> None:
    """believes every processor"""
    rounded.check_product = lambda: None


@mutant(47, "a_model_that_is_hardly_rounded_is_refused", file=FILE)
def counts_the_layers_it_knows() -> None:
    """takes the layers that it rounds for all matrices"""
    rounded.share_rounded = lambda model: 1.0
