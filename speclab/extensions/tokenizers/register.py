"""Adds drafts with another tokenizer to the lab."""

from speclab.drafts.registry import Kind, add
from speclab.extensions.tokenizers.shares import COLUMNS
from speclab.models import loading
from speclab.records.columns import add_columns

KINDS = "speclab.extensions.tokenizers.kinds"
add(
    Kind(
        "retokenize",
        "retokenize:NAME",
        "a model with another tokenizer, by way of its text",
        f"{KINDS}:read_retokenize",
        ("universal",),
    )
)
SHARED = "the same, by the tokens that both vocabularies have"
add(Kind("intersect", "intersect:NAME", SHARED, f"{KINDS}:read_intersect"))
add_columns(COLUMNS)
loading.WITH_OTHER_TOKENIZERS += ["retokenize:NAME", "intersect:NAME"]
