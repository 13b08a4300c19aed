"""Tells the lab of the command."""

from speclab.system.extensions import add_command

add_command("trace", "looks inside a decoding: every round in a browser, shapes, a profile; a report of a comparison")
