"""The page of a decoding in a real browser: it loads quietly, marks every token, steps by keyboard, and asks nobody."""

import re

import pytest

from speclab.extensions.trace import trace, trace_page, trace_terminal
from speclab.extensions.trace.tests.trace_streams import clock, rounds, scripted, settings, with_texts
from speclab.system import terminal

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
WIDTHS = (360, 768, 1366, 1440, 1920)
NASTY = "<script>document.title = 'broken'</script><!-- <img src=x onerror=\"document.title = 'broken'\"> ]]> </pre>"


@pytest.fixture
def show(open_page):
    """Open a trace's page."""

    def call(found: trace.Trace, viewport=DESK, **look):
        return open_page(trace_page.page(found), viewport, **look)

    return call


def tokens_shown(page) -> int:
    """Tokens of the output that can be seen."""
    return page.locator("#text .t:not(.later)").count()


def index(page) -> int:
    return int(page.locator("#slider").input_value())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("viewport", [DESK, PHONE], ids=["desk", "phone"])
def test_loads_quietly_and_marks_every_token(show, tokenizer, temperature, viewport):
    found = scripted(tokenizer, "def f(x):\n    return", 120, temperature=temperature)
    page = show(found, viewport)
    assert page.problems == []
    assert page.requests == [page.url]
    assert page.url.startswith("file:")
    assert index(page) == 1, "it opens at the first round"
    assert tokens_shown(page) == found.events[1].n_tokens
    page.keyboard.press("End")
    kinds = [t.kind for e in found.events for t in e.tokens]
    assert page.locator("#text .t").count() == tokens_shown(page) == len(kinds) == 120
    for kind in set(kinds):
        assert page.locator(f"#text .t.{kind}").count() == kinds.count(kind)
    assert page.locator("#text .rejected").count() == found.counts.n_rejected
    assert page.locator("#summary").inner_text() == trace_terminal.summary(found)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_text_reads_as_the_decoding(show, tokenizer):
    """What the browser holds as text is the prompt's end and the output, rejected drafts apart."""
    found = scripted(tokenizer, "def f(x):\n    return", 80)
    page = show(found)
    held = page.evaluate("[...document.querySelectorAll('#text > span')].map(part => part.textContent).join('')")
    said = "".join(t.text for e in found.events for t in e.tokens)
    assert held == terminal.harmless("def f(x):\n    return" + said)


def test_every_step_by_keyboard(show, tokenizer):
    """Right, left, Home and End; after each the text, both counts, the spoken line and the round agree."""
    found = scripted(tokenizer, "x", 60)
    page = show(found)
    page.keyboard.press("Home")
    assert tokens_shown(page) == 1
    for event in found.events[1:]:
        page.keyboard.press("ArrowRight")
        there = found.baseline_tokens(event.end)
        assert tokens_shown(page) == event.n_tokens
        assert page.locator("#baseline span:not(.prompt):not(.later)").count() == there
        assert page.locator("#line").inner_text() == trace_page.round_line(event, there)
        assert page.locator("#round-title").inner_text().startswith(f"Round {event.number}:")
        own = sum(t.kind != "accepted" for t in event.tokens)
        assert page.locator("#round > li").count() == len(event.drafts) + own
        assert page.locator("#text .now.t").count() == len(event.tokens)
        if event.drafts:
            kept = page.locator("#round-title").inner_text().split(": ")[1]
            assert kept == f"{event.n_accepted} of {len(event.drafts)} kept"
    page.keyboard.press("ArrowLeft")
    assert tokens_shown(page) == found.events[-2].n_tokens
    page.keyboard.press("End")
    assert tokens_shown(page) == 60
    assert page.locator("#baseline-progress").inner_text() == "60 tokens, done"
    page.keyboard.press("ArrowRight")
    assert page.locator("#forward").is_disabled()
    page.keyboard.press("Home")
    assert (index(page), tokens_shown(page)) == (0, 1)


def test_buttons_and_slider(show, tokenizer):
    found = scripted(tokenizer, "x", 60)
    page = show(found)
    page.click("#home")
    page.click("#forward")
    page.click("#forward")
    assert tokens_shown(page) == found.events[2].n_tokens
    page.click("#back")
    assert tokens_shown(page) == found.events[1].n_tokens
    page.focus("#slider")
    page.keyboard.press("ArrowRight")  # the slider's own key: one step, not two
    assert tokens_shown(page) == found.events[2].n_tokens
    page.click("#end")
    assert page.locator("#end").is_disabled()
    page.locator("#lane-rounds .round-box").nth(3).click()
    assert tokens_shown(page) == found.events[4].n_tokens


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_space_plays_and_stops(show, tokenizer, motion):
    """Playing goes on by itself to the end; with reduced motion it goes round by round."""
    found = scripted(tokenizer, "x", 30)
    page = show(found, reduced_motion=motion)
    page.clock.install()
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    assert page.locator("#play").get_attribute("aria-label") == "Pause"
    assert page.locator("#line").get_attribute("aria-live") == "off"
    page.clock.run_for(1000)
    moved = page.evaluate("document.getElementById('cursor').style.left") != "0%"
    assert moved == (motion != "reduce")  # no gliding: it waits, then jumps to the next round
    page.clock.run_for(600)
    if motion == "reduce":
        assert index(page) == 1
    page.clock.run_for(2000)
    assert 1 < tokens_shown(page) < 30
    page.keyboard.press(" ")
    assert page.locator("#line").get_attribute("aria-live") == "polite"
    before = tokens_shown(page)
    page.clock.run_for(5000)
    assert tokens_shown(page) == before
    page.keyboard.press(" ")
    page.clock.run_for(120_000)
    assert tokens_shown(page) == 30
    assert page.locator("#play").get_attribute("aria-label") == "Play"
    assert page.problems == []


