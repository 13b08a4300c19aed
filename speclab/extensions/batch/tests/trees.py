"""Token trees in batches: both are extensions, so a test with trees is skipped where their folder is not there."""

from types import ModuleType

import pytest


def trees(module: str) -> ModuleType:
    """A module of the extension."""
    return pytest.importorskip(f"speclab.extensions.trees.{module}")
