"""The page of a comparison in a real browser, at five widths and in both themes."""

import pytest

from speclab.extensions.trace import html_report
from speclab.extensions.trace.dials import own_page
from speclab.extensions.trace.tests.browser.looks import CONTRAST, WIDTHS
from speclab.extensions.trace.tests.trace_streams import scripted
from speclab.present import first_screen
from speclab.present.pictures import figures, plots
from tests.present.test_report import make_run

LONG = "models/somebody/" + "a-long-name-" * 6


@pytest.fixture(scope="module")
def text(tokenizer, tmp_path_factory) -> str:
    run, folder = make_run(methods=("model", LONG)), tmp_path_factory.mktemp("plots")
    pictures = [path for draw in plots.comparison(run, folder, "x") if (path := draw())]
    figures.plt.close("all")
    found = scripted(tokenizer, "def f(x):", 60)
    return html_report.page(first_screen.page(run, "x"), pictures, own_page.of_trace(found), LONG)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_and_its_tables_scroll_in_their_own_box(open_page, text, width):
    page = open_page(text, {"width": width, "height": 800})
    assert page.problems == []
    assert page.requests[1:] == [] or all(request.startswith("data:") for request in page.requests[1:])
    page.click("text=All tables of this run")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for image in page.locator("figure img").all():
        assert image.evaluate("image => image.complete && image.naturalWidth > 400")
        box = image.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        assert box["width"] > 250
    tables = page.locator(".measured .scroll").all()
    assert len(tables) > 10
    for table in tables:
        box = table.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        wide, room, overflow = table.evaluate("t => [t.scrollWidth, t.clientWidth, getComputedStyle(t).overflowX]")
        assert wide <= room or overflow == "auto"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_can_be_read(open_page, text, scheme):
    page = open_page(text, {"width": 1366, "height": 800}, color_scheme=scheme)
    page.click("text=All tables of this run")
    assert page.evaluate(CONTRAST) == []
