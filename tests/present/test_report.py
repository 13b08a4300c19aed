"""Tables, lines and pictures of a comparison: on records made by hand, nothing is decoded here."""

from dataclasses import replace

import pytest

from speclab.present import explanations, report, run_lines, tables
from speclab.present.pictures import figures, plots
from speclab.records.log import Line
from speclab.records.rows import Row, Rung
from speclab.records.runs import SCHEMA_VERSION, ComparisonRun, Machine, Noise, Versions
from speclab.theory import ladder
from speclab.theory.formulas import book_formula, expected_tokens_per_round, leviathan_speedup

# What each rung multiplies by in the made-up rows, if a test does not say otherwise; the last is what nobody explains.
USUAL = (0.65, 0.83, 0.96, 0.94, 0.98, 0.99, 1.02, 0.97)


def make_row(
    method: str = "model",
    k: int = 4,
    temperature: float = 0.0,
    kind: str = "all",
    alpha: float = 0.7,
    effects: tuple[float, ...] | None = None,
    **other,
) -> Row:
    """A row of the record with a consistent ladder: the formula, the bonus, then `effects` (8 of them)."""
    rungs = [book_formula(alpha, k), expected_tokens_per_round(alpha, k)]
    for effect in effects or USUAL:
        rungs.append(rungs[-1] * effect)
    measured, n_rounds = rungs[-1], 400
    n_drafted = n_rounds * k
    n_accepted = round(n_rounds * (expected_tokens_per_round(alpha, k) - 1))
    values = {
        "method": method, "target": "models/lab-pair/target", "draft": method, "device": "cpu", "dtype": "float32",
        "draft_length": k, "temperature": temperature, "prompt_kind": kind, "n_prompts": 12 if kind == "all" else 4,
        "n_tokens": n_rounds + n_accepted, "seconds": 9.0, "prefill_seconds": 0.6, "tokens_per_second": 99.5 * measured,
        "speedup": measured, "speedup_low": measured * 0.9, "speedup_high": measured * 1.12,
        "speedup_with_prefill": measured * 0.97, "n_rounds": n_rounds, "n_drafted": n_drafted,
        "n_accepted": n_accepted, "n_rejected": n_rounds // 2, "n_emitted": n_rounds + n_accepted,
        "accepted_lengths": [n_rounds // (k + 1)] * (k + 1), "acceptance_rate": alpha,
        "drafted_fraction": n_accepted / n_drafted, "tokens_per_round": 1 + n_accepted / n_rounds,
        "draft_cost": 0.13, "verify_cost": 1.2, "overhead": 0.05,
        "book_formula": book_formula(alpha, k),
        "book_formula_drafted_fraction": book_formula(n_accepted / n_drafted, k),
        "same_as_baseline": True if temperature == 0 else None,
        "leviathan": leviathan_speedup(alpha, k, 0.13), "cost_model": rungs[4], "accounting": rungs[-2],
        "forecast": rungs[-3], "forecast_tokens_per_round": 2.1,
        "ladder": [Rung(name=n, speedup=x) for n, x in zip(ladder.RUNGS, [*rungs, measured * 0.97], strict=True)],
        "verdict": "faster" if measured > 1.1 else "slower" if measured < 0.9 else "unclear",
    }  # fmt: skip
    return Row(**values | other)


def bare(row: Row) -> Row:
    """The same row in a run whose costs were never calibrated."""
    unknown = ("accounting", "forecast", "forecast_tokens_per_round", "leviathan", "cost_model", "ladder", "draft_cost")
    return replace(row, **dict.fromkeys((*unknown, "verify_cost", "overhead", "verdict")))


def plain_row(method: str = "baseline", temperature: float = 0.0, kind: str = "all", speedup: float = 1.0) -> Row:
    """The baseline, or the library's generate()."""
    nothing = ("acceptance_rate", "drafted_fraction", "tokens_per_round", "accepted_lengths", "book_formula")
    counts = {"n_drafted": 0, "n_accepted": 0, "n_rejected": 0, "draft": None, "draft_length": 0}
    speed = {"speedup": speedup, "speedup_low": 1.0, "speedup_high": 1.0, "speedup_with_prefill": 1.0}
    unknown = dict.fromkeys((*nothing, "book_formula_drafted_fraction"))
    return replace(bare(make_row(method, 1, temperature, kind)), **unknown, **counts, **speed, tokens_per_second=99.5)


def make_costs(drafter: str, temperature: float, widths: tuple[int, ...] = (1, 3, 5, 7, 9)) -> dict:
    costs = {
        "step_at": 9.0e-3 + 5e-4 * temperature, "step_slope": 4e-6,
        "verify_at": [[w, 8.5e-3 + 4e-4 * w] for w in widths], "verify_slope": 4e-6, "draft_idle": 2e-5,
        "draft_at": [[n, 2e-4 + 9e-4 * n] for n in widths], "draft_catch": 2e-4, "draft_slope": 1e-7,
        "accept_at": 2.1e-4,
        "accept_each": 1.2e-5, "rollback": 4.4e-5, "host": 3.5e-5,
    }  # fmt: skip
    return {"drafter": drafter, "temperature": temperature, "costs": costs}


KINDS = {"code": 1.05, "prose": 0.75, "copy": 1.2}


def make_run(
    methods=("model", "ngram"), lengths=(2, 4, 6, 8), temperatures=(0.0, 0.8), kinds=tuple(KINDS)
) -> ComparisonRun:
    """A comparison as compare.py records it: some rows win, some lose, one is interrupted by nothing."""
    rows, correctness = [], []
    for t in temperatures:
        for kind in ("all", *kinds):
            rows.append(plain_row(temperature=t, kind=kind))
            for i, method in enumerate(methods):
                for k in lengths:
                    alpha = min(0.95, (0.7 - 0.1 * i - 0.1 * t) * KINDS.get(kind, 1.0))
                    effects = (max(0.3, 0.95 - 0.06 * k), 0.85 - 0.01 * k, *USUAL[2:]) if i == 0 else (
                        (0.995, 0.8, 0.97, 0.62, 0.97, 0.99, 0.95, 1.03)
                    )  # fmt: skip
                    rows.append(make_row(method, k, t, kind, alpha, effects))
            if t == 0:
                rows.append(plain_row("generate", t, kind, 0.93))
        for method in methods:
            entry = {"arm": f"{method} k={lengths[0]}", "temperature": t, "passed": True}
            greedy = {"n_prompts": 12, "differences": []}
            sampled = {"n_tokens": 768, "z_residual": 1.2, "z_surprise": -0.4, "bound": 4.9}
            correctness.append(entry | (greedy if t == 0 else sampled))
    return ComparisonRun(
        schema_version=SCHEMA_VERSION,
        created="2026-11-21T13:00Z",
        interrupted=False,
        machine=Machine(cpu="AMD EPYC", cores=2, threads=2, memory_gib=24, gpu=None, system="Linux"),
        versions=Versions(
            python="3.11.7",
            torch="2.13.0+cpu",
            transformers="5.23.0",
            commit="a8a881a6ae17e97bcb7e69d0",
            uncommitted_changes=False,
        ),
        settings={
            "target": "models/lab-pair/target", "device": "cpu", "dtype": "float32", "engine": "fast", "n_prompts": 12,
            "draft_lengths": list(lengths), "temperatures": list(temperatures), "max_new_tokens": 64, "repeats": 1,
            "seed": 0,
        },
        models={"target": "llama, 12 layers", "model": "llama, 1 layer"},
        prompts={"n": 12, "kinds": list(kinds), "n_cut": 2},
        correctness=correctness,
        noise=[Noise(temperature=t, ratio=1.01, low=0.99, high=1.03) for t in temperatures],
        costs=[make_costs(m, t) for t in temperatures for m in methods],
        phases={"seconds": 21.5, "share": 0.9931},
        headline=None,
        rows=rows,
        raw=[make_timing(t, i) for t in temperatures for i in range(3)],
    )  # fmt: skip


def make_timing(temperature: float, i: int) -> Line:
    """The baseline on the i-th prompt."""
    return Line(
        method="baseline", draft=None, draft_length=0, temperature=temperature, prompt_index=i, prompt_kind="code",
        n_prompt=90 + 10 * i, prefill_seconds=[0.05], decode_seconds=[0.6],
        n_rounds=63, n_drafted=0, n_accepted=0, n_rejected=0, n_emitted=63,
    )  # fmt: skip


def cells(text: str) -> list[list[list[str]]]:
    """Markdown tables -> tables -> lines -> cells."""
    tables, here = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            here.append([cell.strip() for cell in line.strip("|").split("|")])
        elif here:
            tables.append(here)
            here = []
    return tables


# --- the ladder as numbers --------------------------------------------------------------------------------------------


def test_factors_belong_to_their_rungs():
    found = ladder.factors(make_row(effects=(0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3)))
    assert found["draft cost"] == pytest.approx(0.5)
    assert found["verification"] == pytest.approx(0.6)
    assert found["overhead"] == pytest.approx(0.7)
    assert found["real acceptance"] == pytest.approx(0.8)
    assert found["last round"] == pytest.approx(0.9)
    assert found["longer context"] == pytest.approx(1.1)
    assert found["sampling noise"] == pytest.approx(1.2)
    assert found["everything else"] == pytest.approx(1.3)
    bonus = expected_tokens_per_round(0.7, 4) / book_formula(0.7, 4)
    assert found["bonus and partial drafts"] == pytest.approx(bonus)


# --- the errors as numbers --------------------------------------------------------------------------------------------


def test_errors_have_the_right_median_and_maximum():
    """Measured 2 everywhere; the signs must not cancel."""
    forecasts = (2.2, 1.8, 2.6, None)  # +10 %, -10 %, +30 %
    rows = [replace(bare(make_row(speedup=2.0)), forecast=f, book_formula=1.0) for f in forecasts]
    found = ladder.prediction_errors(rows)
    assert found["forecast"] == {"n": 3, "median": pytest.approx(0.1), "max": pytest.approx(0.3)}
    assert found["book_formula"] == {"n": 4, "median": pytest.approx(0.5), "max": pytest.approx(0.5)}
    assert "accounting" not in found
    (table,) = cells(tables.show([explanations.errors_table(rows)], markdown=True))
    assert ["forecast", "3", "10.0%", "30.0%"] in table


def test_each_prompt_counts_once_in_the_errors():
    rows = [*make_run(temperatures=(0.0,)).rows, make_row(kind="not looping")]
    assert {r.prompt_kind for r in ladder.prediction_rows(rows)} == set(KINDS)
    assert len(ladder.prediction_rows(rows)) == 24
    whole = [r for r in rows if r.prompt_kind in ("all", "not looping")]
    assert {r.prompt_kind for r in ladder.prediction_rows(whole)} == {"all"}
    assert all(r.draft for r in ladder.prediction_rows(whole))


# --- lines ------------------------------------------------------------------------------------------------------------


def test_losing_lines_say_what_may_be_noise():
    rows = [make_row(kind="prose", speedup=0.97), make_row("ngram", kind="prose", speedup=0.8)]
    rows[0].verdict, rows[1].verdict = "unclear", "slower"
    assert report.losing_lines(rows) == ["slower on prose prompts: model k=4 0.97x (may be noise), ngram k=4 0.80x"]
    assert report.losing_lines([make_row(kind="all", speedup=0.5), make_row(kind="prose", speedup=1.2)]) == []


def test_the_library_is_compared_with_the_baseline():
    row = plain_row("generate", speedup=0.5)
    assert "2.00x its speed, the same text" in report.generate_line([row], "float32")
    other = [replace(row, same_as_baseline=False)]
    assert report.generate_line(other, "float32").endswith("NOT the same text")
    assert "rounding in bfloat16 decides" in report.generate_line(other, "bfloat16")
    assert report.generate_line([plain_row()], "float32") is None


def test_what_is_wrong_or_not_checked_is_said():
    run = make_run()
    assert run_lines.remarks(run) == []
    run.correctness[0]["passed"] = False
    unchecked, wrong, stopped = run_lines.remarks(replace(run, unchecked=["ngram k=2"], interrupted=True))
    assert unchecked.startswith("NOT CHECKED: ngram k=2;")
    assert wrong == "WRONG OUTPUT: model k=2; see correctness in the record"
    assert stopped.startswith("Stopped before the end")
    assert wrong in report.comparison(run)


def test_replays_are_said_with_what_one_takes():
    """Only of a target with recurrent layers; the cost of a draft without rejections is unknown, not 0."""
    run = make_run(lengths=(4,), temperatures=(0.0,))
    assert "replay µs" not in tables.show([explanations.costs_table(run)], markdown=True)
    for row, n in zip([row for row in run.rows if row.draft and row.prompt_kind == "all"], (30, 12), strict=True):
        row.n_replays = n
    run.costs[0]["costs"]["replay"] = 2.6e-3
    (line,) = run_lines.remarks(run)
    assert line.startswith("replays: after 42 of 800 speculative rounds, passes in which recurrent layers")
    assert line.endswith("one takes 2.60 to 2.60 ms, part of o")
    text = tables.show([explanations.costs_table(run)], markdown=True)
    assert "replay µs" in text
    assert "2600" in text
    assert line in " ".join(report.comparison(run).split())


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "digits", "error", "written"),
    [
        (318.4, 0, 0.0, "318"),
        (318.4, 0, 20.0, "318"),
        (5.0, 0, 3.5, "< 12"),  # within two standard errors of nothing
        (0.4, 0, 0.0, "< 1"),
        (0.0, 0, 0.0, "< 1"),
        (-975.0, 0, 0.0, "< 1"),  # whatever made it: no cost is negative
        (-3.0, 0, 10.0, "< 17"),
        (0.0004, 3, 0.0, "< 0.001"),
        (0.0011, 3, 0.0, "0.001"),
        (-0.05, 2, 0.0, "< 0.01"),
        (None, 2, 0.0, "-"),
    ],
)
def test_no_cost_is_negative_and_what_may_be_nothing_is_written_so(value, digits, error, written):
    assert tables.cost(value, digits, error) == written


