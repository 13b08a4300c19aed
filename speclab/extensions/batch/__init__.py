"""Decodes several texts side by side: up to how many at a time a draft pays."""
