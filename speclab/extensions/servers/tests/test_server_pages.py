"""The examples in docstrings, and the commands that pages show."""

import doctest
import re
import shlex

import pytest

from speclab.extensions.servers.__main__ import make_parser
from speclab.extensions.servers.referee import make_parser as referee_parser
from speclab.extensions.servers.vllm import vllm_requirements
from speclab.system.paths import ROOT

COMMAND = re.compile(r"python -m speclab\.extensions\.servers(\.referee)? (-[^`#\n]*)")
SHOWN = [words for page in (ROOT / "docs").rglob("*.md") for words in COMMAND.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize("module", [vllm_requirements])
def test_the_examples_in_the_docstrings_are_right(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert found.failed == 0


@pytest.mark.parametrize(("referee", "words"), SHOWN)
def test_every_command_of_a_page_can_be_typed(referee, words):
    parser = referee_parser() if referee else make_parser()
    assert parser.parse_args(shlex.split(words))
