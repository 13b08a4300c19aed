"""Looks inside a decoding: every round in a browser or in the terminal, and the shapes of one round."""
