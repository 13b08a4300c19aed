"""Bugs of the rounded target that change no text: only what is accepted, and what a forecast says of it."""

import torch
from torch import Tensor

from speclab.extensions.int8 import rounded
from tests.mutants.bugs import mutant

FILE = "test_int8"
BUGS = {47: "a rounded draft that is not the one its law describes"}


@mutant(47, "a_token_does_not_depend_on_the_others_of_its_pass", "a_product_is_that_of_rounded_numbers", file=FILE)
def rounds_all_tokens_by_the_largest_number() -> None:
    """gives all tokens of a pass one step"""
    right = rounded.largest_of
    rounded.largest_of = lambda rows: right(rows).amax().expand(len(rows), 1)


@mutant(47, "everything_but_the_matrices_is_the_targets", file=FILE)
def rounds_the_targets_own_weights() -> None:
    """rounds the matrices of the target in place, so that both arms are fast and wrong"""
    right = rounded.packed

    def packed(weight: Tensor) -> torch.ScriptObject:
        steps = weight.abs().amax(1, keepdim=True) / rounded.STEPS
        weight.copy_((weight / steps).round() * steps)
        return right(weight)

    rounded.packed = packed
