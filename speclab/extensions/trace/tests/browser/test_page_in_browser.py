"""The pages with dials in a real browser: they load quietly, every dial follows, and the keyboard alone is enough."""

import re

import pytest

from speclab.extensions.trace import build, page
from speclab.extensions.trace.tests.trace_streams import scripted, with_texts

NASTY = "<script>document.title = 'broken'</script><!-- <img src=x onerror=\"document.title = 'broken'\"> ]]> </pre>"

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
WIDTHS = (360, 768, 1366, 1440, 1920)
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


@pytest.fixture(scope="module")
def text() -> str:
    return build.PAGE.read_text("utf-8")


@pytest.fixture
def lab(open_page, text):
    """Open the lab's page at an address."""

    def call(address: str = "", viewport=DESK, **look):
        opened = open_page(text, viewport, **look)
        opened.evaluate("address => { location.hash = address; }", address)
        opened.wait_for_timeout(50)
        return opened

    return call


def address(opened) -> dict[str, str]:
    return dict(part.split("=") for part in opened.evaluate("location.hash.slice(1)").split("&"))


def counted(opened) -> tuple[int, int]:
    """Tokens and passes, as the page says them."""
    return tuple(map(int, re.match(r"(\d+) tokens in (\d+) pass", opened.locator("#result").inner_text()).groups()))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_is_quiet_and_can_be_read(lab, width, scheme):
    """No scrolling sideways, no message, no request, and contrast in both themes, with all tables open."""
    opened = lab("text=2&k=6&draft=feature&lane=2&of=4", {"width": width, "height": 900}, color_scheme=scheme)
    opened.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate(CONTRAST) == []
    assert opened.problems == []
    assert opened.requests == [opened.url.partition("#")[0]]
    background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.search(r"\d+", background)[0]) > 128) == (scheme == "light")


def test_the_keyboard_alone_turns_every_dial(lab):
    """Every control is reached by Tab, is seen to have the focus, and changes the address."""
    opened = lab("text=0&k=6&draft=feature")
    reached = {}
    for _ in range(60):
        opened.keyboard.press("Tab")
        name = opened.evaluate("document.activeElement.id || document.activeElement.className")
        if name in reached:
            continue
        reached[name] = opened.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    controls = {"k", "draft", "text", "target", "preset", "bandwidth", "arithmetic", "users", "round", "back", "play"}
    controls |= {"cost-draft", "cost-pass", "cost-rest", "place", "place-forward", "lane", "lane-text", "lane-round"}
    assert controls <= set(reached)
    assert {reached[name] for name in controls} == {"3px"}
    for name, key, changed in (
        ("k", "ArrowRight", {"k": "7"}),
        ("draft", "ArrowDown", {"draft": "block"}),
        ("text", "ArrowDown", {"text": "1"}),
        ("round", "Home", {"round": "0"}),
        ("cost-draft", "ArrowRight", {"drafting": "1.05"}),
        ("bandwidth", "ArrowRight", {"bandwidth": "0.25"}),
        ("users", "ArrowRight", {"users": "1"}),
        ("place", "ArrowRight", {"place": "1"}),
        ("lane", "ArrowDown", {"lane": "1"}),
        ("lane-round", "Home", {"of": "0"}),
    ):
        opened.focus(f"#{name}")
        opened.keyboard.press(key)
        assert changed.items() <= address(opened).items()
    before = counted(opened)
    opened.focus("#k")
    opened.keyboard.press("Home")
    assert counted(opened) == (96, 95) != before
    assert opened.problems == []


def test_a_round_step_by_step(lab):
    """Forward and back; the line, the chips and the text agree."""
    opened = lab("text=0&k=4&draft=model&round=0")
    assert opened.locator("#words .t:not(.later)").count() == 1
    n_rounds = counted(opened)[1]
    for number in range(1, n_rounds + 1):
        opened.click("#forward")
        line = opened.locator("#line").inner_text()
        drafted, kept, tokens = map(int, re.search(r"drafted (\d+), kept (\d+). (\d+) tokens", line).groups())
        assert line.startswith(f"Round {number} of {n_rounds}:")
        assert opened.locator("#words .t:not(.later)").count() == tokens
        chips = opened.locator("#chips .chip").count()
        assert chips == drafted + 1
        assert opened.locator("#chips .accepted").count() == kept
        assert opened.locator("#words .now.t").count() == kept + 1
    assert tokens == 96
    assert opened.locator("#forward").is_disabled()
    opened.click("#back")
    assert address(opened)["round"] == str(n_rounds - 1)


