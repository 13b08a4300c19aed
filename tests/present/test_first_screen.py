"""The first screen of a comparison."""

from dataclasses import replace

from speclab.drafts import registry
from speclab.present import first_screen, report
from speclab.records.runs import ComparisonRun
from speclab.theory import noise
from speclab.theory.ladder import factors
from tests.present.test_report import make_run


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
    marked = [line[:21].split() for line in lines_with(text, "highest")]
    assert marked == [["lab", "pair", best.method, str(best.draft_length)], ["lab:200m", best.method, "4"]]
    assert best.draft_length == 4


def test_no_row_is_best_where_none_is_faster():
    run = make_run()
    run.rows = [replace(row, speedup=0.9, verdict="slower") if row.draft else row for row in run.rows]
    text = first_screen.screen(run)
    assert "highest" not in text
    drafts = [row for row in run.rows if row.draft and row.prompt_kind not in ("all", "not looping")]
    counted = f"{len(drafts)} of {len(drafts)} rows, each kind of prompt counted apart (--verbose)"
    assert f"not shown to be faster: {counted}; lowest of all 0.90x" in " ".join(text.split())
    assert len(lines_with(text, "0.90x slower")) == 8


def test_a_wrong_text_stands_above_the_table():
    run = two_regimes()
    run.padded.correctness = [run.padded.correctness[0] | {"passed": False}]
    brief = first_screen.screen(run, brief=True)
    assert brief.startswith(f"WRONG OUTPUT: {run.padded.correctness[0]['arm']}")
    assert brief.splitlines()[2].startswith("target")


def test_a_table_that_is_not_to_be_believed_is_not_shown(monkeypatch):
    monkeypatch.setattr(noise, "FURTHEST", 1.1)
    run = two_regimes()
    run.padded.noise = [replace(floor, ratio=1.3, low=1.1, high=1.5) for floor in run.padded.noise]
    text, brief = first_screen.screen(run), first_screen.screen(run, brief=True)
    assert "lab:200m: NOT TO BE BELIEVED" in text
    assert brief.startswith("lab:200m: NOT TO BE BELIEVED")
    assert "x  " in brief, "the other target's table is there"
    assert not lines_with(brief, "lab:200m  model")
    run.noise = run.padded.noise
    assert "1/(1" not in first_screen.screen(run)
    assert "same text?" in first_screen.screen(run)
    assert "1.30x" in first_screen.screen(run, markdown=True)
    assert "lab:200m | model" in first_screen.screen(run, markdown=True)


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


def test_the_formula_and_what_it_misses_most():
    run = make_run(temperatures=(0.0,))
    models = [row for row in run.rows if row.draft == "model" and row.prompt_kind == "all"]
    row = max(models, key=lambda row: row.speedup)
    text = first_screen.screen(run)
    said = f"α = {row.acceptance_rate:.2f} says {row.book_formula:.2f}x; measured {row.speedup:.2f}x"
    assert said in text
    found = factors(row)
    first = max(found, key=lambda name: max(found[name], 1 / found[name]))
    assert f"misses most: x{found[first]:.2f} {first}," in text


def test_the_formula_is_shown_for_no_lookup(monkeypatch):
    """Also where the lookup is a new one, is faster than the model, or chooses its length."""
    monkeypatch.setitem(registry.kinds(), "echo", registry.Kind("echo", "echo", "", lambda *_: None, is_lookup=True))
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
