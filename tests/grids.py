"""Grids of cases of which a part is tried by `make test`, and all by `make test-full`."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def often(cases: Iterable[Any], chosen: Callable[..., bool]) -> list[Any]:
    """The cases, those that are not chosen with the mark `full`. A case is a tuple of the test's arguments."""
    return [case if chosen(*case) else pytest.param(*case, marks=pytest.mark.full) for case in cases]


def pairs_often(first: Iterable[Any], second: Iterable[Any], chosen: Callable[..., bool]) -> list[Any]:
    """`often`, of every pair."""
    return often(itertools.product(first, second), chosen)
