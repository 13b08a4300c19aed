"""Tells the lab of drafts with another tokenizer."""

from speclab.drafts.registry import Kind, add
from speclab.extensions.tokenizers.intersect import COLUMNS
from speclab.extensions.tokenizers.kinds import read_intersect, read_retokenize
from speclab.models import loading
from speclab.records.columns import add_columns

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
add_columns(COLUMNS)
loading.WITH_OTHER_TOKENIZERS += ["retokenize:NAME", "intersect:NAME"]
