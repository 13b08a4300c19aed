"""Views read no entry of a record's dicts that is not declared, and an entry of another type is refused when read."""

import functools
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import TypeAdapter

from speclab.present import first_screen, report
from speclab.records import facts, files
from speclab.records.runs import ComparisonRun
from speclab.theory.costs import Costs

RESULTS = Path(__file__).parents[2] / "results"
TRUTH_ONLY = {"under load"}  # an entry of older records, whose truth value alone is asked for
VIEWS: list[tuple[str, type, list]] = [
    ("cpu-2-cores-intel", ComparisonRun, [first_screen.screen, functools.partial(first_screen.page, name="x")]),
]


class Watched(dict):
    """A dict that tells when an entry is read which its kind does not declare, or which may be missing and is taken
    for granted."""

    def __init__(self, kind: type, content: dict):
        super().__init__(content)
        self.kind, self.asked = kind, set()

    def check(self, key: str) -> None:
        assert key in get_type_hints(self.kind) or key in TRUTH_ONLY, f"{self.kind.__name__} has no {key}"

    def __getitem__(self, key: str) -> Any:
        self.check(key)
        assert not hasattr(self.kind, key) or key in self.asked, f"{key} of {self.kind.__name__} may be missing"
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, default) if key in self else default

    def __contains__(self, key: object) -> bool:
        self.check(str(key))
        self.asked.add(key)
        return super().__contains__(key)


class Undeclared:
    """It stands for the kind of a dict of which nothing is declared."""


def watched(kind: type, handler: Any, schema: Any = facts._schema) -> dict:
    """What `facts._schema` gives, with a Watched for the dict."""
    wrap = {"type": "no-info", "function": functools.partial(Watched, kind)}
    return {"type": "function-after", "function": wrap, "schema": schema(kind, handler)}


def watch_the_rest(part: Any) -> None:
    """Let the dicts of which nothing is declared tell, too."""
    for field in fields(part):
        value = getattr(part, field.name)
        for one in value if isinstance(value, list) else [value]:
            if is_dataclass(one):
                watch_the_rest(one)
        hint = get_type_hints(type(part))[field.name]
        if type(value) is dict and facts.Facts in (hint, *get_args(hint)):
            setattr(part, field.name, Watched(Undeclared, value))


@pytest.mark.parametrize(("name", "kind", "views"), VIEWS, ids=lambda value: value if isinstance(value, str) else "")
def test_views_read_only_what_is_declared(name, kind, views, monkeypatch):
    monkeypatch.setattr(facts, "_schema", watched)
    run = TypeAdapter(kind).validate_json((RESULTS / f"{name}.json").read_bytes())
    watch_the_rest(run)
    assert isinstance(run.settings, Watched)
    for view in views:
        assert view(run)


def test_the_watch_notices():
    made = Watched(facts.SampledCheck, {"arm": "x", "z_edge": 0.5, "more": 1})
    assert made["arm"] == "x"
    assert made.get("z_edge") == made["z_edge"] == 0.5
    for key in ("more", "n_uncertain"):
        with pytest.raises(AssertionError):
            made[key]


@pytest.mark.parametrize(
    ("name", "kind", "place", "value"),
    [
        ("cpu-2-cores", ComparisonRun, ("phases", "share"), 1.5),
        ("cpu-2-cores", ComparisonRun, ("prompts", "n"), None),
    ],
)
def test_an_entry_of_another_type_is_refused(name, kind, place, value):
    run = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    files.parsed(kind, json.dumps(run))
    inner = run
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(ValueError, match=str(place[0])):
        files.parsed(kind, json.dumps(run))


def test_what_may_be_missing_is_not_missed():
    """Costs with an entry of a later version, and a row of a lossy rule without its numbers."""
    entry = files.parsed(ComparisonRun, (RESULTS / "cpu-2-cores-intel.json").read_text("utf-8")).costs[0]["costs"]
    assert Costs.from_json(entry | {"later": 1}) == Costs.from_json(entry)
    lossy = {"temperature": 1, "arm": "x", "lossy_rule": "y", "passed": True, "n_tokens": 1, "bound": 5.0}
    assert report.agreement_lines([lossy])
