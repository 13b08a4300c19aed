"""The entries of an adapter's config.json and the header of its weights are checked as a head's are."""

import pytest

from speclab.drafts.heads import files
from speclab.extensions.exits.adapter_files import config_from, exit_layer_of, read_adapter, write_adapter
from speclab.extensions.exits.kinds import LAB_EXIT
from speclab.extensions.exits.tests.adapters import tiny_adapter
from speclab.system.paths import ROOT
from tests.drafts.test_head_files import DECODER, JSON, MISSING, check_weights, entries, refused
from tests.tiny_models import tiny


@pytest.fixture(scope="module")
def target():
    return tiny("llama", num_hidden_layers=3)


@pytest.fixture
def folder(target, tmp_path):
    write_adapter(tmp_path / "head", tiny_adapter(target, 2), "some/target", ["LlamaForCausalLM"])
    return tmp_path / "head"


def test_every_entry_is_needed_and_is_refused_by_its_name(folder):
    for name, kind in {"exit_layer": "int", "target_layers": "int", DECODER: "dict"}.items():
        for wrong in (None, "2", -1):
            with pytest.raises(ValueError, match=f"{name} is .*{MISSING} {kind}"):
                config_from(entries(folder) | {name: wrong})


def test_weights_are_looked_at_before_they_are_read(target, folder, monkeypatch):
    check_weights(folder, lambda: read_adapter(str(folder), target), monkeypatch)


@pytest.mark.parametrize("content", JSON.values(), ids=JSON)
def test_damaged_json_is_one_line(target, folder, content):
    (folder / "config.json").write_bytes(content)
    assert "config.json" in refused(read_adapter, str(folder), target)
    assert exit_layer_of(str(folder)) is None


def test_the_labs_own_adapter_is_read():
    config_from(files.read_config(ROOT / LAB_EXIT / "config.json"))
