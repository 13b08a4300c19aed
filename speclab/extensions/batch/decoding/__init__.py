"""Texts are decoded side by side: the model over all rows, the drafters, the two loops, and a batch at work."""
