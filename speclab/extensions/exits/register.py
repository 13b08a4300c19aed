"""Tells the lab of early exit."""

from speclab.drafts.registry import Kind, add
from speclab.extensions.exits.kinds import read_exit

WORDS = ("early-exit", "layerskip", "kangaroo")
add(Kind("exit", "exit[:N|:ADAPTER]", "the target's own first N layers, with an adapter (Kangaroo)", read_exit, WORDS))
