"""The columns that a draft by shared tokens adds to a row: the probability of all other tokens."""

from speclab.records.columns import Columns

DRAFT_OUT, TARGET_OUT = "draft out", "target out"  # heads of the columns for what is not shared
COLUMNS = Columns(
    {
        DRAFT_OUT: "mean probability that the draft gives to tokens that are not shared; shared ones are drafted "
        "instead",
        TARGET_OUT: "the same of the target's probability; the model never drafts these tokens, so at a place its "
        "token is accepted with probability 1 minus this at most",
    },
    f"tokens that are not shared have {{{DRAFT_OUT}:.1%}} of the draft's probability, which goes to shared ones, and "
    f"{{{TARGET_OUT}:.1%}} of the target's, which it never drafts",
)
