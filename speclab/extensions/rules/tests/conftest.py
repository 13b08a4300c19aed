"""Whole runs with a rule are those of tests/lab/test_lossy.py."""

from tests.lab.test_lossy import run  # noqa: F401 - a fixture
