"""The pages with dials in a real browser: they load quietly, every dial follows, and the keyboard alone is enough."""

import json
import re

import pytest

from speclab.extensions.trace import build, page
from speclab.extensions.trace.tests.browser.looks import CONTRAST, DESK, PHONE, WIDTHS
from speclab.extensions.trace.tests.test_dials_replay import rounds_of_the_loop
from speclab.extensions.trace.tests.test_trace import Tags
from speclab.extensions.trace.tests.trace_streams import scripted, with_texts

# These wait with the browser's own queries: `wait_for_function` evaluates text in the page, which its rules forbid.
expect = pytest.importorskip("playwright.sync_api").expect

NASTY = "<script>document.title = 'broken'</script><!-- <img src=x onerror=\"document.title = 'broken'\"> ]]> </pre>"


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


def test_every_text_draft_and_k_on_the_page_has_the_loops_rounds(lab, text):
    """What the page says, dial by dial, for one k of each; node tries all of them without a page."""
    opened, data = lab(), Tags(text).data
    for target, found in enumerate(data["targets"]):
        for number, one in enumerate(found["texts"]):
            known = opened.evaluate("packed => replay.unpackText(packed)", one)
            for place, draft in enumerate([*one["drafts"], "none"]):
                k = (3 + 5 * place + number) % 13
                opened.evaluate(
                    "address => { location.hash = address; }", f"target={target}&text={number}&k={k}&draft={draft}"
                )
                expect(opened.locator("#draft")).to_have_value(draft)
                opened.wait_for_timeout(20)
                assert counted(opened) == (len(one["pieces"]), len(rounds_of_the_loop(known, draft, k)))
    assert opened.problems == []


def test_the_text_reads_as_the_decoding(lab, text):
    opened, data = lab("text=1&k=4&draft=model"), Tags(text).data
    one = data["targets"][0]["texts"][1]
    said = opened.evaluate("[...document.querySelectorAll('#words > span.t')].map(part => part.textContent).join('')")
    assert said.replace("↵", "") == "".join(one["pieces"])
    assert opened.locator("#words .prompt").inner_text() == one["prompt"]


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
    controls = {
        "k",
        "draft",
        "text",
        "target",
        "preset",
        "bandwidth",
        "arithmetic",
        "cost-draft",
        "cost-pass",
        "cost-rest",
        "round",
        "back",
        "play",
    }
    controls |= {"place", "place-forward", "lane", "lane-text", "lane-round"}
    assert controls <= set(reached)
    assert {reached[name] for name in controls} == {"3px"}
    for name, key, changed in (
        ("k", "ArrowRight", {"k": "7"}),
        ("draft", "ArrowDown", {"draft": "block"}),
        ("text", "ArrowDown", {"text": "1"}),
        ("round", "Home", {"round": "0"}),
        ("cost-draft", "ArrowRight", {"drafting": "1.05"}),
        ("bandwidth", "ArrowRight", {"bandwidth": "0.25"}),
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
    for bad in (
        "k=1e9&text=-4&draft=__proto__&costs=NaN&round=x",
        "k=%E0%A4%A&lane=99&of=99&place=1e99",
        "at=<b>&tour=77",
    ):
        opened = lab(bad)
        assert counted(opened)[0] == 96
        assert opened.problems == []


def test_the_curve_marks_its_best_k_and_says_where_it_gets_slower(lab):
    opened = lab("text=1&k=12&draft=model&costs=0&drafting=3")
    opened.click("text=The curve as a table")
    cells = opened.locator("#curve-table tbody td:nth-child(5)").all_inner_texts()
    speedups = [float(cell.removesuffix("x")) for cell in cells]
    verdict = opened.locator("#verdict").inner_text()
    assert speedups[12] < 1
    assert "Here it gets slower" in verdict
    best = int(re.search(r"best: k = (\d+)", opened.locator("#curve").text_content())[1])
    assert speedups[best] == max(speedups)
    assert f"The best is k = {best}" in verdict
    assert opened.locator("#curve .dot.slow").count() == sum(one < 1 for one in speedups)
    opened.evaluate("location.hash = 'text=1&k=12&draft=model&costs=0&drafting=0&pass=0&rest=0'")
    # Only at k = 0, where a round is a pass alone: in the record it takes a little longer than a step.
    slower = float(f"{1 / build.presets()[0]['pass'][0]:.2f}") < 1
    expect(opened.locator("#curve .dot.slow")).to_have_count(int(slower))
    where = "k = 0" if slower else "no k"
    assert f"slower than plain decoding at {where}." in opened.locator("#verdict").inner_text()


def test_the_tour_shows_what_it_says(lab):
    opened, seen = lab(), set()
    for number, kinds in ((1, {"first"}), (2, set()), (3, {"accepted"}), (4, {"rejected"}), (5, {"bonus"}), (6, set())):
        opened.click(f"#tour-steps button:nth-child({number})")
        caption = opened.locator("#caption").inner_text()
        assert caption not in seen
        seen.add(caption)
        for kind in kinds:
            assert opened.locator(f"#chips .{kind}").count() == 1 or kind == "accepted"
        assert opened.locator(".toured").count() == 1
        again = lab(opened.evaluate("location.hash.slice(1)"))
        assert again.locator("#caption").inner_text() == caption


def test_playing_goes_to_the_end(lab):
    opened = lab("text=0&k=6&draft=feature&round=0")
    opened.clock.install()
    opened.click("#play")
    assert opened.locator("#line").get_attribute("aria-live") == "off"
    for _ in range(60):
        opened.clock.run_for(1500)
    assert "round" in address(opened)
    assert opened.locator("#words .later").count() == 0
    assert opened.locator("#play").get_attribute("aria-pressed") == "false"


def test_motion_that_is_not_wanted_is_not_there(lab):
    for motion, behaviour in (("reduce", "auto"), ("no-preference", "smooth")):
        opened = lab(reduced_motion=motion)
        assert opened.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == behaviour
        seconds = (
            "[...document.querySelectorAll('*')].map((one) => parseFloat(getComputedStyle(one).transitionDuration))"
        )
        assert not any(opened.evaluate(seconds))


# --- a page of one decoding ---


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


def test_many_rounds_stay_within_a_phone(show, tokenizer):
    long = tokenizer("x" * 40).input_ids
    opened = show(scripted(tokenizer, "y" * 500, 300, [*long, *range(1, 40)], draft_length=16), PHONE)
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert json.loads(opened.locator("#data").inner_text() or opened.locator("#data").text_content())["own"]


def test_marks_differ_in_shape_not_only_in_colour(lab):
    """Line style, line width, box: no two kinds share them, so grey print tells them apart."""
    opened = lab()
    look = """kind => { const style = getComputedStyle(document.querySelector(`#marks .${kind}`));
      return [style.borderBottomStyle, style.borderBottomWidth, style.outlineStyle,
        style.textDecorationLine, style.textDecorationStyle].join() }"""
    kinds = ["first", "plain", "accepted", "corrected", "bonus", "rejected", "untested"]
    shapes = [opened.evaluate(look, kind) for kind in kinds]
    assert len(set(shapes)) == len(kinds), shapes
