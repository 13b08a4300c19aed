"""The sweeps' views: lines and cells follow the numbers, and tables fit."""

from dataclasses import replace

import pytest

from speclab.extensions.sweeps import __main__ as sweeps
from speclab.extensions.sweeps.__main__ import Point, SweepRun
from speclab.present import tables
from speclab.records.files import SCHEMA_VERSION
from speclab.records.rows import Noise
from speclab.theory.formulas import expected_tokens_per_round
from tests.present.made import make_row

DRAFT, VERIFY, OVERHEAD = 0.15, 1.3, 0.05  # costs of the made-up machine, in decode steps
COSTS = (DRAFT, VERIFY, OVERHEAD)


def point(x, series="model", alpha=0.7, speedup=None, half=0.1, costs=COSTS, method=None, n_tokens=1000):
    """A row of a made-up run with independent acceptance at k = 4; `half` is the interval's half-width as a share."""
    model = expected_tokens_per_round(alpha, 4) / (4 * costs[0] + costs[1] + costs[2])
    speedup = model * 0.98 if speedup is None else speedup
    of_row = dict(zip(("draft_cost", "verify_cost", "overhead"), costs, strict=True)) | {
        "speedup": speedup,
        "speedup_low": speedup * (1 - half),
        "speedup_high": speedup * (1 + half),
        "seconds": n_tokens * 0.01 / speedup,
        "n_emitted": n_tokens,
        "n_prompts": 8,
        "forecast": model,
        "verdict": None,
    }
    return Point(**vars(make_row(method or series, alpha=alpha, **of_row)), x=x, series=series)


SETTINGS = {"target": "models/lab-pair/target", "device": "cpu", "dtype": "float32", "engine": "c", "n_prompts": 8}
SETTINGS |= {"seed": 0, "max_new_tokens": 64, "repeats": 1}


def sweep(name, points):
    return SweepRun(
        schema_version=SCHEMA_VERSION,
        sweep=name,
        created="2026-01-02T03:04Z",
        interrupted=False,
        machine={"cpu": "A made-up CPU", "cores": 2, "threads": 2, "gpu": None, "system": "Linux"},
        versions={"python": "3", "torch": "2", "transformers": "5", "commit": "0" * 40, "uncommitted_changes": False},
        settings=SETTINGS,
        models={},
        correctness=[],
        noise=[Noise(temperature=0.0, ratio=1.003, low=0.99, high=1.01)],
        points=points,
    )


def acceptance(costs=COSTS):
    dials = [i / 10 for i in range(11)]
    return sweep("acceptance", [point(a, "dial", alpha=a, half=0.04, method=f"dial:{a:g}", costs=costs) for a in dials])


ALPHAS = {"trained": 0.72, "noise 0.1": 0.7, "noise 0.2": 0.6, "noise 0.4": 0.3, "random": 0}


def mismatch():
    return sweep("mismatch", [point(n, "draft", alpha=a, method=n) for n, a in ALPHAS.items()])


MADE = {"acceptance": acceptance, "mismatch": mismatch}


def lines(made):
    """All lines of a sweep as one text."""
    return "\n".join(filter(None, sweeps.lines(made)))


def rows(made):
    """The table's lines as head -> cell."""
    head, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in _markdown(made)]
    return [dict(zip(head, line, strict=True)) for line in found]


def _markdown(made):
    return tables.show([sweeps.table(made)], markdown=True).splitlines()


