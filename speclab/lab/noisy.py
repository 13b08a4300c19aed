"""Old place of a name of instruments.py."""

from speclab.lab.instruments import noisy  # noqa: F401
