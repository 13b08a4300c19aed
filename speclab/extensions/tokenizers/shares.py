"""The columns that a draft by shared tokens adds to a row: the probability of all other tokens."""

DRAFT_OUT, TARGET_OUT = "draft out", "target out"  # heads of the columns for what is not shared
COLUMNS = {
    DRAFT_OUT: "mean probability that the draft gives to tokens that are not shared; shared ones are drafted instead",
    TARGET_OUT: "the same of the target's probability; the model never drafts these tokens, so at a place its token is "
    "accepted with probability 1 minus this at most",
}
