"""Adds drafts with another tokenizer to the lab."""

from speclab.drafts.kind_table import Kind, add
from speclab.extensions.tokenizers.shares import COLUMNS
from speclab.models import names
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
names.WITH_OTHER_TOKENIZERS += ["retokenize:NAME", "intersect:NAME"]
