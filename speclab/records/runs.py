"""Old place of names of files.py and rows.py."""

from speclab.records.files import *  # noqa: F403
from speclab.records.rows import Noise  # noqa: F401

Machine = Versions = dict
