"""The first screen of a comparison."""

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.drafts import registry
from speclab.present import first_screen, report, tables
from speclab.records import files
from speclab.records.arms import BASELINE
from speclab.records.runs import ComparisonRun
from speclab.system.paths import ROOT
from speclab.theory import attribution
from speclab.theory.ladder import factors
from tests.present.test_report import make_row, make_run


def two_regimes() -> ComparisonRun:
    """A run as `compare.py` makes it without flags: two temperatures, and one at a second size."""
    run = make_run(lengths=(2, 4, 8))
    padded = make_run(lengths=(2, 4, 8), temperatures=(0.0,))
    padded.settings["target"] = "lab:200m"
    padded = replace(padded, weight_bytes=800_000_000, bandwidth=25e9)
    return replace(run, weight_bytes=40_000_000, bandwidth=25e9, padded=padded)


def lines_with(text: str, words: str) -> list[str]:
    return [line for line in text.splitlines() if words in line]


def test_whether_the_text_is_the_same_comes_first():
    text = first_screen.screen(two_regimes(), where=["everything else"])
    assert text.index("same text?") < text.index("speedup") < text.index("1/(1-α+α/k)") < text.index("everything else")


def test_the_best_row_of_each_target_is_marked():
    run = two_regimes()
    text = first_screen.screen(run)
    rows = [row for row in run.rows if row.draft and row.prompt_kind == "all" and row.temperature == 0]
    best = max(rows, key=lambda row: row.speedup)
    marked = [line.split()[:2] for line in lines_with(text, "highest")]
    assert marked == [[best.method, str(best.draft_length)], [best.method, "4"]]
    assert best.draft_length == 4


def test_no_row_is_best_where_none_is_faster():
    run = make_run()
    run.rows = [replace(row, speedup=0.9, verdict="slower") if row.draft else row for row in run.rows]
    text = first_screen.screen(run)
    assert "highest" not in text
    drafts = [row for row in run.rows if row.draft and row.prompt_kind not in ("all", "not looping")]
    counted = f"{len(drafts)} of {len(drafts)}, each draft and k once per temperature and kind of prompt (--verbose)"
    assert f"not shown to be faster: {counted}; the lowest is 0.90x" in " ".join(text.split())
    assert len(lines_with(text, "0.90x slower")) == 8


def test_the_verdict_on_texts_looks_at_every_temperature():
    run = two_regimes()
    right = first_screen.text_verdict(run)
    sampled = next(i for i, entry in enumerate(run.correctness) if entry["temperature"] > 0)
    assert run.rows[0].temperature == 0
    run.correctness[sampled] = run.correctness[sampled] | {"passed": False}
    assert first_screen.text_verdict(run) != right
    run.correctness = [entry for entry in two_regimes().correctness if entry["temperature"] > 0]
    run.rows = [row for row in run.rows if row.temperature > 0]
    found = first_screen.text_verdict(run)
    run.correctness = [entry | {"n_uncertain": entry["n_tokens"]} for entry in run.correctness]
    assert first_screen.text_verdict(run) != found, "nothing was tested"


def test_a_wrong_text_stands_above_the_table():
    run = two_regimes()
    run.padded.correctness = [run.padded.correctness[0] | {"passed": False}]
    brief = first_screen.screen(run, brief=True)
    assert brief.startswith(f"WRONG OUTPUT: {run.padded.correctness[0]['arm']}")
    assert brief.splitlines()[2] == "lab pair"
    assert brief.splitlines()[4].startswith("draft")


def test_rough_speeds_are_marked_and_nothing_is_hidden(monkeypatch):
    """One sentence says it of the target whose baseline differs from itself; only its rows are marked."""
    monkeypatch.setattr(attribution, "FURTHEST", 1.1)
    quiet, run = two_regimes(), two_regimes()
    run.padded.noise = [replace(floor, ratio=1.01, low=0.906, high=1.05) for floor in run.padded.noise]
    for options in ({}, {"brief": True}, {"markdown": True}):
        text, before = (first_screen.screen(one, **options) for one in (run, quiet))
        assert "ROUGH" not in before
        said = " ".join(text.split())
        assert said.count("lab:200m: ROUGH: the baseline") == 1
        assert "differs from itself by a factor of up to 1.11, so" in said, (
            "1 / 0.906 is more than the bound, and reads so"
        )
        rows = first_screen.table_lines(run.padded)
        assert sum(line.rstrip(" |").endswith(" rough") for line in text.splitlines()) == len(rows)
        for target in (run, run.padded):
            for row in (line.row for line in first_screen.table_lines(target)):
                for value in (row.speedup, row.acceptance_rate, row.tokens_per_round):
                    assert value is None or text.count(f"{value:.2f}") >= before.count(f"{value:.2f}") > 0
    run.noise = run.padded.noise
    text = first_screen.screen(run)
    assert text.count(" rough\n") == 2 * len(rows)
    assert "1/(1" in text


