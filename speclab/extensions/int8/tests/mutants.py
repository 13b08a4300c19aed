"""Bugs of the rounded target that change no text: only what is accepted."""

from torch import Tensor, nn

from speclab.extensions.int8 import rounded
from tests.mutants.bugs import mutant

FILE = "test_int8"
BUGS = {47: "a rounded draft that is not the target with rounded weights"}


@mutant(47, "rows_are_whole_multiples_of_their_steps", file=FILE)
def gives_all_rows_one_step() -> None:
    """rounds every row by the largest number of the whole matrix"""
    right = rounded.rounded_rows
    rounded.rounded_rows = lambda weight: right(weight.reshape(1, -1)).view_as(weight)


@mutant(47, "everything_but_the_matrices_is_the_targets", file=FILE)
def rounds_the_targets_own_weights() -> None:
    """rounds the matrices of the target in place, so that both arms have the draft's text"""
    right = rounded.rounded_layer

    def rounded_layer(layer: nn.Module) -> nn.Module:
        twin = right(layer)
        layer.weight.data.copy_(twin.weight)
        return twin

    rounded.rounded_layer = rounded_layer


@mutant(47, "both_engines_compute_with_the_same_weights[gpt2]", file=FILE)
def rounds_matrices_the_wrong_way_round() -> None:
    """takes the columns of the library's Conv1D for its rows"""
    right = rounded.rounded_rows

    def rounded_rows(weight: Tensor) -> Tensor:
        return right(weight.T).T if not weight.is_contiguous() else right(weight)

    rounded.rounded_rows = rounded_rows


@mutant(47, "a_model_that_is_hardly_rounded_is_refused", file=FILE)
def counts_the_layers_it_knows() -> None:
    """takes the layers that it rounds for all matrices"""
    rounded.share_rounded = lambda model: 1.0
