"""Adds the rounded target to the drafts."""

from speclab.drafts.kind_table import Kind, add

READ = "speclab.extensions.int8.kinds:read_int8"
add(Kind("int8", "int8", "the target itself, its weights rounded to 8 bits; on a CPU", READ, ("quantized",)))
