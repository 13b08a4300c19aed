"""A bug of the margins that no table shows: numbers of one place beside those of another."""

from speclab.extensions.margins import measuring
from tests.mutants.bugs import mutant

BUGS = {48: "the margin of one token beside the draft of another"}


@mutant(48, "a_margin_belongs_to_the_place_of_its_token", file="test_margins")
def takes_the_margin_of_the_token_before() -> None:
    """shifts the margins by one place, as if row i of the logits chose token i - 1"""
    right = measuring.counted
    measuring.counted = lambda name, kind, margins, rows, k: right(name, kind, [0.0, *margins[:-1]], rows, k)
