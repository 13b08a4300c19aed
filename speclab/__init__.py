"""The rooms of the Speculative Decoding Lab; docs/architecture.md draws what imports what."""
