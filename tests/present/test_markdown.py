"""Names as Markdown: nothing of a name or a text is markup on a page."""

import re

import pytest

from speclab.present import tables

ODD = "$\\frac{$ a|b\\|c `t` *s* _u_ [l](http://x) &amp; &lt; <br> \\"


def test_nothing_of_a_name_is_markup_in_markdown():
    text = tables.show(
        [tables.Lines([ODD]), tables.Table([ODD], {"x": lambda row: row, "y": lambda row: "1"})], markdown=True
    )
    line, *_, row = text.strip().splitlines()
    for escaped in (line, row):
        assert not re.search(r"(?<!\\)(\\\\)*([`\[$]|(?<!\w)[*_](?=\w))|<[a-z]|&(?!amp;|lt;)\w+;", escaped)
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 3, "two cells"


@pytest.mark.parametrize(
    ("text", "shown"),
    [("# x", r"\# x"), ("> x", r"\> x"), ("+ x", r"\+ x"), ("1. x", r"1\. x"), ("---", r"\---"), ("1.5x", "1.5x")],
)
def test_no_start_of_a_line_is_markup(text, shown):
    assert tables.show([text, tables.Lines([text])], markdown=True) == f"{shown}\n\n- {shown}\n"


def test_what_is_struck_out_is_not():
    assert tables.escaped("~~x~~ ~y") == r"\~~x\~~ ~y"
