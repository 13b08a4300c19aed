"""The command `shapes`: what shapes the tensors of one round have."""
