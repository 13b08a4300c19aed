"""The tests of extensions share the fixtures of tests/."""

from tests.fixtures import *  # noqa: F403
