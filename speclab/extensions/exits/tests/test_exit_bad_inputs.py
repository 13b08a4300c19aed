"""Bad inputs of `--draft exit` end in one line that names the cause and what to do."""

import pytest

from speclab.drafts import registry
from tests.cli.bad_inputs import DIGITS, KINDS, Row, S
from tests.cli.test_bad_inputs import check_row, folder  # noqa: F401 - a fixture

ROWS = [
    Row(f"{S} --draft exit:0", 2, ("12 layers", "a number from 1 to 11")),
    Row(f"{S} --draft exit:12", 2, ("12 layers", "a number from 1 to 11")),
    Row(f"{S} --draft exit:{DIGITS}", 2, ("12 layers", "a number from 1 to 11")),
    Row(f"{S} --draft exit:x", 2, ("an adapter's folder", "exit:2")),
    Row(f"{S} --draft exit:", 2, ("'exit:'", KINDS)),
    Row(f"{S} --draft exit:--3", 2, ("an adapter's folder", "exit:2")),
    Row(f"{S} --draft exit:5", 2, ("no adapter for layer 5", "python -m training.heads exit --exit-layer 5")),
    Row(f"{S} --draft hybrid:suffix+exit:5", 2, ("python -m training.heads exit --exit-layer 5",)),
    Row(f"{S} --draft exit:2", 2, ("belongs to a target with 12 layers of width 256", "trained for it")),
    Row(f"{S} --draft exit:./missing", 3, ("there is no model folder ./missing",)),
    Row(f"{S} --draft exit:draft", 3, ("its config.json", "--draft exit reads")),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ascii(row.command)[1:70])
def test_bad_input_is_one_line(folder, capfd, monkeypatch, row):  # noqa: F811
    check_row(folder, capfd, monkeypatch, row)


def test_it_needs_a_decoder_only_target_and_goes_behind_a_lookup():
    choice = registry.read("exit:2")
    assert not choice.any_family
    assert choice.in_hybrid
    assert not choice.can_branch
