"""The parts of a checkpoint that are not trusted: generation settings, places of weights."""
