"""Drafts with branches: several tokens for one place, which one pass of the target judges together."""
