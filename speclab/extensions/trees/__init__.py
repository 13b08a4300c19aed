"""Drafts with branches: several tokens for one place, which one pass of the target judges together.

Importing any part of it registers the rules that judge trees.
"""

from speclab.extensions.trees import accept  # noqa: F401
