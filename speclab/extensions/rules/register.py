"""Adds the rules to the lab."""

from speclab.core.rules import RULES, Listed
from speclab.extensions.rules.block import BLOCK
from speclab.extensions.rules.follow import FOLLOW
from speclab.extensions.rules.lossy import lenient, typical

TYPED, AT = "lenient:L (LOSSY, 0 < L <= 1, as in lenient:0.5)", "typical:E (LOSSY, 0 < E < 1, as in typical:0.09)"
FOLLOWS = "the target's own draw is followed as long as the draft has it, in trees too"
RULES["block"] = Listed("block", "drafted tokens are judged together (block verification)", BLOCK)
RULES["follow"] = Listed("follow", FOLLOWS, FOLLOW)
RULES["lenient"] = Listed(TYPED, "the draft's probability is scaled by L in the test", lenient)
RULES["typical"] = Listed(AT, "tokens above min(E, sqrt(E) exp(-entropy)) are kept", typical)
