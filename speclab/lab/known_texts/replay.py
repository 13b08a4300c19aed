"""Old place of names of this package."""

from speclab.lab.known_texts import *  # noqa: F403
