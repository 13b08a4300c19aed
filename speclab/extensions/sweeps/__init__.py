"""Sweeps: runs in which one setting changes, a row for each of its values."""
