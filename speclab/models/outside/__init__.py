"""The parts of a checkpoint that are not trusted: templates, tokenizers, generation settings, places of weights."""
