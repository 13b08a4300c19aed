"""The first screen of a comparison and its page: as they were approved, and the arithmetic in them."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.present import report, screen, tables
from speclab.records import files
from speclab.records.files import ComparisonRun
from speclab.theory import attribution
from speclab.theory.attribution import EFFECTS, factors
from speclab.theory.formulas import book_formula, expected_tokens_per_round
from tests.approved import is_approved
from tests.present.made import COMPARISONS, USUAL, bare, make_row, make_run, plain_row, three_regimes

APPROVED = Path(__file__).parent / "approved"


def troubled() -> ComparisonRun:
    """Everything that can be wrong with a run, at both temperatures."""
    run = three_regimes()
    difference = {"prompt": 3, "position": 7, "tokens": ["a", "b"], "gap": 1.5, "verdict": "BUG: logits differ"}
    run.padded.correctness[0] |= {"differences": [difference], "passed": False}
    next(entry for entry in run.correctness if entry["temperature"] > 0)["passed"] = False
    run.noise = [replace(floor, ratio=1.01, low=0.906, high=1.05) for floor in run.noise]
    run.machine |= {"probe": {"free": False, "load": 7.5}}
    run.settings |= {"functions": "from here/: 7 (a drafter)", "rule": "block"}
    return replace(run, interrupted=True)


def lossy() -> ComparisonRun:
    run = make_run(lengths=(4,), temperatures=(0.8,))
    run.settings["rule"] = "lenient:0.5"
    run.rows = [replace(row, lossy_rule="lenient:0.5", total_variation=0.123) if row.draft else row for row in run.rows]
    run.correctness = [entry | {"lossy_rule": "lenient:0.5", "total_variation": 0.1} for entry in run.correctness]
    return run


def without_costs() -> ComparisonRun:
    run = make_run(lengths=(2, 4), temperatures=(0.0,))
    run.settings["max_new_tokens"] = 2
    return replace(run, interrupted=True, noise=[], rows=[bare(row) for row in run.rows])


def few_prompts() -> ComparisonRun:
    """There is no interval; the number of prompts is said instead."""
    run = make_run(temperatures=(0.0,), lengths=(4,), kinds=("code",))
    few = {"n_prompts": 1, "speedup_low": None, "speedup_high": None, "verdict": "unclear"}
    return replace(run, rows=[replace(row, **few) if row.draft else row for row in run.rows])


def untested() -> ComparisonRun:
    run = make_run(lengths=(4,), temperatures=(0.8,))
    return replace(run, correctness=[entry | {"n_uncertain": entry["n_tokens"]} for entry in run.correctness])


@pytest.mark.parametrize(
    ("name", "show"),
    [
        ("screen.txt", lambda: screen.screen(three_regimes(), where=["further rows: results/local.md"])),
        ("brief.txt", lambda: screen.screen(three_regimes(), brief=True)),
        ("page.md", lambda: report.page(three_regimes(), "local")),
        ("troubled.txt", lambda: screen.screen(troubled())),
        ("troubled-brief.txt", lambda: screen.screen(troubled(), brief=True)),
        ("lossy.txt", lambda: screen.screen(lossy())),
        ("lossy-brief.txt", lambda: screen.screen(lossy(), brief=True)),
        ("lossy.md", lambda: report.page(lossy(), "local")),
        ("without-costs.md", lambda: report.page(without_costs(), "local")),
        ("no-draft.txt", lambda: screen.screen(make_run(methods=(), temperatures=(0.8,)))),
        ("padded-alone.txt", lambda: screen.screen(three_regimes().padded)),
        ("few-prompts.md", lambda: report.page(few_prompts(), "local")),
        ("untested.txt", lambda: screen.screen(untested())),
    ],
)
def test_what_is_shown_is_what_was_approved(name, show, monkeypatch):
    monkeypatch.setattr(attribution, "FURTHEST", 1.1)
    is_approved(APPROVED / name, show())


def product_of(line: str) -> float:
    """What a reader gets who multiplies the numbers of a line, as they are printed."""
    book = float(re.search(r"says (\d+\.\d+)x", line)[1])
    found = re.findall(r"\bx(\d+\.\d+) ", line.partition("between them: ")[2])
    assert 1 <= len(found) <= 1 + len(EFFECTS)
    assert line.endswith(" the rest")
    return book * math.prod(map(float, found))


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_the_factors_of_a_line_multiply_to_the_measured_speedup(path):
    """All rows of all committed comparisons that have a ladder, and the lines of their first screens."""
    run = files.read(path, ComparisonRun)
    for one in filter(None, (run, run.eager, run.padded)):
        rows = [row for row in one.rows if factors(row)]
        for row in rows:
            line = f"says {tables.speedup(row.book_formula)}{screen.between(row)}"
            assert f"{product_of(line):.2f}x" == tables.speedup(row.speedup), line
        line = screen.ladder_line(one) or ""
        assert ("between them" in line) == bool(rows)
        assert not rows or f"; measured {product_of(line):.2f}x" in line


@given(st.lists(st.floats(0.3, 1.6), min_size=len(USUAL), max_size=len(USUAL)))
def test_any_factors_multiply_to_the_measured_speedup(effects):
    row = make_row(effects=tuple(effects))
    line = f"says {tables.speedup(row.book_formula)}{screen.between(row)}"
    assert product_of(line) == pytest.approx(round(row.speedup, 2), rel=1e-3), line


def test_factors_belong_to_their_rungs():
    effects = [0.5 + i / 10 for i in range(len(USUAL))]
    bonus = expected_tokens_per_round(0.7, 4) / book_formula(0.7, 4)
    row = make_row(effects=tuple(effects))
    expected = dict(zip(EFFECTS, [bonus, *effects], strict=True))
    assert factors(row) == pytest.approx(expected)
    table = report.ladder_table([row, make_row(kind="code"), plain_row(), bare(row)])
    assert [[cell(one) for cell in table.cells.values()] for one in table.rows] == [
        ["model", "4", "0", "2.11x", *(f"{factor:.2f}" for factor in [bonus, *effects]), f"{row.speedup:.2f}x"]
    ]


def test_the_result_is_the_highest_row_and_the_lowest():
    run = make_run(temperatures=(0.0,))
    low, *_, high = sorted((r for r in run.rows if r.draft and r.prompt_kind == "all"), key=lambda row: row.speedup)
    said = [f"{row.method}, k = {row.draft_length}, {row.speedup:.2f}x" for row in (high, low)]
    ends = f"({high.speedup_low:.2f} to {high.speedup_high:.2f})"
    assert screen.result_line(run) == f"Highest: {said[0]} {ends}; lowest: {said[1]}."
    for low, why in ((0.8, ""), (1.1, "; the baseline may differ from itself by as much")):
        rows = [replace(row, verdict="unclear", speedup_low=low) if row.draft else row for row in run.rows]
        assert f", not shown to be faster{why}; lowest: " in screen.result_line(replace(run, rows=rows))
    rows = [replace(row, verdict="slower") for row in run.rows]
    assert f"{ends}, slower; lowest: " in screen.result_line(replace(run, rows=rows))
    alone = next(row for row in run.rows if row.draft and row.prompt_kind == "all")
    assert "lowest" not in screen.result_line(replace(run, rows=[run.rows[0], alone]))


def test_no_difference_is_found_only_where_tokens_were_tested():
    run = make_run(lengths=(4,), temperatures=(0.8,))
    run.correctness[0]["n_uncertain"] = run.correctness[0]["n_tokens"]
    assert "768 sampled tokens, no difference found in 1 of 2 arms" in "".join(screen.same_text_lines(run))


def test_a_ladder_is_shown_where_the_fastest_row_has_none():
    run = make_run(temperatures=(0.0,), methods=("model", "hybrid"))
    run.rows = [replace(bare(row), speedup=9.0, verdict="faster") if row.draft == "hybrid" else row for row in run.rows]
    assert screen.result_line(run).startswith("Highest: hybrid,")
    assert re.match(r"lab pair, model, k = \d: 1/\(1-α", screen.ladder_line(run))


@pytest.mark.parametrize(
    ("engine", "share", "wide", "limit"),
    [
        ("eager", 0.1, 1.0, f": {screen.STARTING}"),
        ("eager", 0.1, 2.0, f": {screen.UNKNOWN}"),
        ("graphs", 0.1, 1.0, f": {screen.UNKNOWN}"),
        ("c", 0.6, 1.25, f": {screen.READING}"),
        ("c", 0.4, 1.25, f": {screen.UNKNOWN}"),
        ("c", 0.6, 1.4, f": {screen.ARITHMETIC}"),
    ],
)
def test_what_limits_a_step_follows_from_its_reading_and_from_a_wide_pass(engine, share, wide, limit):
    """The pass is that of a draft which has all its tokens in nearly all rounds."""
    run = make_run(lengths=(2, 4, 8), temperatures=(0.0,))
    run.settings["engine"] = engine
    cost = {("model", 4): wide}
    run.rows = [replace(row, verify_cost=cost.get((row.draft, row.draft_length), 9.0)) for row in run.rows]
    run.rows = [replace(row, n_drafted=row.n_drafted // 2) if row.draft == "ngram" else row for row in run.rows]
    step = run.rows[0].seconds / run.rows[0].n_emitted
    run = replace(run, bandwidth=25e9, weight_bytes=round(share * step * 25e9))
    assert screen.limit_line(run).endswith(
        f"is {share:.0%} of it, and a pass over 5 tokens takes {wide:.2f} steps{limit}"
    )
    assert screen.limit_line(replace(run, bandwidth=None)) is None
    short = [replace(row, n_drafted=row.n_drafted // 2) for row in run.rows]
    assert screen.limit_line(replace(run, rows=short)).endswith(f"is {share:.0%} of it.")


def test_errors_have_the_right_median_and_maximum():
    """Measured 2 everywhere; the signs must not cancel."""
    forecasts = (2.2, 1.8, 2.6, None)  # +10 %, -10 %, +30 %
    rows = [replace(bare(make_row(speedup=2.0)), forecast=f, book_formula=1.0) for f in forecasts]
    found = attribution.prediction_errors(rows)
    assert found["forecast"] == {"n": 3, "median": pytest.approx(0.1), "max": pytest.approx(0.3)}
    assert found["book_formula"] == {"n": 4, "median": pytest.approx(0.5), "max": pytest.approx(0.5)}
    assert "accounting" not in found
    table = report.errors_table(rows)
    assert ["forecast", "3", "10.0%", "30.0%"] in [[cell(row) for cell in table.cells.values()] for row in table.rows]


def test_each_prompt_counts_once_in_the_errors():
    rows = make_run(temperatures=(0.0,)).rows
    of_kinds = [replace(r, forecast=2.0 * r.speedup) for r in rows if r.prompt_kind != "all"]
    whole = [replace(r, forecast=3.0 * r.speedup) for r in rows if r.prompt_kind == "all"]
    for_kinds, for_all = (attribution.prediction_errors(given)["forecast"] for given in ([*of_kinds, *whole], whole))
    assert (for_kinds["n"], for_all["n"], for_kinds["max"], for_all["max"]) == pytest.approx((24, 8, 1, 2))


def test_a_prediction_stands_with_its_error():
    row = make_row(speedup=2.0, forecast=2.1, book_formula=3.0, leviathan=None)
    table = report.rows_table([plain_row(), row])
    shown = {head: cell(row) for head, cell in table.cells.items()}
    assert (shown["forecast"], shown["book(α)"], shown["Leviathan"]) == ("2.10   +5%", "3.00  +50%", "-")
    assert {table.cells["forecast"](plain_row()), table.cells["95 %"](plain_row())} == {"-"}


def test_the_library_is_compared_with_the_baseline():
    run = make_run()
    run.rows = [plain_row("generate", speedup=0.5)]
    assert "2.00x its speed, the same text" in report.generate_line(run)
    run.rows, run.settings["dtype"] = [replace(run.rows[0], same_as_baseline=False)], "bfloat16"
    assert "NOT the same text in bfloat16" in report.generate_line(run)
