"""Adds drafts with branches to the lab."""

from speclab.drafts.registry import add

KINDS = "speclab.extensions.trees.kinds"
READ = f"{KINDS}:read_tree"
add("tree:SHAPE:MODEL", READ, "a tree of a shape such as 2x2x1, or best: the -k most probable")
add("sampled-tree:SHAPE:MODEL", READ, "the same, its tokens drawn without replacement")
add("merge:A+B", f"{KINDS}:read_merge", "chains of several drafts merged into one tree (SpecInfer)")
