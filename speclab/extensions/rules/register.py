"""Adds the rules to the lab."""

from speclab.core.rules import add_rule

HERE = "speclab.extensions.rules"
L, E = ":L (LOSSY, 0 < L <= 1, as in lenient:0.5)", ":E (LOSSY, 0 < E < 1, as in typical:0.09)"
add_rule("block", f"{HERE}.block:BLOCK", "drafted tokens are judged together (block verification)")
FOLLOWS = "the target's own draw is followed as long as the draft has it, in trees too"
add_rule("follow", f"{HERE}.follow:FOLLOW", FOLLOWS)
add_rule("lenient", f"{HERE}.lossy:lenient", "the draft's probability is scaled by L in the test", L)
add_rule("typical", f"{HERE}.lossy:typical", "tokens above min(E, sqrt(E) exp(-entropy)) are kept", E)
