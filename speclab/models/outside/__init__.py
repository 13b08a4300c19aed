"""What comes with a model and is not trusted: templates, tokenizers, generation settings, places of weights."""
