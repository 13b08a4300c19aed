"""The standard prompts and the form of prompt files."""

import re

import pytest

from speclab import prompts
from speclab.errors import UsageProblem


def test_standard_set_is_large_enough_and_distinct():
    """At least 24, three kinds of equal size, no two alike in their first words."""
    pairs = prompts.standard()
    kinds = [kind for kind, _ in pairs]
    assert len(pairs) >= 24
    assert {kinds.count(k) for k in prompts.KINDS} == {len(pairs) // 3}
    assert len({re.sub(r"\s+", " ", text)[:60] for _, text in pairs}) == len(pairs)


def test_copy_prompts_repeat_themselves():
    """Their point: more than a third of their word triples occur twice. Code and prose stay well below."""

    def repeated(text: str) -> float:
        words = re.findall(r"\w+|\S", text)
        triples = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
        return 1 - len(set(triples)) / len(triples)

    mean = {}
    for kind in prompts.KINDS:
        shares = [repeated(text) for k, text in prompts.standard() if k == kind]
        mean[kind] = sum(shares) / len(shares)
    assert mean["copy"] > 2 * max(mean["code"], mean["prose"])


def test_separator_lines_and_line_ends():
    assert prompts.split("a\n%%\nb\n\n%%\n") == ["a", "b\n"]
    assert prompts.split("one %% two\n") == ["one %% two"]
    assert prompts.split("a\r\n%%\r\nb") == ["a", "b"]
    assert prompts.split("\n%%\n \n") == []
    assert prompts.split("    indented\n") == ["    indented"]


def test_kind_is_the_files_stem(tmp_path):
    (tmp_path / "haiku.txt").write_text("x\n%%\ny\n")
    assert prompts.from_file(str(tmp_path / "haiku.txt")) == [("haiku", "x"), ("haiku", "y")]
    with pytest.raises(UsageProblem, match="cannot read"):
        prompts.from_file(str(tmp_path))


def test_limit_counts_by_kind():
    import torch

    many = [prompts.Prompt(kind, "x", torch.zeros(1, 1)) for kind in "aabbb"]
    assert [p.kind for p in prompts.first_of_each_kind(many, 2)] == list("aabb")
    assert len(prompts.first_of_each_kind(many, 0)) == 5
