"""The pictures of the chapters: they show the chapters' own numbers, and each stands in its chapter."""

import pytest

from speclab.system.files import ROOT
from tools import chapter_pictures as pictures


def chapter(stem: str) -> str:
    return " ".join((ROOT / "docs" / "chapters" / f"{stem}.md").read_text("utf-8").split())


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_drawn_and_its_chapter_shows_it(name, tmp_path):
    path = pictures.draw(tmp_path, name)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"(../../plots/{name}.png)" in chapter(pictures.PICTURES[name][0])
    assert (ROOT / "plots" / f"{name}.png").is_file(), "run: python -m tools.plots"


def test_a_jump_in_costs_is_paid_once():
    """One more token is worth less than to stop, and several are worth more; the chapter names these numbers."""
    found = pictures.worths()
    now, *longer = found.values()
    assert longer[0] < now < max(longer)
    said = chapter("09-stop-when-unsure")
    first_better = next(n for n, value in found.items() if value > now)
    names = {7: "Seven", 8: "eight", 11: "eleven"}
    assert first_better in names
    assert all(f"{found[n]:.2f}" in said for n in names)


def test_the_roof_begins_at_the_knee():
    knee = pictures.knee_tokens()
    assert f"= {knee:g} tokens" in chapter("13-batch-knee")
    assert pictures.attained(int(knee)) == pytest.approx(pictures.MACHINE.flops)
    assert pictures.attained(int(knee) - 1) < pictures.MACHINE.flops
    assert pictures.attained(4 * int(knee)) == pytest.approx(pictures.MACHINE.flops)
