"""Adds the rounded target to the drafts."""

from speclab.drafts.registry import add

READ = "speclab.extensions.int8.kinds:read_int8"
add("int8", READ, "the target itself, its weights rounded to 8 bits; on a CPU")
