"""What the tests share stands in tests/fixtures.py, which the tests of extensions use, too."""

from tests.fixtures import *  # noqa: F403
