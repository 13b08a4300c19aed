"""Cases of a test of which a part is tried by `make test`, and all by `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def and_in_full(often: Iterable[Any], others: Iterable[Any]) -> list[Any]:
    """All cases, the others with the mark `full`. A case of several arguments is a tuple."""
    cases = [one if isinstance(one, tuple) else (one,) for one in others]
    return [*often, *(pytest.param(*one, marks=pytest.mark.full) for one in cases)]
