"""The example of the trace page and its animation: made from a trace alone, escaped, small, and as committed."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from speclab.extensions.trace import example, trace_page, trace_svg
from speclab.extensions.trace.tests.trace_streams import scripted, with_texts
from speclab.models import loading
from speclab.records.files import read
from speclab.records.runs import ComparisonRun
from speclab.theory.costs import Costs

NASTY = "</text><script>alert(1)</script>&\"'<image href='https://example.org/x'/>"
SVG = "{http://www.w3.org/2000/svg}"
MOST = 2**20  # bytes of each file


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
    entry = next(
        e for e in read(example.RECORD, ComparisonRun).costs if (e["drafter"], e["temperature"]) == ("model", 0)
    )
    costs = Costs.from_json(entry["costs"])
    found = example.priced(scripted(tokenizer, "x", 30), costs, 5)
    event = found.events[2]
    context, n = 5 + found.events[1].n_tokens, len(event.drafts)
    assert event.seconds["verify"] == costs.verify_seconds(n + 1, context)
    assert event.seconds["draft"] == costs.draft_seconds(n, context)
    assert found.events[-1].end == pytest.approx(sum(sum(e.seconds.values()) for e in found.events[1:]))
    assert found.baseline[1][1] == costs.step_seconds(6)
    assert "No clock ran" in trace_page.page(found)


def test_the_committed_files_are_small_and_of_todays_templates():
    page, picture = (path.read_text("utf-8") for path in (example.PAGE, example.ANIMATION))
    assert max(len(page.encode()), len(picture.encode())) < MOST
    for kind in ("css", "js"):
        current = (trace_page.TEMPLATES / f"trace.{kind}").read_text("utf-8")
        assert current in page, "run python -m speclab.extensions.trace.example"
    assert trace_svg.STYLE in picture, "run python -m speclab.extensions.trace.example"
    ElementTree.fromstring(picture)
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.full
def test_the_committed_files_are_what_the_command_makes():
    trace = example.example()
    assert trace.same_text
    assert example.PAGE.read_text("utf-8") == trace_page.page(trace)
    assert example.ANIMATION.read_text("utf-8") == trace_svg.draw(trace)
