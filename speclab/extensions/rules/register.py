"""Adds the rules to the lab."""

from speclab.core.rules import add_plain_rule, add_rule
from speclab.extensions.rules.block import BLOCK
from speclab.extensions.rules.follow import FOLLOW
from speclab.extensions.rules.lossy import lenient, typical

add_plain_rule(BLOCK)
add_plain_rule(FOLLOW)
add_rule("lenient", lenient, ":L (LOSSY, 0 < L <= 1, as in lenient:0.5)", "the draft's probability counts L times")
add_rule("typical", typical, ":E (LOSSY, 0 < E < 1, as in typical:0.09)", "what is probable enough is kept")
