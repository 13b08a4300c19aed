"""Imports matplotlib where it is installed. Without it a run measures and prints the same, and draws nothing."""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator
    from matplotlib.transforms import ScaledTranslation
else:
    try:
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams["text.parse_math"] = False  # a name with $ is no formula; no text here is one
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font|constrained_layout not")  # odd or long names
        import matplotlib.pyplot as plt
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator
        from matplotlib.transforms import ScaledTranslation
    except ImportError:
        plt, Figure, NullLocator, ScaledTranslation = None, Any, Any, Any

MISSING = "no pictures: matplotlib is not installed; type: pip install matplotlib"

__all__ = ["MISSING", "Figure", "NullLocator", "ScaledTranslation", "is_here", "plt"]


def is_here() -> bool:
    """Tell whether pictures can be drawn."""
    return plt is not None
