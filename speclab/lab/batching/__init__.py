"""Batches under the clock: decodings of several texts side by side, the passes that they are made of, and the run."""