def test_hover_and_focus_show_a_tokens_numbers(show, tokenizer):
    found = scripted(tokenizer, "x", 60)
    page = show(found)
    page.keyboard.press("End")
    event = next(e for e in found.events if e.n_accepted and any(t.kind == "rejected" for t in e.drafts))
    page.locator(f"#text .t.accepted[data-r='{event.number}']").first.hover()
    hot = page.locator("#round li.hot")
    assert hot.count() == 1
    token = event.drafts[0]
    for name, value in (
        ("q", token.position.draft_prob),
        ("p", token.position.target_prob),
        ("u", token.position.uniform),
    ):
        shown = re.search(rf"\b{name} ([\d.e-]+)", hot.locator(".numbers").inner_text())[1]
        assert float(shown) == pytest.approx(value, rel=5e-3)
    assert trace_terminal.outcome(token, found.greedy) in hot.inner_text()
    assert page.locator("#round-title").inner_text().startswith(f"Round {event.number}:")
    page.locator("h1").hover()
    assert page.locator("#round li.hot").count() == 0
    page.locator(f"#text .rejected[data-r='{event.number}']").hover()
    assert "not below p" in page.locator("#round li.hot").inner_text()
    page.locator("#text .t").nth(5).focus()
    assert page.locator("#round li.hot").count() == 1
    page.keyboard.press("ArrowDown")
    assert page.evaluate("[...document.querySelectorAll('#text .t')].indexOf(document.activeElement)") == 6
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px"
    page.keyboard.press("Enter")
    assert index(page) == int(page.evaluate("document.activeElement.dataset.r"))
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert re.match(r"(accepted|corrected|bonus|plain) .*, round \d+: ", label)


def test_greedy_rounds_show_the_targets_first_choice_and_no_probabilities(show, tokenizer):
    found = scripted(tokenizer, "x", 60, temperature=0.0)
    page = show(found)
    page.keyboard.press("Home")
    for event in found.events[1:]:
        page.keyboard.press("ArrowRight")
        rows = page.locator("#round > li").all()
        assert page.locator("#round .bar").count() == 0
        shown = [*event.drafts, *event.tokens[event.n_accepted :]]
        for row, token in zip(rows, shown, strict=True):
            text = row.inner_text()
            assert not re.search(r"\b[qpu] \d", text)
            tested = token.kind in ("accepted", "rejected")
            assert ("target:" in text) == tested
            if tested:
                assert row.locator(".choice .token").inner_text() == trace_page.visible(token.top)
                assert trace_terminal.outcome(token, greedy=True) in text
    assert not re.search(r"\b[qpu]:", page.locator("section.round .note").inner_text())


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_over_the_axis(show, tokenizer, width):
    """At every width, at the start, in the middle and at the end; also with so many rounds that they get narrow."""
    for n_tokens in (60, 500):
        page = show(scripted(tokenizer, "def f(x):", n_tokens), {"width": width, "height": 800})
        strip, part = page.locator(".lanes-frame"), "frame => [frame.scrollWidth, frame.clientWidth]"
        for key in ("Home", "ArrowRight", "End"):
            page.keyboard.press(key)
            wide, room = strip.evaluate(part)
            assert wide <= room
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        boxes = [page.locator(f"#{name}").bounding_box() for name in ("lanes", "cursor", "axis")]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)


def test_no_word_labels_two_marks(show, tokenizer):
    page = show(scripted(tokenizer, "x", 120))
    words = page.locator("ul.legend li > :first-child").all_inner_texts()
    assert len(words) > 6
    assert len(set(words)) == len(words)


def test_rejected_drafts_can_be_hidden(show, tokenizer):
    page = show(scripted(tokenizer, "x", 60))
    page.keyboard.press("End")
    gone = page.locator("#text .rejected").first
    assert gone.is_visible()
    assert "line-through" in gone.evaluate("element => getComputedStyle(element).textDecorationLine")
    page.keyboard.press("r")
    assert not gone.is_visible()
    page.check("#rejected")
    assert gone.is_visible()


