"""Old place of names of rows.py."""

from speclab.records.rows import *  # noqa: F403
from speclab.records.rows import Decoded as Line  # noqa: F401
