"""Models with an encoder that reads the prompt and a decoder that makes the text (T5, BART)."""
