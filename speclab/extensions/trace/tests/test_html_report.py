"""The page of a comparison: its answer, every table, its pictures, and nothing of a name or a prompt as markup."""

import html
import html.parser
import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from speclab.extensions.trace import html_report
from speclab.extensions.trace.dials import own_page
from speclab.extensions.trace.tests.trace_streams import scripted, with_texts
from speclab.models import loading
from speclab.present import first_screen, tables
from speclab.present.pictures import figures, plots
from tests.present.test_report import make_run

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
    """A run's page in Markdown, its pictures, a trace, and the page of all."""
    run, folder = make_run(), tmp_path_factory.mktemp("plots")
    run.padded = make_run(temperatures=(0.0,))
    run.padded.settings["target"] = "lab:100m"
    draws = [*plots.comparison(run, folder, "x"), *plots.comparison(run.padded, folder, "x-padded")]
    pictures = [path for draw in draws if (path := draw())]
    figures.plt.close("all")
    found = scripted(tokenizer, "def f(x):", 60, temperature=0.0)
    markdown = first_screen.page(run, "x")
    return markdown, pictures, found, html_report.page(markdown, pictures, own_page.of_trace(found), "a/target")


def test_the_answer_stands_first_and_open(made):
    """Where the run is from, then the lines and the table of the first screen; all other tables are folded away."""
    markdown, _, _, text = made
    answer, folded = text.split("<details", 1)
    lines = markdown.split("\n## ")[1].splitlines()
    items = [line.removeprefix("- ") for line in lines if line.startswith("- ")]
    assert len(items) > 5
    assert items[0].startswith("same text?")
    page = Page(answer)
    assert page.texts["h2"] == ["The answer"]
    assert [item.strip() for item in page.texts["li"]] == items
    assert page.count("tr") == sum(line.startswith("|") and bool(set(line) - set("| :-")) for line in lines)
    assert markdown.splitlines()[0] in html.unescape(answer)
    assert "Do the outputs agree?" in folded


def test_every_part_of_the_runs_page_is_on_it(made):
    markdown, _, _, text = made
    page, parts = Page(text), list(html_report.parsed(markdown))
    rows = [row for part in parts if part.grid for row in part.grid.rows]
    marks = len(re.findall(r"^\|[-:|]+\|$", markdown, flags=re.MULTILINE))
    assert len(rows) == sum(line.startswith("|") for line in markdown.splitlines()) - 2 * marks > 50
    assert sum(part.kind == "heading" for part in parts) == len(re.findall(r"^#", markdown, flags=re.MULTILINE))
    entries = [item for part in parts for item in part.items]
    assert len(entries) == len(re.findall(r"^- ", markdown, flags=re.MULTILINE))
    cells = [cell.strip() for cell in page.texts["td"]]
    assert all(cell in cells for row in rows for cell in row)
    assert not any(part.text.startswith("![") for part in parts)


def test_the_best_rows_are_marked(made):
    marked = [attrs for tag, attrs in Page(made[3]).elements if tag == "tr" and attrs.get("class") == "best"]
    assert len(marked) == made[0].count("highest |") > 0


def test_columns_of_words_are_aligned_left():
    words = [["model", "the draft", "1"], ["ngram", "lookup", "20"]]
    for n_words in (1, 2):
        markdown = tables.table(words, ["arm", "what", "k"], markdown=True, n_words=n_words)
        (part,) = html_report.parsed(markdown)
        assert part.grid == (["arm", "what", "k"], words, n_words)


def test_a_page_without_headings_or_tables_is_no_fault(made):
    text = html_report.page("Nothing was measured.\n", [], own_page.of_trace(made[2]), "x")
    assert "Nothing was measured." in text


def test_pictures_are_in_the_page_and_nothing_is_outside_of_it(made):
    _, pictures, _, text = made
    page = Page(text)
    images = [attrs for tag, attrs in page.elements if tag == "img"]
    assert len(images) == len(pictures) == 6
    for image in images:
        assert image["src"].startswith("data:image/png;base64,iVBOR")
        assert image["alt"].removesuffix(", padded pair") in html_report.CAPTIONS.values()
    assert sum(image["alt"].endswith(", padded pair") for image in images) == 3
    addresses = [value for _, attrs in page.elements for name, value in attrs.items() if name in ("src", "href")]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert page.count("script") == 2, "the trace's data and its script"
    assert "default-src 'none'" in text
    assert page.texts["h1"] == ["Speculative decoding, measured"]
    assert page.texts["h2"].count("A decoding, round by round") == 1


def test_nothing_of_a_name_or_a_prompt_becomes_markup(made, tokenizer):
    _, _, found, _ = made
    names = {"target": NASTY, "draft": NASTY}
    found = replace(with_texts(found, NASTY), prompt=NASTY, settings=found.settings | names)
    clean, bad = make_run(), make_run()
    bad = replace(
        bad,
        rows=[replace(row, method=NASTY if row.method == "model" else row.method) for row in bad.rows],
        correctness=[entry | {"arm": NASTY} for entry in bad.correctness],
        settings=bad.settings | {"target": NASTY},
    )
    text, expected = (
        html_report.page(first_screen.page(run, NASTY), [], own_page.of_trace(found), NASTY) for run in (bad, clean)
    )
    page, expected = Page(text), Page(expected)
    for tag in ("script", "table", "tr", "h1", "h2", "details", "section"):
        assert page.count(tag) == expected.count(tag)
    assert page.count("img") == 0
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert NASTY in page.texts["td"]
    assert NASTY in page.texts["title"][0]


# --- names as Markdown ---


@given(st.text("ab1\\\\`*_[]()$|&<>;#/!~+-.= é", max_size=30))
@settings(max_examples=200)
@example("# x")
@example("12. x")
@example("- x")
def test_a_page_reads_back_every_text_of_a_cell_a_line_and_a_heading(text):
    text = " ".join(text.split()) or "x"
    blocks = [
        tables.Heading(text),
        text,
        tables.Lines([text]),
        tables.Table([text], {"a|b": lambda row: row, "n": lambda row: "1"}),
    ]
    heading, paragraph, items, table = html_report.parsed(tables.show(blocks, markdown=True))
    assert (heading.text, paragraph.text, items.items) == (text, text, [text])
    assert table.grid.rows == [[text, "1"]]
