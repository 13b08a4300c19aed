"""Predicts the speedup of every draft length from a run of the baseline."""
