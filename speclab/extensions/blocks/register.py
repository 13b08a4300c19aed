"""Adds heads that draft blocks to the drafts."""

from speclab.drafts.registry import add

READ = "speclab.extensions.blocks.files:read_choice"
add("block[:HEAD]", READ, "a head that drafts all tokens in one pass (DFlash)", True)
