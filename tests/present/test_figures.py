"""What every picture keeps to: one scale for a quantity, intervals only where there are some, labels off the marks."""

from dataclasses import replace

import pytest
from PIL import Image

from speclab.present import pictures, report, screen
from speclab.present.pictures import Panel, Series, draw, plain
from speclab.records.rows import BASELINE, Arm, Decoded, Noise, RoundCounts, lookup_shares
from speclab.theory import attribution
from tests.present.made import bare, make_row, make_run, three_regimes


@pytest.fixture(autouse=True)
def closed():
    yield
    pictures.plt.close("all")


def test_values_without_an_interval_get_no_bar_and_stay_inside():
    """A marker stands beside its place, which widens no axes by itself: they must hold the value all the same."""
    values = {1: (1.5, 1.2, 1.9), 2: (2.5, None, None), 3: (0.4, 0.3, None)}
    figure = draw([Panel([Series("a", values), Series("b", plain([(2, 4.0)]), 1)], "k")])
    figure.draw_without_rendering()
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
    figure = pictures._why(run.rows)
    own = figure.get_suptitle()
    pictures.save(figure, run, tmp_path, "why")
    said = "ROUGH: the baseline, timed twice in the same turns, may differ from itself by a factor of up to 1.30\n"
    assert own
    assert figure.get_suptitle() == said * (ratio > 1.1) + own


@pytest.mark.parametrize("name", [r"$\frac{$", "$x$", "a\nb", "^{", "東\u200b", "_x", "n" * 5000])
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


def test_the_waterfall_ends_where_the_measurement_begins():
    """The bars as they are drawn: each begins where the last one ended, the last factor ends at the measured value."""
    row = make_row()
    (axis,) = pictures._why([make_row(k=2), row, make_row("hybrid", ladder=None)]).axes
    spans = [sorted((b.get_x(), b.get_x() + b.get_width())) for b in axis.patches if b.get_fill()]
    texts = [t.get_text() for t in axis.texts]
    assert len(spans) == len(texts) == len(attribution.EFFECTS) + 3
    assert spans[0] == pytest.approx([1, row.book_formula])
    end = row.book_formula
    for (low, high), factor in zip(spans[1:-2], attribution.factors(row).values(), strict=True):
        assert (low, high) == pytest.approx(sorted((end, end * factor)))
        end *= factor
    assert spans[-2] == pytest.approx(sorted((1, row.speedup)))
    assert spans[-1] == pytest.approx(sorted((1, row.speedup_with_prefill)))
    assert texts[0] == "2.11x"
    assert texts[1:3] == ["×1.32", "×0.65"]


def test_measured_values_are_markers_and_predictions_are_lines():
    """As they are drawn: a marker, an interval and a number for every measured value, those of a row on auto at a place
    of its own; a line for each prediction of the others."""
    rows = [make_row(k=k) for k in (2, 4)]
    rows.append(make_row("model auto", 8, book_formula=None))
    (axis,) = pictures.draw(pictures.speedup_panels([replace(make_run(), rows=rows)])).axes
    (measured,) = [line for line in axis.lines if line.get_label() == "model"]
    assert (measured.get_marker(), measured.get_linestyle()) == ("o", "None")
    assert list(measured.get_xdata()) == [2, 4, 6]
    assert list(measured.get_ydata()) == [row.speedup for row in rows]
    for name in ("forecast", "book_formula"):
        assert [getattr(row, name) for row in rows[:2]] in [list(line.get_ydata()) for line in axis.lines]
    (intervals,) = axis.collections
    ends = [[y for _, y in segment] for segment in intervals.get_segments()]
    assert ends == [[row.speedup_low, row.speedup_high] for row in rows]
    assert [text.get_text() for text in axis.texts] == [f"{row.speedup:.2f}" for row in rows]
    low, high = axis.get_ylim()
    assert low < min(row.speedup_low for row in rows)
    assert high > max(row.speedup_high for row in rows), "every interval lies inside the axes"


