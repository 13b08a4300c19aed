"""Adds the command to the lab."""

from speclab.system.extensions import add_command

add_command("sweeps", "changes one setting and keeps the rest still: draft length, acceptance, temperature and more")
