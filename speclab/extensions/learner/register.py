"""Tells the lab of the command."""

from speclab.system.extensions import add_command

add_command("learner", "checks the exercises of the chapters, and runs the scripts with your functions (check.py)")
