"""The examples in docstrings, the block of docs/serving.md, and the commands that pages show."""

import doctest
import re
import shlex

import pytest

from speclab.extensions.servers import diagnosis, pages
from speclab.extensions.servers.__main__ import make_parser
from speclab.extensions.servers.referee.__main__ import make_parser as referee_parser
from speclab.system.paths import ROOT

COMMAND = re.compile(r"python -m speclab\.extensions\.servers(\.referee)? (-[^`#\n]*)")
SHOWN = [words for page in (ROOT / "docs").rglob("*.md") for words in COMMAND.findall(page.read_text("utf-8"))]


def test_the_examples_in_the_docstrings_are_right():
    found = doctest.testmod(diagnosis)
    assert found.attempted
    assert found.failed == 0


def test_the_page_of_a_record_is_shown_without_single_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    assert "No record is committed" in pages.serving()
    page = "# vLLM\n\nMeasured here.\n\n## Under load\n\n| 1 |\n\n## Prompt by prompt\n\n| 2 |\n"
    (tmp_path / "cpu-2-cores-vllm.md").write_text(page)
    assert pages.serving() == "Measured here.\n\n**Under load**\n\n| 1 |"


@pytest.mark.parametrize(("referee", "words"), SHOWN)
def test_every_command_of_a_page_can_be_typed(referee, words):
    parser = referee_parser() if referee else make_parser()
    assert parser.parse_args(shlex.split(words))