def test_speed_table_has_a_verdict_and_an_interval():
    row = make_row(speedup=0.834, speedup_low=0.69, speedup_high=0.99, verdict="slower")
    row.speedup_with_prefill = 0.811
    (table,) = cells(tables.show([report.speed_table([plain_row(), row])], markdown=True))
    shown = dict(zip(table[0], table[3], strict=True))
    expected = {
        "speedup": "0.83x",
        "verdict": "slower",
        "95 %": "0.69 to 0.99",
    }
    expected |= {"end to end": "0.81x", "α": f"{row.acceptance_rate:.2f}", "f": f"{row.drafted_fraction:.2f}"}
    assert expected.items() <= shown.items()
    unknown = dict.fromkeys(("speedup_low", "speedup_high", "verdict"))
    (table,) = cells(tables.show([report.speed_table([replace(row, **unknown)])], markdown=True))
    assert [dict(zip(table[0], table[2], strict=True))[head] for head in ("verdict", "95 %")] == ["-"] * 2


def test_prediction_table_puts_errors_beside_values():
    row = make_row(speedup=2.0, forecast=2.1, accounting=1.9, book_formula=3.0, leviathan=2.5)
    row.book_formula_drafted_fraction = 1.0
    (table,) = cells(tables.show([explanations.prediction_table([plain_row(), row])], markdown=True))
    assert len(table) == 3, "the baseline is not predicted"
    assert table[0] == ["draft", "k", "measured", *ladder.PREDICTORS.values()]
    expected = ["1.90   -5%", "2.10   +5%", "2.50  +25%", "3.00  +50%", "1.00  -50%"]
    assert table[2] == ["model", "4", "2.00x", *expected]