def timed(p, speedup, low=None, high=None):
    """Move a point's measured speedup, its seconds and its interval (±10 % unless given)."""
    p.seconds *= p.speedup / speedup
    return replace(p, speedup=speedup, speedup_low=low or speedup * 0.9, speedup_high=high or speedup * 1.1)


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE)
def test_views_bear_missing_numbers(name, tmp_path):
    """Two prompts give no interval, an unpriced run no predictions; one point is enough to look at."""
    made = MADE[name]()
    missing = ("speedup_low", "speedup_high", "draft_cost", "verify_cost", "overhead", "leviathan", "cost_model")
    missing = dict.fromkeys((*missing, "forecast"))
    made = replace(made, noise=[], points=[replace(p, **missing) for p in made.points])
    for points in (made.points, made.points[:1], []):
        part = replace(made, points=points)
        assert not {"None", "nan"} & set(sweeps.text(part, "p.png").split())
        assert sweeps.picture(part, tmp_path, "p").exists()
    wrong = replace(made, correctness=[{"arm": "ngram k=4", "passed": False}], interrupted=True)
    assert "WRONG OUTPUT: ngram k=4" in lines(wrong)
    assert "Stopped before the end" in lines(wrong)


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_no_difference_where_the_interval_covers_one():
    p = point(4)
    for low, high, word in ((1.01, 1.4, "faster"), (0.99, 1.4, "unclear"), (1.0, 1.4, "unclear")):
        assert sweeps.verdict(timed(p, 1.2, low, high)) == word
    for low, high, word in ((0.6, 0.99, "slower"), (0.6, 1.01, "unclear")):
        assert sweeps.verdict(timed(p, 0.8, low, high)) == word
    assert sweeps.verdict(replace(timed(p, 1.2, 1.1, 1.3), verdict="unclear")) == "unclear"
    alone = replace(timed(p, 1.2), speedup_low=None, speedup_high=None)
    (row,) = rows(sweep("context", [replace(alone, x=0.0)]))
    assert (row["speedup"], row["95 %"], row["verdict"]) == ("1.20x", "-", "unclear")


# --- acceptance -------------------------------------------------------------------------------------------------------


def test_break_even():
    """Speedup 0.5 + alpha passes 1 at 0.5, 1.2 times it at 1/3, 0.8 times it at 0.75."""
    made = [timed(point(a, "dial", alpha=a), 0.5 + a, 0.8 * (0.5 + a), 1.2 * (0.5 + a)) for a in (0, 0.2, 0.6, 1)]
    assert sweeps.break_even(made) == pytest.approx((0.5, 1 / 3, 0.75))
    assert "dial: break-even at α = 0.50 (0.33 to 0.75)" in lines(sweep("acceptance", made))
    assert sweeps.break_even(made[::-1]) == sweeps.break_even(made), "the order of points says nothing"
    for speed in (1.5, 0.9):
        assert "break-even at α = -" in lines(sweep("acceptance", [timed(p, speed) for p in made]))
    wide = [replace(p, speedup_low=0.1) for p in made]
    assert "break-even at α = 0.50 (-)" in lines(sweep("acceptance", wide)), "no end, no interval"


# --- the other sweeps' columns ----------------------------------------------------------------------------------------


def test_context_has_the_step_and_the_costs():
    made = [timed(point(128, costs=(0.2, 1.1, 0.05)), 1.5), timed(point(1800, costs=(0.1, 1.6, 0.05)), 1.4)]
    made[1].seconds *= 3
    first, last = rows(sweep("context", made))
    assert (first["prompt"], first["t_1 ms"], last["t_1 ms"]) == ("128", "10.00", "30.00")
    assert (first["c"], first["v"], first["o"]) == ("0.200", "1.10", "0.050")
    assert (last["c"], last["v"]) == ("0.100", "1.60")


def test_mismatch_says_slower_plainly():
    found = rows(mismatch())
    assert [row["draft"] for row in found] == list(ALPHAS), "the record's order stays"
    assert (found[0]["speedup"], found[0]["95 %"], found[0]["verdict"]) == ("1.45x", "1.30 to 1.59", "faster")
    assert (found[-1]["speedup"], found[-1]["verdict"], found[-1]["α"]) == ("0.50x", "slower", "0.00")
    assert found[0]["round"] == f"{4 * DRAFT + VERIFY + OVERHEAD:.2f}"
