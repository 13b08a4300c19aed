"""What the tests of the rules take from those of the ground floor."""

from tests.lab.test_lossy import run  # noqa: F401 - a fixture
