"""Old place of names of rows.py."""

from speclab.records.rows import *  # noqa: F403
