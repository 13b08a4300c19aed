"""The rooms of the Speculative Decoding Lab; docs/architecture.md lists what imports what.

`from speclab import load, speculate` is the lab from Python (speclab/api.py).
"""

from typing import Any

__all__ = ["load", "speculate"]


def __getattr__(name: str) -> Any:
    """`load` and `speculate`, loaded when they are asked for: the rooms are used without the models' libraries, too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from speclab import api  # here: the lower rooms are imported through this module

    return getattr(api, name)
