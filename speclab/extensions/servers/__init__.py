"""Asks vLLM's servers the lab's question: the same text, how fast, and why not faster."""
