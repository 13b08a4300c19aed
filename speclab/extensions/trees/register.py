"""Tells the lab of drafts with branches."""

from speclab.drafts.registry import Kind, add
from speclab.extensions.trees.kinds import read_merge, read_tree

add(Kind("tree", "tree:SHAPE:MODEL", "a tree of a shape such as 2x2x1, or best: the -k most probable", read_tree))
add(Kind("sampled-tree", "sampled-tree:SHAPE:MODEL", "the same, its tokens drawn without replacement", read_tree))
add(Kind("merge", "merge:A+B", "chains of several drafts merged into one tree (SpecInfer)", read_merge))
