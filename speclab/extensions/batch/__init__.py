"""Batches: several texts that are decoded side by side, each with a row of one cache."""
