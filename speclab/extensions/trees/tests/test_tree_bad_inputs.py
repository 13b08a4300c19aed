"""Bad inputs about trees end in one line that names the cause and what to do, and nothing is half done."""

import pytest

from tests.cli.bad_inputs import Row
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture

C, S = "compare.py", "optimized_speculative.py"
ROWS = [
    Row(f"{S} --draft tree:2x:model", 2, ("the shape of a tree", "tree:2x2x1:feature or tree:best:feature")),
    Row(f"{S} --draft sampled-tree:best:model", 2, ("the shape of a tree", "sampled-tree:2x2x1:feature")),
    Row(f"{S} --draft tree:8x8x8:model", 2, ("584 tokens", "at most 64")),
    Row(f"{S} --draft tree:2x2:ngram", 2, ("model, feature or block", "tree:2x2:feature")),
    Row(f"{S} --draft tree:2x2:target -k auto", 2, ("tree:2x2:target drafts trees", "give -k a number")),
    Row(f"{C} --prompt x --draft tree:2x2:target -k auto", 2, ("tree:2x2:target drafts trees", "give -k a number")),
    Row(f"{S} --draft merge:suffix", 2, ("different drafts with + between them", "merge:suffix+model")),
    Row(f"{S} --draft merge:suffix+suffix", 2, ("different drafts", "merge:suffix+model")),
    Row(f"{S} --draft merge:suffix+tree:2x2:model", 2, ("different drafts", "model, feature or block")),
    Row(f"{S} --draft merge:suffix+feture", 2, ("feture",)),
    Row(f"{S} --draft hybrid:suffix+tree:2x2x1:model", 2, ("a draft with a model", "hybrid:suffix+feature")),
    Row(f"{S} --draft merge:suffix+target -k auto", 2, ("merge:suffix+target has several", "give -k a number")),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command)
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row):  # noqa: F811
    check_row(folder, capfd, monkeypatch, row)
