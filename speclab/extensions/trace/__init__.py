"""A look inside a decoding: every round, the shapes of its tensors, its kernels; and a report of a comparison."""
