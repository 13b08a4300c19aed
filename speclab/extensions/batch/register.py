"""Adds the command to the lab."""

from speclab.system.extensions import add_command

add_command("batch", "decodes several texts side by side: up to how many at a time a draft pays")
