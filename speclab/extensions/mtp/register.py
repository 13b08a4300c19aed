"""Adds MTP heads to the drafts."""

from speclab.drafts.registry import add

READ = "speclab.extensions.mtp.kinds:read_mtp"
add("mtp[:FOLDER]", READ, "the target's own head for further tokens, from its checkpoint or a folder (MTP)")
