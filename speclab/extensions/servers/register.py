"""Tells the lab of the command."""

from speclab.system.extensions import add_command

add_command("servers", "asks vLLM's servers the lab's question: the same text, how fast, and why not faster")
