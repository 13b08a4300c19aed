"""Bad inputs of the command end in one line that names the cause and what to do, and nothing is half done."""

import pytest

from tests.branching import add_branching
from tests.cli.bad_inputs import FILED, Row
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture

COMPARE = f"-m speclab.extensions.batch {' '.join(FILED)}"
ROWS = [
    Row(f"{COMPARE} -B ''", 2, ("-B :", "give a list as in -B 2,4,8")),
    Row(f"{COMPARE} -B 0,2", 2, ("-B 0,2", "give 1 or more")),
    Row(f"{COMPARE} -B 2000", 2, ("-B 2000", "give 1024 or less")),
    Row(f"{COMPARE} -k 2,all", 2, ("-k 2,all", "'all' is not a whole number", "as in -k 2,4,8")),
    Row(f"{COMPARE} --temperature 0,1", 2, ("--temperature", "0,1", "--help")),
    Row(f"{COMPARE} --max-new-tokens 1", 2, ("use --max-new-tokens 2 or more",)),
    Row(f"{COMPARE} --draft branching", 2, ("a batch knows chains only", "branching has branches; leave it out")),
    Row(f"{COMPARE} --draft dial:0.5:free --prompt x", 2, ("replays one text",)),
    Row(f"{COMPARE} --out-dir file", 3, ("--out-dir",)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.command[28:])
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row):  # noqa: F811
    add_branching(monkeypatch)
    check_row(folder, capfd, monkeypatch, row)
