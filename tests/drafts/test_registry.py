"""The table of drafts: every kind reads what its usage says, and what two names have in common is refused."""

import json

import pytest

from speclab.core.drafter import Lookup
from speclab.drafts import registry
from speclab.drafts.registry import add_lookup, kinds, read, read_all
from speclab.system.errors import UsageProblem

TYPED = ("model", "ngram", "suffix", "feature", "hybrid", "hybrid:ngram+model")


@pytest.fixture
def table(monkeypatch):
    """A copy of the table, so that a test may add to it."""
    monkeypatch.setattr(registry, "_KINDS", dict(kinds()))


def test_every_kind_has_a_line_of_help_and_a_name_stands_for_itself():
    for name, kind in kinds().items():
        assert kind.usage.startswith(name)
        assert kind.help
        assert kind.usage in registry.shown()
    for text in TYPED:
        choice = read(text)
        assert choice.text == choice.name == text


def test_limits_of_the_parts_are_limits_of_the_whole():
    """A hybrid of a head needs a decoder-only target, as the head does; one of a model does not."""
    assert not read("feature").any_family
    assert not read("hybrid").any_family
    assert read("hybrid:suffix+model").any_family


def test_a_new_lookup_is_one_line(table):
    add_lookup("nothing", Lookup, "nothing at all")
    assert read("nothing").is_lookup
    assert read("hybrid:nothing+model").name == "hybrid:nothing+model"


def test_no_name_is_given_away_twice(table):
    with pytest.raises(UsageProblem, match="twice"):
        read_all(["ngram", "ngram"])
    with pytest.raises(UsageProblem, match="no draft is named"):
        read_all([])
    with pytest.raises(UsageProblem, match="takes no argument; give ngram"):
        read("ngram:3")
    with pytest.raises(AssertionError, match="ngram already"):
        add_lookup("ngram", Lookup, "nothing at all")


def test_no_folder_takes_the_place_of_a_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ngram").mkdir()
    (tmp_path / "ngram" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert read("ngram").is_lookup
    assert read("./ngram").is_model
