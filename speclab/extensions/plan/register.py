"""Adds the command to the lab."""

from speclab.system.extensions import add_command

add_command("plan", "predicts the speedup of every draft length from a run of the baseline, and checks that on request")
