"""Drafts with branches. To import any part of it registers the rule that judges trees."""

from speclab.drafts.trees import accept  # noqa: F401
