"""Old place of names of harness.py."""

from speclab.lab.harness import *  # noqa: F403
