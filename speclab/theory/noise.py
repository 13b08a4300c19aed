"""When is a run's own noise so large that its speeds are rough? Pure.

The baseline runs twice in a run, and its distance from itself is the noise floor. The floors of the committed records
of quiet machines, with six prompts or more, have intervals within 0.94 and 1.10, and ratios within 0.97 and 1.04. A
floor that reaches further than FURTHEST on either side is not the noise of a quiet machine.
"""

import math
from collections.abc import Iterable

from speclab.records.runs import Noise

FURTHEST = 1.10  # a factor, in both directions


def reach(floor: Noise) -> float:
    """Return the largest factor by which the baseline may differ from itself, at least 1: the further end of the
    interval, or of the ratio alone where there is none.

    >>> reach(Noise(temperature=0, ratio=1.0, low=0.8, high=1.1))
    1.25
    """
    ends = [end for end in (floor.ratio, floor.low, floor.high) if end is not None]
    return max(max(end, 1 / end) if end else math.inf for end in ends)


def too_wide(floors: Iterable[Noise]) -> Noise | None:
    """Return the noise floor that reaches furthest, where that is further than FURTHEST; None where none does."""
    worst = max(floors, key=reach, default=None)
    return worst if worst is not None and reach(worst) > FURTHEST else None
