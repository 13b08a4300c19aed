"""Adds MTP heads to the drafts."""

from speclab.drafts.kind_table import Kind, add

READ = "speclab.extensions.mtp.kinds:read_mtp"
HELP = "the target's own head for further tokens, from its checkpoint or a folder (MTP)"
add(Kind("mtp", "mtp[:FOLDER]", HELP, READ, ("nextn", "multi-token-prediction")))