def test_every_state_has_an_address_and_any_address_a_state(lab):
    opened = lab("target=1&text=3&k=9&draft=suffix&costs=2&pass=0.5&at=costs")
    shown = opened.evaluate(
        "['target','text','draft','k','preset','cost-pass'].map((id) => document.getElementById(id).value)"
    )
    assert shown == ["1", "3", "suffix", "9", "2", "0.5"]
    assert opened.evaluate("document.activeElement.id") == "costs"
    said = opened.locator("main").inner_text()
    opened.focus("#k")
    opened.keyboard.press("ArrowRight")
    opened.keyboard.press("ArrowLeft")
    copied = opened.evaluate("location.hash")
    again = lab(copied.removeprefix("#"))
    assert again.locator("main").inner_text() == said
    strange = "k=1e9&text=-4&draft=__proto__&costs=NaN&round=x"
    for bad in (strange, "k=%E0%A4%A&lane=99&of=99&place=1e99", "at=<b>&tour=77"):
        opened = lab(bad)
        assert counted(opened)[0] == 96
        assert opened.problems == []


@pytest.fixture
def show(open_page):
    return lambda found, viewport=DESK: open_page(page.render(page.of_trace(found)), viewport)


def test_sampled_places_show_the_numbers_that_decided(show, tokenizer):
    found = scripted(tokenizer, "x", 60)
    opened = show(found)
    tested = [t for e in found.events for t in e.drafts if t.kind in ("accepted", "rejected")]
    kept = opened.evaluate("JSON.parse(document.getElementById('data').textContent).sampled[0].rounds.length")
    assert kept == len(found.events)
    said = []
    while True:
        line = opened.locator("#place-line").inner_text()
        said += [line] if "u × q" in line else []
        if opened.locator("#place-forward").is_disabled():
            break
        opened.click("#place-forward")
    assert len(said) == len(tested)
    for line, token in zip(said, tested, strict=True):
        u, q, product, p = map(
            float, re.search(r"= ([\d.e-]+) × ([\d.e-]+) = ([\d.e-]+) is .*p = ([\d.e-]+):", line).groups()
        )
        position = token.position
        assert [u, q, p] == pytest.approx([position.uniform, position.draft_prob, position.target_prob], rel=5e-3)
        assert product == pytest.approx(position.uniform * position.draft_prob, rel=5e-3)
        assert (" kept" in line) == (token.kind == "accepted")
        assert "against the rule" not in line
    assert opened.problems == []


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_markup_does_nothing(show, tokenizer, temperature):
    found = with_texts(scripted(tokenizer, NASTY, 60, temperature=temperature), NASTY)
    opened = show(found, PHONE)
    assert opened.problems == []
    assert len(opened.requests) == 1
    assert "broken" not in opened.title()
    assert opened.locator("script").count() == 2
    assert opened.locator("img").count() == 0
    assert NASTY.replace(" ", "·") in opened.locator("#lane-chips").inner_text()
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_marks_differ_in_shape_not_only_in_colour(lab):
    """Line style, line width, box: no two kinds share them, so grey print tells them apart."""
    opened = lab()
    look = """kind => { const style = getComputedStyle(document.querySelector(`#marks .${kind}`));
      return [style.borderBottomStyle, style.borderBottomWidth, style.outlineStyle,
        style.textDecorationLine, style.textDecorationStyle].join() }"""
    kinds = ["first", "plain", "accepted", "corrected", "bonus", "rejected", "untested"]
    shapes = [opened.evaluate(look, kind) for kind in kinds]
    assert len(set(shapes)) == len(kinds), shapes
