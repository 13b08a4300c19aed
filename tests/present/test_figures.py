"""What every picture keeps to: one scale for a quantity, intervals only where there are some, labels off the marks."""

from dataclasses import replace

import pytest

from speclab.present.pictures import figures, plots
from speclab.present.pictures.figures import Panel, Series, draw, plain
from speclab.records.runs import Noise
from speclab.theory import noise
from speclab.theory.attribution import Value
from tests.present.test_report import make_row, make_run


def measured(panels: list[Panel]):
    figure = draw(panels)
    figure.draw_without_rendering()
    return figure


@pytest.fixture(autouse=True)
def closed():
    yield
    figures.plt.close("all")


def test_panels_of_one_quantity_share_their_scale():
    low, high = ({1: Value(one, one - 0.1, one + 0.1)} for one in (1.2, 3.0))
    panels = [Panel([Series("a", values)], "k", label) for values, label in ((low, "x"), (high, "x"), (low, "y"))]
    figure = measured(panels)
    ends = [axis.get_ylim() for axis in figure.axes]
    assert ends[0] == ends[1] != ends[2]
    assert ends[0][0] < 1.1
    assert ends[0][1] > 3.1


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


@pytest.mark.parametrize("n_drafts", [2, 5])
def test_numbers_stand_off_each_other_the_markers_and_the_axis(n_drafts):
    """Drafts with nearly the same values at every place, and lines through them; those of five stand upright."""
    series = []
    for i in range(n_drafts):
        values = {k: Value(1.5 + 0.01 * i + 0.02 * k, 1.2, 2.2) for k in (2, 4, 6, 8)}
        series += [Series(f"draft {i}", values, i), Series(f"line {i}", values, i, "-")]
    figure = measured([Panel(series, "k", spread=20)])
    (axis,) = figure.axes
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == 4 * n_drafts
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])
        assert axis.get_window_extent().containsx(box.x0)
        assert axis.get_window_extent().containsx(box.x1)
    for collection in axis.collections:
        for segment in collection.get_segments():
            (x, low), (_, high) = collection.get_transform().transform(segment)
            assert not any(box.x0 < x < box.x1 and box.y0 < high and low < box.y1 for box in boxes)
    for line in axis.lines:
        if line.get_marker() not in ("None", ""):
            for x, y in line.get_transform().transform(line.get_xydata()):
                assert not any(box.contains(x, y) for box in boxes)


def test_a_draft_on_auto_has_the_drafts_look_at_a_place_of_its_own():
    """No line leads there: what is forecast is a dash beside its marker. Markers stand close to their places."""
    names = ("model", "feature", "hybrid")
    rows = [make_row(name, k) for name in names for k in (2, 4)]
    rows += [replace(make_row(f"{name} auto", 8), book_formula=None) for name in names]
    (panel,) = plots.speedup_panels(rows)
    assert panel.ticks == {2: "2", 4: "4", 6: "auto"}
    figure = measured([panel])
    (axis,) = figure.axes
    legend = [text.get_text() for text in axis.get_legend().get_texts()]
    assert legend == [*names, "forecast", figures.BOOK]
    lines = [line for line in axis.lines if line.get_color() in figures.COLOURS[:3] and line.get_linestyle() != "None"]
    assert [max(line.get_xdata()) for line in lines if line.get_marker() == "None"] == [4] * 6
    dashes = [line for line in axis.lines if line.get_marker() == "_"]
    assert [list(line.get_xdata()) for line in dashes] == [[6]] * 3
    for line in axis.lines:
        if line.get_marker() in figures.MARKERS:
            drawn = line.get_transform().transform(line.get_xydata())[:, 0]
            places = axis.transData.transform(line.get_xydata())[:, 0]
            assert abs(drawn - places).max() <= (panel.spread + 1) * figure.dpi / 72, "of three, the outer two"


def test_predictors_that_agree_are_all_seen():
    """Markers at one place: the upper ones are smaller, the lower ones hollow."""
    rows = [make_row(k=k, kind="code") for k in (2, 4)]
    (axis,) = plots._predicted(rows).axes
    markers = [line for line in axis.lines if line.get_marker() not in ("None", "")]
    upper = sorted(markers, key=lambda line: -line.get_zorder())
    sizes = [line.get_markersize() for line in upper]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes) > 1
    assert all(line.get_markerfacecolor() == "none" for line in upper[1:])


@pytest.mark.filterwarnings("error:constrained_layout")
def test_three_drafts_with_long_names_leave_room_for_the_axes():
    names = ("model", "suffix", "hybrid:suffix+model")
    rows = [make_row(name, 4, temperature=temperature) for name in names for temperature in (0.0, 0.8)]
    figure = plots._speedups(rows)
    figure.draw_without_rendering()
    for axis in figure.axes:
        legend = axis.get_legend().get_window_extent()
        assert axis.get_window_extent().width > 0.7 * figure.bbox.width / len(figure.axes)
        assert legend.x1 < axis.get_window_extent().x1


@pytest.mark.parametrize("ratio", [1.02, 1.3])
def test_a_picture_says_where_its_numbers_are_not_to_be_believed(ratio, tmp_path, monkeypatch):
    """Above what it says of itself."""
    monkeypatch.setattr(noise, "FURTHEST", 1.1)
    run = make_run(lengths=(4,), temperatures=(0.0,), kinds=())
    run = replace(run, noise=[Noise(temperature=0.0, ratio=ratio, low=None, high=None)])
    figure = plots._why(run.rows)
    own = figure.get_suptitle()
    figures.save(figure, run, tmp_path, "why")
    said = "NOT TO BE BELIEVED: the second run of the baseline was 1.30x as fast as its first run\n"
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