def product_of(line: str) -> float:
    """What a reader gets who multiplies the numbers of a line, as they are printed."""
    book = float(re.search(r"says (\d+\.\d+)x", line)[1])
    factors = re.findall(r"\bx(\d+\.\d+) ", line.partition("between them: ")[2])
    assert len(factors) == 3
    assert line.endswith(" all else")
    return book * math.prod(map(float, factors))


COMPARISONS = [path for path in sorted((ROOT / "results").glob("*.json")) if "phases" in json.loads(path.read_text())]


@pytest.mark.parametrize("path", COMPARISONS, ids=lambda path: path.stem)
def test_the_factors_of_a_line_multiply_to_the_measured_speedup(path):
    """All rows of all committed comparisons that have a ladder, and the lines of their first screens."""
    run = files.read(path, ComparisonRun)
    for one in filter(None, (run, run.padded)):
        rows = [row for row in one.rows if row.ladder]
        for row in rows:
            line = f"says {tables.speedup(row.book_formula)}{first_screen.between(row)}"
            assert f"{product_of(line):.2f}x" == tables.speedup(row.speedup), line
        lines = [line for line in first_screen.facts_lines(one) if line and "between them" in line]
        assert bool(lines) == bool(rows)
        for line in lines:
            assert f"; measured {product_of(line):.2f}x" in line


@given(st.lists(st.floats(0.3, 1.6), min_size=8, max_size=8))
def test_any_factors_multiply_to_the_measured_speedup(effects):
    row = make_row(effects=effects)
    row = replace(row, speedup=row.ladder[-2].speedup)
    line = f"says {tables.speedup(row.book_formula)}{first_screen.between(row)}"
    assert f"{product_of(line):.2f}x" == tables.speedup(row.speedup), line


@pytest.mark.parametrize("options", [{}, {"brief": True}, {"markdown": True}])
def test_whose_text_a_padded_target_writes_stands_over_its_numbers(options):
    run = two_regimes()
    text = first_screen.screen(run, **options)
    assert text.count("lab:200m is padded") == 1
    assert text.index("10 M parameters") > text.index("lab pair\n")
    assert "padded" not in first_screen.screen(replace(run, padded=None), **options)
    assert "lab:200m is padded" in first_screen.screen(run.padded, **options), "alone, too"


def test_counts_stand_in_the_first_table():
    """Whatever the clock says, α and the tokens per round are on the first screen, also in brief."""
    run = make_run(lengths=(4,), temperatures=(0.0,))
    (row,) = [line.row for line in first_screen.table_lines(run) if line.row.draft == "model"]
    for brief in (False, True):
        (line,) = lines_with(first_screen.screen(run, brief), "model     4")
        assert line.split()[2:4] == [f"{row.acceptance_rate:.2f}", f"{row.tokens_per_round:.2f}"]


def test_more_turns_than_planned_are_counted():
    run = make_run(temperatures=(0.0,))
    base = replace(next(line for line in run.raw if line.arm == BASELINE), again=[0, 0]) if run.raw else None
    assert first_screen.more_turns(run) == ""
    assert (
        base is None
        or first_screen.more_turns(replace(run, raw=[*run.raw, base])) == " after 2 more turns than planned"
    )


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_prompts_are_no_noise(n):
    """No row is called unclear where there is no interval; the number of prompts is said instead."""
    run = make_run(temperatures=(0.0,))
    few = {"n_prompts": n, "speedup_low": None, "speedup_high": None, "verdict": "unclear"}
    run.rows = [replace(row, **few) if row.draft else row for row in run.rows]
    for text in (first_screen.screen(run), report.comparison(run, by_kind=True, markdown=True)):
        assert f"no interval: {n} prompt{'s' * (n > 1)} " in text
        assert not lines_with(text, "unclear")


