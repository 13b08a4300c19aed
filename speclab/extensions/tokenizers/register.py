"""Tells the lab of drafts with another tokenizer."""

from speclab.drafts.registry import Kind, add
from speclab.extensions.tokenizers.kinds import read_intersect, read_retokenize

add(
    Kind(
        "retokenize",
        "retokenize:NAME",
        "a model with another tokenizer, by way of its text",
        read_retokenize,
        ("universal",),
    )
)
add(Kind("intersect", "intersect:NAME", "the same, by the tokens that both vocabularies have", read_intersect))