def test_ladder_table_shows_every_factor():
    row = make_row(effects=(0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3))
    line = tables.show([explanations.ladder_table([row])]).splitlines()[2].split()
    expected = ["model", "4", "2.11x", "1.32", "0.50", "0.60", "0.70", "0.80", "0.90", "1.10", "1.20", "1.30"]
    assert line[:-1] == expected
    assert line[-1] == f"{row.speedup:.2f}x"


def test_costs_table():
    run = make_run(methods=("model",), lengths=(4,), temperatures=(0.0,))
    run.raw.append(replace(run.raw[0], method="model", prefill_seconds=[0.06, 0.07]))
    ((_, _, line),) = cells(tables.show([explanations.costs_table(run)], markdown=True))
    context = 100 + 32  # prompts of 90, 100, 110 tokens, half of 64 new ones
    step = 9.0e-3 + 4e-6 * context
    verify = (8.5e-3 + 4e-4 * 5 + 4e-6 * context) / step
    drafted = (1.1e-3 + 3 * 9e-4 + 4 * 1e-7 * context) / 4 / step
    assert line[:6] == ["model", "4", "0", f"{step * 1e3:.2f}", f"{verify:.2f}", f"{drafted:.3f}"]
    assert line[6:] == ["258", "44", "35", "65.0"]
    assert f"at {context} tokens of context" in explanations.costs_lines(run)[0]
    assert not explanations.costs_table(replace(run, costs=[])).rows
    assert not explanations.costs_lines(replace(run, costs=[]))