def test_a_wrong_text_is_said_where_the_same_text_is_asked():
    run = two_regimes()
    difference = {"prompt": 3, "position": 7, "tokens": ["a", "b"], "gap": 1.5, "verdict": "BUG: logits differ"}
    run.padded.correctness[0] |= {"differences": [difference], "passed": False}
    text = first_screen.screen(run)
    assert "prompt 3, token 7: 'a' became 'b', gap 1.5: BUG" in text
    assert "WRONG OUTPUT: model k=2" in text


def test_a_sampled_arm_that_fails_is_named():
    run = make_run()
    entry = next(entry for entry in run.correctness if entry["temperature"] > 0)
    entry["passed"] = False
    text = first_screen.screen(run)
    assert "no difference found in 1 of 2 arms" in text
    assert "model k=2: z_S" in " ".join(text.split())


def test_the_formula_and_what_lies_between_it_and_the_measurement():
    run = make_run(temperatures=(0.0,))
    models = [row for row in run.rows if row.draft == "model" and row.prompt_kind == "all"]
    row = max(models, key=lambda row: row.speedup)
    text = first_screen.screen(run)
    said = f"α = {row.acceptance_rate:.2f} says {row.book_formula:.2f}x; measured {row.speedup:.2f}x"
    assert said in text
    found = factors(row)
    first = max(found, key=lambda name: max(found[name], 1 / found[name]))
    assert f"; between them: x{found[first]:.2f} {first}, " in " ".join(text.split())


def test_the_result_stands_in_one_sentence_above_the_table():
    """The highest row with its interval and the factor that costs most; a wrong text, or no gain, is said there."""
    run = make_run(temperatures=(0.0,))
    row, said = first_screen.best_row(run), first_screen.result_line(run)
    name, factor = min(factors(row).items(), key=lambda item: item[1])
    assert factor < first_screen.NO_LOSS
    ends = f"({row.speedup_low:.2f} to {row.speedup_high:.2f})"
    assert said == (
        f"Same text. Highest: {row.method}, k = {row.draft_length}, {row.speedup:.2f}x {ends}: "
        f"most is lost to {name} (x{factor:.2f})."
    )
    text = first_screen.screen(run)
    assert text.index("same text?") < text.index("Same text.") < text.index("tok/rnd")
    for entry in run.correctness:
        entry["passed"] = False
    assert first_screen.result_line(run).startswith("Some texts are WRONG.")
    run.rows = [replace(row, speedup=0.9 * row.speedup / max(r.speedup for r in run.rows)) for row in run.rows]
    assert "not shown to be faster" in first_screen.result_line(run)
    run.rows = [row for row in run.rows if not row.draft]
    assert first_screen.result_line(run) is None


def test_the_formula_is_shown_for_no_lookup(monkeypatch):
    """Also where the lookup is a new one, is faster than the model, or chooses its length."""
    monkeypatch.setitem(registry.kinds(), "echo", registry.Kind("echo", lambda *_: None, "", is_lookup=True))
    for name in ("echo", "echo auto", "suffix auto"):
        run = make_run(temperatures=(0.0,), methods=("model", name))
        run.rows = [replace(row, speedup=row.speedup + 9 * (row.draft == name)) for row in run.rows]
        assert first_screen.best_row(run).draft == name
        assert first_screen.best_model_row(run).draft == "model"
        run.rows = [row for row in run.rows if row.draft != "model"]
        assert first_screen.best_model_row(run).draft == name


def test_reading_is_a_share_of_a_step():
    """The made-up baseline: seconds / tokens is its step."""
    run = two_regimes()
    row = next(row for row in run.rows if row.method == "baseline" and row.prompt_kind == "all")
    step = row.seconds / row.n_tokens
    share = 40e6 / 25e9 / step
    assert f"{share:.0%} of that is reading 40 MB of weights at 25 GB/s" in first_screen.screen(run)
    assert first_screen.reading_line(replace(run, bandwidth=None)) is None


def test_functions_that_are_not_the_labs_are_named_first():
    """On the first screen, on the page of the run, and nowhere for the lab as it is."""
    run = make_run()
    run.settings["functions"] = "from here/: 7 (a drafter)"
    for text in (first_screen.screen(run), first_screen.page(run, "local"), report.comparison(run)):
        assert "from here/: 7 (a drafter). The baseline is the lab's own." in " ".join(text.split())
    assert report.functions_line(make_run()) is None