def test_the_tab_key_stops_once_in_the_text(show, tokenizer):
    page = show(scripted(tokenizer, "x", 120))
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        stops.append(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if stops.count("skip") == 2:  # once around the page
            break
    assert stops.count("skip") == 2
    assert sum(stop.startswith("t ") for stop in stops) == 1
    assert {"back", "home", "slider", "speed", "rejected"} <= set(stops)


@pytest.mark.parametrize("where", ["prompt", "tokens"])
def test_markup_does_nothing(show, tokenizer, where):
    ids = tokenizer(NASTY).input_ids
    stream = rounds(ids, 80)
    said = [token for round_ in stream for token in round_.tokens]
    names = {**settings(), "target": NASTY, "draft": NASTY}
    found = trace.trace(stream, clock(said), tokenizer, NASTY * 9, ids, names)
    page = show(with_texts(found, NASTY) if where == "tokens" else found)
    page.keyboard.press("Home")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
        page.locator("#text .t.now").first.focus()
    assert page.problems == []
    assert page.requests == [page.url]
    assert page.title().startswith("A decoding, round by round: <script>")
    assert page.locator("script").count() == 2
    assert page.locator("img").count() == 0
    page.click("text=the prompt's beginning")
    assert NASTY in page.locator(".head pre").inner_text()


def test_phone_width_never_scrolls_sideways(show, tokenizer):
    """Long words, many rounds, wide tables: every step stays within 360 pixels."""
    long = tokenizer("x" * 40).input_ids
    found = scripted(tokenizer, "y" * 500, 300, [*long, *range(1, 40)], draft_length=16)
    page = show(found, PHONE)
    page.click("text=All rounds as a table")
    for key in ("Home", "ArrowRight", "ArrowRight", "End"):
        page.keyboard.press(key)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        for frame in page.locator(".frame").all():
            assert frame.evaluate("frame => frame.scrollWidth <= frame.clientWidth")


# A text against what lies behind it, as WCAG 2 counts it: 4.5 and more for every text that can be seen.
CONTRAST = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility({visibilityProperty: true})) continue;
    if (element.closest("script, style, :disabled")) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([element.tagName, element.className, ratio]);
  }
  return low;
}"""
# The lines that mark a token against the panel: 3 and more, as for every graphic.
MARKS = """() => {
  const light = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const panel = light(getComputedStyle(document.querySelector("section.text")).backgroundColor);
  const ratios = {};
  for (const [kind, property] of Object.entries({accepted: "borderBottomColor", bonus: "borderBottomColor",
      corrected: "outlineColor", first: "borderBottomColor", plain: "borderBottomColor"})) {
    const line = light(getComputedStyle(document.querySelector(`#text .${kind}:not(:focus)`))[property]);
    ratios[kind] = (Math.max(line, panel) + 0.05) / (Math.min(line, panel) + 0.05);
  }
  return ratios;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes_are_readable_and_photographed(show, tokenizer, tmp_path, scheme):
    """Contrast in both themes, and a picture of each for whoever wants to look."""
    found = scripted(tokenizer, "def f(x):\n    return x", 100)
    page = show(found, color_scheme=scheme)
    page.click("text=All rounds as a table")
    page.keyboard.press("Home")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert page.evaluate(CONTRAST) == []
    ratios = page.evaluate(MARKS)
    assert min(ratios.values()) >= 3, ratios
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.search(r"\d+", background)[0]) > 128) == (scheme == "light")
    page.screenshot(path=tmp_path / f"{scheme}.png")
    assert (tmp_path / f"{scheme}.png").stat().st_size > 20_000


def test_marks_differ_in_shape_not_only_in_colour(show, tokenizer):
    """Line style, line width, box: no two kinds share them, so grey print tells them apart."""
    page = show(scripted(tokenizer, "x", 120))
    look = """kind => { const style = getComputedStyle(document.querySelector(`#text .${kind}`));
      return [style.borderBottomStyle, style.borderBottomWidth, style.outlineStyle,
        style.textDecorationLine].join() }"""
    kinds = ["first", "plain", "accepted", "corrected", "bonus", "rejected"]
    shapes = [page.evaluate(look, kind) for kind in kinds]
    assert len(set(shapes)) == len(kinds), shapes


def test_print_shows_the_whole_text(show, tokenizer):
    page = show(scripted(tokenizer, "x", 60))
    page.keyboard.press("Home")
    page.emulate_media(media="print")
    hidden = (
        "[...document.querySelectorAll('#text .t')].filter(t => getComputedStyle(t).visibility === 'hidden').length"
    )
    assert page.evaluate(hidden) == 0
    assert not page.locator(".controls").is_visible()


def test_without_javascript_the_text_and_the_table_are_there(browser, tokenizer, tmp_path):
    found = scripted(tokenizer, "def f(x):", 60)
    (tmp_path / "trace.html").write_text(trace_page.page(found), "utf-8")
    context = browser.new_context(java_script_enabled=False, viewport=PHONE)
    page = context.new_page()
    page.goto((tmp_path / "trace.html").as_uri())
    assert page.locator("#text .t").count() == 60
    assert page.locator("#text .t").last.is_visible()
    assert not page.locator(".controls").is_visible()
    assert page.locator("tbody tr").count() == len(found.events)
    context.close()
