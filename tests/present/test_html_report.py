"""The page of a comparison: its answer, every table, its pictures, and nothing of a name or a prompt as markup."""

import html.parser
import re
from dataclasses import replace

import pytest

from speclab.models import loading
from speclab.present import figures, html_report, plots, report
from tests.present.test_report import bare, interrupted_run, make_run, plain_row
from tests.present.trace_streams import scripted, with_texts

NASTY = "<script>alert(1)</script><img src=x onerror=alert(1)> ]]> </table> & \"'"
VOID = {"meta", "link", "img", "input"}


class Page(html.parser.HTMLParser):
    """Elements with their attributes, and the text of each heading, cell and entry of a list."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self.texts = [], {"h1": [], "h2": [], "td": [], "li": [], "title": []}
        self._open = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in self.texts:
            self.texts[tag].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        for tag in self.texts.keys() & set(self._open[-2:]):
            self.texts[tag][-1] += data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def tokenizer(pair_folder):
    return loading.load_tokenizer(str(pair_folder / "target"))


@pytest.fixture(scope="module")
def made(tokenizer, tmp_path_factory):
    """A run, its pictures, a trace, and the page of all."""
    run, folder = make_run(), tmp_path_factory.mktemp("plots")
    pictures = [path for draw in plots.comparison(run, folder, "x") if (path := draw())]
    figures.plt.close("all")
    found = scripted(tokenizer, "def f(x):", 60, temperature=0.0)
    text = html_report.page(run, report.comparison(run, by_kind=True, markdown=True), pictures, found)
    return run, pictures, found, text


def test_the_answer_stands_first(made):
    run, _, _, text = made
    row = html_report.best(run)
    assert row.speedup == max(r.speedup for r in run.rows if r.draft and r.prompt_kind == "all" and r.temperature == 0)
    lines = html_report.headline(run)
    assert lines[0].endswith("token for token: identical")
    assert lines[1] == "sampled: 2 of 2 arms are consistent with the target's distribution"
    assert f"{row.method} k = {row.draft_length}, {row.speedup:.2f}x" in lines[2]
    assert f"{row.speedup_low:.2f} to {row.speedup_high:.2f}" in lines[2]
    assert f"1/(1-α+α/k): {row.book_formula:.2f}x" in lines[3]
    assert f"forecast: {row.forecast:.2f}x" in lines[3]
    assert [line.strip() for line in Page(text).texts["li"][: len(lines)]] == lines


def test_what_is_wrong_is_said_in_the_answer():
    run = make_run()
    run.correctness[0]["passed"] = False
    assert html_report.headline(run)[0].startswith("WRONG OUTPUT: model k=2")
    assert any("Stopped before the end" in line for line in html_report.headline(interrupted_run()))
    none = replace(run, rows=[plain_row()])
    assert html_report.best(none) is None
    assert not any("fastest" in line for line in html_report.headline(none))
    slow = replace(run, rows=[replace(bare(row), speedup=0.5, book_formula=None) for row in run.rows])
    assert any("0.50x slower" in line for line in html_report.headline(slow))


def test_every_cell_of_every_table_is_on_the_page(made):
    run, _, _, text = made
    cells = [cell.strip() for cell in Page(text).texts["td"]]
    for temperature in (0.0, 0.8):
        grid = html_report.speed_grid(run, temperature)
        assert len(grid.rows) == 9
        start = cells.index(grid.rows[0][0])
        assert all(cell in cells[start:] for row in grid.rows for cell in row)
    markdown = report.comparison(run, by_kind=True, markdown=True)
    parts = list(html_report.parsed(markdown))
    rows = [row for part in parts if part.grid for row in part.grid.rows]
    marks = len(re.findall(r"^\|[-:|]+\|$", markdown, flags=re.MULTILINE))
    assert len(rows) == sum(line.startswith("|") for line in markdown.splitlines()) - 2 * marks > 50
    assert sum(part.kind == "heading" for part in parts) == len(re.findall(r"^#", markdown, flags=re.MULTILINE))
    entries = [item for part in parts if part.items for item in part.items]
    assert len(entries) == len(re.findall(r"^- ", markdown, flags=re.MULTILINE))
    assert all(cell in cells for row in rows for cell in row)


def test_the_best_row_is_marked_once(made):
    marked = [attrs for tag, attrs in Page(made[3]).elements if tag == "tr" and attrs.get("class") == "best"]
    assert len(marked) == 1


def test_pictures_are_in_the_page_and_nothing_is_outside_of_it(made):
    _, pictures, _, text = made
    page = Page(text)
    images = [attrs for tag, attrs in page.elements if tag == "img"]
    assert len(images) == len(pictures) == 4
    for image in images:
        assert image["src"].startswith("data:image/png;base64,iVBOR")
        assert image["alt"] in html_report.CAPTIONS.values()
    addresses = [value for _, attrs in page.elements for name, value in attrs.items() if name in ("src", "href")]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert page.count("script") == 2, "the trace's data and its script"
    assert "default-src 'none'" in text
    assert page.texts["h1"] == ["Speculative decoding, measured"]
    assert page.texts["h2"].count("A decoding, round by round") == 1


def test_nothing_of_a_name_or_a_prompt_becomes_markup(made, tokenizer):
    run, _, found, clean = made
    names = {"target": NASTY, "draft": NASTY}
    found = replace(with_texts(found, NASTY), prompt=NASTY, settings=found.settings | names)
    rows = [replace(row, method=NASTY if row.draft else row.method) for row in run.rows]
    correctness = [entry | {"arm": NASTY} for entry in run.correctness]
    bad = replace(run, rows=rows, correctness=correctness, settings=run.settings | {"target": NASTY})
    text = html_report.page(bad, report.comparison(bad, by_kind=True, markdown=True), [], found)
    page, expected = Page(text), Page(clean)
    for tag in ("script", "table", "tr", "h1", "h2", "details", "section"):
        assert page.count(tag) == expected.count(tag)
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert NASTY in page.texts["td"]
    assert NASTY in page.texts["title"][0]
