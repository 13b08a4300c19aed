"""Adds drafts with another tokenizer to the lab."""

from speclab.drafts.registry import add
from speclab.extensions.tokenizers import shares
from speclab.models import names
from speclab.records.rows import COLUMNS

KINDS = "speclab.extensions.tokenizers.kinds"
add("retokenize:NAME", f"{KINDS}:read_retokenize", "a model with another tokenizer, by way of its text")
add("intersect:NAME", f"{KINDS}:read_intersect", "the same, by the tokens that both vocabularies have")
COLUMNS.update(shares.COLUMNS)
names.WITH_OTHER_TOKENIZERS += ["retokenize:NAME", "intersect:NAME"]
