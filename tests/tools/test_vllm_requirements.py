"""What `make vllm` installs, and the block of docs/serving.md that a committed record fills."""

import doctest

from speclab.lab.serving import installed, load
from tools import doc_blocks, vllm_requirements


def test_the_examples_in_the_docstrings_are_right():
    for module in (vllm_requirements, load, installed):
        found = doctest.testmod(module)
        assert found.attempted
        assert found.failed == 0


def test_the_page_of_a_record_is_shown_without_single_prompts(tmp_path, monkeypatch):
    monkeypatch.setattr(doc_blocks, "RESULTS", tmp_path)
    assert "No record is committed yet" in doc_blocks.serving()
    page = "# vLLM\n\nMeasured here.\n\n## Under load\n\n| 1 |\n\n## Prompt by prompt\n\n| 2 |\n"
    (tmp_path / "cpu-2-cores-vllm.md").write_text(page)
    assert doc_blocks.serving() == "Measured here.\n\n**Under load**\n\n| 1 |"
