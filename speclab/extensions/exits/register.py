"""Adds early exit to the lab."""

from speclab.drafts.kind_table import Kind, add

READ = "speclab.extensions.exits.kinds:read_exit"
WORDS = ("early-exit", "layerskip", "kangaroo")
add(Kind("exit", "exit[:N|:ADAPTER]", "the target's first N layers, with a trained adapter (Kangaroo)", READ, WORDS))
