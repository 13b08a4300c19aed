"""Drafts with branches. To import any part of it registers the rules that judge trees."""

from speclab.drafts.trees import accept  # noqa: F401