# --- everything -------------------------------------------------------------------------------------------------------


def interrupted_run() -> ComparisonRun:
    run = make_run()
    rows, phases = [bare(r) for r in run.rows], {"seconds": 0.0, "share": None}
    return replace(run, interrupted=True, costs=[], noise=[], phases=phases, rows=rows)


def test_missing_explanations_leave_dashes_or_nothing():
    text = report.comparison(interrupted_run(), by_kind=True)
    assert "Stopped before the end" in text
    assert "Why: from" not in text
    assert "What a round" not in text
    assert "noise floor" not in text
    line = next(x for x in text.split("What was predicted")[1].splitlines() if x.startswith("model  4"))
    assert line.split()[3:5] == ["-", "-"]
    assert "book(α)" in text
    empty = dict.fromkeys(ladder.PREDICTORS)
    assert not explanations.prediction_table([make_row(**empty)]).rows
    partly = tables.show([explanations.ladder_table([bare(make_row(k=2)), make_row()])]).splitlines()
    assert partly[2].split()[3:-1] == ["-"] * 9


def test_no_draft_at_all(tmp_path):
    run = make_run(methods=(), temperatures=(0.8,))
    assert "T = 0.8 (sampling)" in report.comparison(run)
    assert not any(write() for write in plots.comparison(run, tmp_path, "x"))


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_the_waterfall_ends_where_the_measurement_begins():
    """The bars as they are drawn: each begins where the last one ended, the last factor ends at the measured value."""
    row = make_row()
    figure, axis = figures.plt.subplots()
    plots._waterfall(axis, row)
    spans = [sorted((b.get_x(), b.get_x() + b.get_width())) for b in axis.patches if b.get_fill()]
    texts = [t.get_text() for t in axis.texts]
    figures.plt.close(figure)
    assert len(spans) == len(texts) == len(ladder.EFFECTS) + 3
    assert spans[0] == pytest.approx([1, row.book_formula])
    end = row.book_formula
    for (low, high), factor in zip(spans[1:-2], ladder.factors(row).values(), strict=True):
        assert (low, high) == pytest.approx(sorted((end, end * factor)))
        end *= factor
    assert spans[-2] == pytest.approx(sorted((1, row.speedup)))
    assert spans[-1] == pytest.approx(sorted((1, row.speedup_with_prefill)))
    assert texts[0] == "2.11x"
    assert texts[1:3] == ["×1.32", "×0.65"]


