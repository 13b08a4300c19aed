"""Adds drafts with branches to the lab."""

from speclab.drafts.kind_table import Kind, add

KINDS = "speclab.extensions.trees.kinds"
READ = f"{KINDS}:read_tree"
add(Kind("tree", "tree:SHAPE:MODEL", "a tree of a shape such as 2x2x1, or best: the -k most probable", READ))
add(Kind("sampled-tree", "sampled-tree:SHAPE:MODEL", "the same, its tokens drawn without replacement", READ))
add(Kind("merge", "merge:A+B", "chains of several drafts merged into one tree (SpecInfer)", f"{KINDS}:read_merge"))
