"""The entries of an adapter's config.json and the header of its weights are checked as a head's are."""

import pytest

from speclab.drafts.heads import files
from speclab.drafts.heads.schema import KINDS, checked
from speclab.extensions.exits.adapter_files import exit_layer_of, read_adapter, write_adapter
from speclab.extensions.exits.entries import AdapterEntries
from speclab.extensions.exits.kinds import LAB_EXIT
from speclab.extensions.exits.tests.adapters import tiny_adapter
from tests.drafts import test_head_entries as heads
from tests.drafts.test_head_entries import target  # noqa: F401 - a fixture


def write(folder, target, kind):  # noqa: F811
    write_adapter(folder, tiny_adapter(target, 2), "some/target", ["LlamaForCausalLM"])


@pytest.fixture(autouse=True)
def adapters_among_heads(monkeypatch):
    monkeypatch.setitem(KINDS, "exit", AdapterEntries)
    monkeypatch.setitem(heads.FILES, "exit", (write, lambda folder, model, kind: read_adapter(str(folder), model)))


@pytest.mark.parametrize(
    "test",
    [
        heads.test_every_entry_that_is_read_is_refused_by_its_name,
        heads.test_entries_that_change_nothing_are_read_and_change_nothing,
        heads.test_whole_numbers_may_be_written_with_a_point,
    ],
)
def test_entries(test, tmp_path, target):  # noqa: F811
    test(tmp_path, target, "exit")


@pytest.mark.parametrize("value", ["null", None])
def test_what_it_must_say_is_named_where_it_is_missing(tmp_path, target, value):  # noqa: F811
    heads.test_what_a_head_must_say_is_named_where_it_is_missing(tmp_path, target, "exit", value)


def test_unknown_entries_are_named(tmp_path, target, capsys):  # noqa: F811
    heads.test_unknown_entries_are_named_in_one_line_and_known_ones_are_not(tmp_path, target, "exit", capsys)


def test_weights_are_compared_before_a_number_is_read(tmp_path, target, monkeypatch):  # noqa: F811
    heads.test_names_shapes_and_types_are_compared_before_a_number_is_read(tmp_path, target, "exit", monkeypatch)


@pytest.mark.parametrize("content", heads.JSON.values(), ids=heads.JSON)
def test_damaged_json_is_one_line(tmp_path, target, content):  # noqa: F811
    heads.test_damaged_json_is_one_line(tmp_path, target, "exit", content)
    assert exit_layer_of(str(tmp_path / "head")) is None


def test_the_labs_own_adapter_says_nothing_unknown():
    found = files.read_config(heads.ROOT / LAB_EXIT / "config.json")
    checked(found, AdapterEntries)
    assert files.schema().unknown(found, AdapterEntries) == []