def test_measured_values_are_markers_and_predictions_are_lines():
    """As they are drawn: a marker, an interval and a number for every measured value; a line for each prediction."""
    rows = [make_row(k=k) for k in (2, 4)]
    figure = figures.draw(plots.speedup_panels(rows))
    (axis,) = figure.axes
    drawn = {line.get_label(): line for line in axis.lines}
    measured = drawn["model"]
    assert (measured.get_marker(), measured.get_linestyle()) == ("o", "None")
    assert list(measured.get_ydata()) == [row.speedup for row in rows]
    for label, name in (("forecast", "forecast"), (figures.BOOK, "book_formula")):
        assert (drawn[label].get_marker(), list(drawn[label].get_xdata())) == ("None", [2, 4])
        assert list(drawn[label].get_ydata()) == [getattr(row, name) for row in rows]
    (intervals,) = axis.collections
    ends = [[y for _, y in segment] for segment in intervals.get_segments()]
    assert ends == [[row.speedup_low, row.speedup_high] for row in rows]
    assert [text.get_text() for text in axis.texts] == [f"{row.speedup:.2f}" for row in rows]
    low, high = axis.get_ylim()
    assert low < min(row.speedup_low for row in rows)
    assert high > max(row.speedup_high for row in rows), "every interval lies inside the axes"
    figures.plt.close(figure)


def test_pictures_are_written_and_left_out_where_there_is_nothing_to_show(tmp_path):
    from PIL import Image

    run = make_run(temperatures=(0.0,), lengths=(2, 4))
    written = [write() for write in plots.comparison(run, tmp_path, "x")]
    kinds = ["speedup", "why", "predicted"]
    assert [p.name for p in written] == [f"x-{kind}.png" for kind in kinds]
    for path in written:
        with Image.open(path) as picture:
            assert picture.width > 4 * figures.DPI
            assert len(picture.convert("L").getcolors(256)) > 20
    short_run = interrupted_run()
    short_run.rows = [replace(r, **dict.fromkeys(ladder.PREDICTORS)) for r in short_run.rows]
    left = [path.name for write in plots.comparison(short_run, tmp_path, "y") if (path := write())]
    assert left == [f"y-{kind}.png" for kind in kinds[:1]]
    assert not figures.plt.get_fignums(), "a figure was left open"