def test_a_batch_is_drawn_against_its_texts_at_a_time():
    """All drafts and lengths in one panel, each with the forecasts of its own; one short name may stand for two."""
    arms = {("Qwen/Qwen2.5-0.5B-Instruct", 2): ", k = 2", ("Qwen/Qwen2.5-1.5B-Instruct", 2): ", k = 2"}
    arms["model auto", 8] = "model, auto"
    rows = [make_row(*arm, n_texts=n, forecast=n + 1) for n in (4, 1) for arm in arms]
    (panel,) = pictures.speedup_panels([replace(make_run(), rows=rows)])
    measured = [one for one in panel.series if not one.style]
    assert all(one.label.endswith(end) for one, end in zip(measured, arms.values(), strict=True))
    assert [[*one.values] for one in measured] == [[1, 4]] * len(arms)
    forecasts = [one for one in panel.series if one.label == "forecast"]
    assert [(one.look, one.values[4][0]) for one in forecasts] == [(0, 5), (1, 5), (2, 5)]


def test_pictures_are_written_and_left_out_where_there_is_nothing_to_show(tmp_path):
    run = make_run(temperatures=(0.0,), lengths=(2, 4))
    written = [write() for write in pictures.comparison(run, tmp_path, "x")]
    assert [path.name for path in written] == ["x-speedup.png", "x-why.png"]
    for path in written:
        with Image.open(path) as picture:
            assert picture.width > 4 * pictures.DPI
            assert len(picture.convert("L").getcolors(256)) > 20
    uncalibrated = replace(run, rows=[bare(row) for row in run.rows])
    left = [path.name for write in pictures.comparison(uncalibrated, tmp_path, "y") if (path := write())]
    assert left == ["y-speedup.png"]
    assert not any(write() for write in pictures.comparison(make_run(methods=()), tmp_path, "z"))
    assert pictures.comparison(three_regimes(), tmp_path, "w")[-1]().name == "w-limits.png"
    assert not pictures.plt.get_fignums(), "a figure was left open"


def test_each_part_of_a_run_has_a_panel_and_a_share_of_lookups():
    """Half of the rounds on code and none on prose: in the table, and all together as a bar of the right run."""
    line = Decoded.begin(Arm("hybrid", "hybrid", 4), 0.0, 0, "copy", 9)  # an end token came at once: no round
    code = replace(line, prompt_kind="code", rounds=[[RoundCounts(4, 2, True), RoundCounts(4, 1)]] * 2)
    prose = replace(line, prompt_kind="prose", rounds=[[RoundCounts(4, 1)] * 4])
    run = replace(three_regimes(), raw=[code, prose])
    assert lookup_shares([line, *run.raw]) == {("hybrid", 4, 0.0): {"all": 0.25, "code": 0.5, "prose": 0.0}}
    assert lookup_shares([prose, Decoded.begin(BASELINE, 0.0, 0, "code", 9)]) == {}
    titles = [panel.title for panel in pictures.speedup_panels(run.parts)]
    greedy = [f"{name}, T = 0 (greedy)" for name in ("lab pair, eager", "lab pair", "lab:200m")]
    assert titles == [*greedy, "lab pair, T = 0.8 (sampling)"]
    _, shares = pictures._limits(run.parts).axes
    assert [(bar.get_height(), bar.get_hatch()) for bar in shares.patches] == [(0.25, "//")]
    assert "| hybrid | 4 | 0 | 25% |  50% |    0% |" in report.page(run, "x")


def test_the_limits_are_tokens_a_second_of_whole_passes():
    """Of each run: m tokens of a pass over m tokens, in v(m) decode steps; and m times what reading allows."""
    run = replace(make_run(temperatures=(0.0,), lengths=(2, 4)), bandwidth=2e10, weight_bytes=10**8)
    (axis,) = pictures._limits([run]).axes
    [measured] = [line for line in axis.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 1]
    [allowed] = [line for line in axis.lines if line.get_linestyle() == ":"]
    baseline = next(row for row in run.rows if row.method == "baseline")
    widths = {row.draft_length + 1: row.verify_cost for row in screen.full_rows(run)} | {1: 1.0}
    speeds = [m / widths[m] * baseline.n_emitted / baseline.seconds for m in sorted(widths)]
    assert len(speeds) == 3
    assert [*measured.get_ydata()] == pytest.approx(speeds)
    assert [*allowed.get_ydata()] == pytest.approx([200 * m for m in sorted(widths)])
