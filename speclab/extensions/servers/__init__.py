"""Says why speculative decoding is not faster on a server that already runs, without loading a model."""
