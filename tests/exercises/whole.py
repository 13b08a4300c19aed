"""What the checks take for a whole number: whatever Python takes for an index, so an id from numpy or torch as well."""

import operator


def whole(answer: object) -> int | None:
    """The number as an int; None for 4.0, "4" and everything else that cannot be an index."""
    try:
        return operator.index(answer)
    except TypeError:
        return None
