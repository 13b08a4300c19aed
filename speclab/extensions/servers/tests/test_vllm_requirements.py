"""What `make vllm` installs."""

import doctest

from speclab.extensions.servers.vllm import vllm_requirements


def test_the_examples_in_the_docstrings_are_right():
    found = doctest.testmod(vllm_requirements)
    assert found.attempted
    assert found.failed == 0
