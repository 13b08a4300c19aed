"""Adds early exit to the lab."""

from speclab.drafts.registry import add

READ = "speclab.extensions.exits.kinds:read_exit"
add("exit[:N|:ADAPTER]", READ, "the target's first N layers, with an adapter (Kangaroo)", True)
