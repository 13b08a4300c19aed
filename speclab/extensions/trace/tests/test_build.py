"""The lab's page and its animation: as committed, small, of today's templates and records, and what the models say."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from speclab.extensions.trace import build, trace_svg
from speclab.extensions.trace.dials import page, presets
from speclab.extensions.trace.tests.test_trace import Tags
from speclab.extensions.trace.tests.trace_streams import scripted, with_texts
from speclab.models import loading
from speclab.records.files import read
from speclab.records.runs import ComparisonRun

NASTY = "</text><script>alert(1)</script>&\"'<image href='https://example.org/x'/>"
SVG = "{http://www.w3.org/2000/svg}"
MOST = 300_000  # bytes of the page


@pytest.fixture(scope="module")
def tokenizer(pair_folder):
    return loading.load_tokenizer(str(pair_folder / "target"))


def test_the_animation_shows_every_token_and_nothing_else(tokenizer):
    found = with_texts(scripted(tokenizer, "x", 30, temperature=0.0), "tok")
    root = ElementTree.fromstring(trace_svg.draw(found))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    n_drafts = sum(len(event.drafts) for event in found.events)
    n_own = sum(len(event.tokens) - event.n_accepted for event in found.events[1:])
    assert texts.count("tok") == 30 + 30 + n_drafts + n_own
    assert texts.count("rejected") == found.counts.n_rejected
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {
        "svg",
        "style",
        "rect",
        "g",
        "text",
        "tspan",
        "path",
    }
    assert f"30 tokens, {found.counts.n_rounds} passes of the target" in texts
    assert "30 tokens, 29 passes" in texts


def test_no_text_becomes_markup(tokenizer):
    found = replace(with_texts(scripted(tokenizer, "x", 20), NASTY), prompt=NASTY)
    root = ElementTree.fromstring(trace_svg.draw(found))
    assert not [element for element in root.iter() if element.tag in (f"{SVG}script", f"{SVG}image")]
    assert any("<script>" in (element.text or "") for element in root.iter(f"{SVG}text"))


def test_both_clocks_stand_still_after_each_round(tokenizer):
    """Slowed down alike: between two pauses the picture's time goes as the trace's."""
    found = scripted(tokenizer, "x", 30)
    film = trace_svg.Film(found)
    for i, (before, event) in enumerate(zip(found.events, found.events[1:], strict=False)):
        spent = film.at(event.end) - film.at(before.end, paused=True)
        assert spent == pytest.approx((event.end - before.end) * trace_svg.SLOWER)
        assert film.at(event.end, paused=True) - film.at(event.end) == pytest.approx(trace_svg.PAUSE)
        assert film.at(event.end) == pytest.approx(event.end * trace_svg.SLOWER + i * trace_svg.PAUSE)


def test_prices_are_the_records_and_no_clocks(tokenizer):
    costs = presets.greedy_costs(read(presets.RESULTS / f"{build.RECORD}.json", ComparisonRun))["model"]
    found = build.priced(scripted(tokenizer, "x", 30), costs, 5)
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
    assert committed["presets"] == presets.committed()
    picture = build.ANIMATION.read_text("utf-8")
    assert trace_svg.STYLE in picture
    ElementTree.fromstring(picture)
    for one in (picture, text):
        assert "http" not in one.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


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
    """One text, every draft; the texts in between are the same in `make test-full`."""
    setup = build.load_setup(loading.LAB_TARGET, engine="eager")
    given = build.first_of_each_kind(build.prompts.encode(build.prompts.standard(), setup.tokenizer))
    found = build.dialled(setup, given[:1], build.DRAFTS[loading.LAB_TARGET], "the lab's pair")
    [text], expected = found["texts"], committed["targets"][0]["texts"][0]
    assert text == expected
    assert found["pictures"] == committed["targets"][0]["pictures"][: len(found["pictures"])]


@pytest.mark.full
def test_the_committed_files_are_what_the_command_makes(committed):
    assert committed == build.page_data()
    assert build.ANIMATION.read_text("utf-8") == trace_svg.draw(build.animated())
