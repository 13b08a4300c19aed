"""What every picture keeps to: one scale for a quantity, intervals only where there are some, labels off the marks."""

from dataclasses import replace

import pytest

from speclab.present.pictures import figures, plots
from speclab.present.pictures.figures import Panel, Series, draw, plain
from speclab.records.runs import Noise
from speclab.theory import attribution
from speclab.theory.attribution import Value
from tests.present.test_report import make_run


def measured(panels: list[Panel]):
    figure = draw(panels)
    figure.draw_without_rendering()
    return figure


@pytest.fixture(autouse=True)
def closed():
    yield
    figures.plt.close("all")


def test_values_without_an_interval_get_no_bar_and_stay_inside():
    """A marker stands beside its place, which widens no axes by itself: they must hold the value all the same."""
    values = {1: Value(1.5, 1.2, 1.9), 2: Value(2.5, None, None), 3: Value(0.4, 0.3, None)}
    figure = measured([Panel([Series("a", values), Series("b", plain([(2, 4.0)]), 1)], "k")])
    (axis,) = figure.axes
    (collection,) = axis.collections
    assert [[y for _, y in segment] for segment in collection.get_segments()] == [[1.2, 1.9]]
    low, high = axis.get_ylim()
    assert low < 0.4
    assert high > 4.0
    left, right = axis.get_xlim()
    assert left < 1
    assert right > 3


@pytest.mark.parametrize("ratio", [1.02, 1.3])
def test_a_picture_says_where_its_speeds_are_rough(ratio, tmp_path, monkeypatch):
    """Above what it says of itself."""
    monkeypatch.setattr(attribution, "FURTHEST", 1.1)
    run = make_run(lengths=(4,), temperatures=(0.0,), kinds=())
    run = replace(run, noise=[Noise(temperature=0.0, ratio=ratio, low=None, high=None)])
    figure = plots._why(run.rows)
    own = figure.get_suptitle()
    figures.save(figure, run, tmp_path, "why")
    said = "ROUGH: the baseline, timed twice in the same turns, differs from itself by a factor of up to 1.30\n"
    assert own
    assert figure.get_suptitle() == said * (ratio > 1.1) + own


@pytest.mark.parametrize("name", [r"$\frac{$", "$x$", "_under_", "a\nb", "^{", "東\u200b", "n" * 5000])
def test_any_name_can_stand_in_a_picture_and_its_legend(name):
    panel = Panel(
        [Series(name, plain([(1, 2.0), (2, 3.0)])), Series("line", plain([(1, 2.0), (2, 3.0)]), 1, "-")],
        name,
        title=name,
    )
    (axis,) = draw([panel]).axes
    legend = axis.get_legend()
    assert [text.get_text().strip() for text in legend.get_texts()] == [name.strip(), "line"]
    for text in [legend.get_title(), *legend.get_texts(), axis.xaxis.label, axis.yaxis.label]:
        assert not text.get_parse_math()
    if len(name) < 100:
        axis.figure.draw_without_rendering()
