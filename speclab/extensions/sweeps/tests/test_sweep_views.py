"""The sweeps' views: lines and cells follow the numbers, and tables fit."""

from dataclasses import fields, replace

import pytest

from speclab.extensions.sweeps import __main__ as sweeps
from speclab.extensions.sweeps.__main__ import Point, SweepRun
from speclab.present import tables
from speclab.records.files import LabRun
from speclab.records.rows import Noise
from speclab.theory.attribution import verdict
from speclab.theory.formulas import expected_tokens_per_round
from tests.present.made import make_row, make_run

COSTS = DRAFT, VERIFY, OVERHEAD = 0.15, 1.3, 0.05  # of the made-up machine, in decode steps


def point(x, series="model", alpha=0.7, speedup=None, half=0.1, costs=COSTS):
    """A row of a made-up run with independent acceptance at k = 4; `half` is the interval's half-width as a share."""
    model = expected_tokens_per_round(alpha, 4) / (4 * costs[0] + costs[1] + costs[2])
    speedup = model * 0.98 if speedup is None else speedup
    low, high = speedup * (1 - half), speedup * (1 + half)
    of_row = dict(zip(("draft_cost", "verify_cost", "overhead"), costs, strict=True))
    of_row |= {"speedup": speedup, "speedup_low": low, "speedup_high": high, "forecast": model}
    of_row |= {"seconds": 10 / speedup, "n_emitted": 1000, "n_prompts": 8, "verdict": verdict(speedup, low, high)}
    return Point(**vars(make_row(series, alpha=alpha, **of_row)), x=x, series=series)


def sweep(name, points):
    head = {field.name: getattr(make_run(), field.name) for field in fields(LabRun)}
    noise = [Noise(temperature=0.0, ratio=1.003, low=0.99, high=1.01)]
    return SweepRun(**head, sweep=name, correctness=[], noise=noise, points=points)


ALPHAS = {"trained": 0.72, "noise 0.1": 0.7, "noise 0.2": 0.6, "noise 0.4": 0.3, "random": 0}
MADE = {
    "acceptance": [point(i / 10, "dial", alpha=i / 10, half=0.04) for i in range(11)],
    "mismatch": [point(name, name, alpha=alpha) for name, alpha in ALPHAS.items()],
}


def lines(name, points):
    """All lines of a sweep as one text."""
    return "\n".join(filter(None, sweeps.lines(sweep(name, points))))


def rows(name, points):
    """The table's lines as head -> cell."""
    shown = tables.show([sweeps.table(sweep(name, points))], markdown=True).splitlines()
    head, _, *found = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown]
    return [dict(zip(head, line, strict=True)) for line in found]


@pytest.mark.parametrize("name", MADE)
def test_views_bear_missing_numbers(name, tmp_path):
    """Two prompts give no interval, an unpriced run no predictions; one point is enough to look at."""
    missing = ("speedup_low", "speedup_high", "draft_cost", "verify_cost", "overhead", "leviathan", "cost_model")
    points = [replace(p, **dict.fromkeys((*missing, "forecast"))) for p in MADE[name]]
    for some in (points, points[:1], []):
        part = replace(sweep(name, some), noise=[])
        assert not {"None", "nan"} & set(sweeps.text(part, "p.png").split())
        assert sweeps.picture(part, tmp_path, "p").exists()
    wrong = replace(part, correctness=[{"arm": "ngram k=4", "passed": False}], interrupted=True)
    said = "\n".join(filter(None, sweeps.lines(wrong)))
    assert "WRONG OUTPUT: ngram k=4" in said
    assert "Stopped before the end" in said


def test_break_even():
    """Speedup 0.5 + alpha passes 1 at 0.5, 1.2 times it at 1/3, 0.8 times it at 0.75."""
    made = [point(1 - a, "dial", alpha=a, speedup=0.5 + a, half=0.2) for a in (0, 0.2, 0.6, 1)]
    assert sweeps.break_even(made) == pytest.approx([0.5, 1 / 3, 0.75])
    assert "dial: break-even at α = 0.50 (0.33 to 0.75)" in lines("acceptance", made)
    assert sweeps.break_even(made[::-1]) == sweeps.break_even(made), "the order of points says nothing"
    for speed in (1.5, 0.9):
        assert "break-even at α = -" in lines("acceptance", [point(p.x, alpha=p.x, speedup=speed) for p in made])
    wide = [replace(p, speedup_low=0.1) for p in made]
    assert "break-even at α = 0.50 (-)" in lines("acceptance", wide), "no end, no interval"


def test_context_has_the_step_and_the_costs():
    made = [point(128, speedup=1.5, costs=(0.2, 1.1, 0.05)), point(1800, speedup=1.4, costs=(0.1, 1.6, 0.05))]
    made[1].seconds *= 3
    first, last = rows("context", made)
    assert (first["prompt"], first["t_1 ms"], last["t_1 ms"]) == ("128", "10.00", "30.00")
    assert (first["c"], first["v"], first["o"]) == ("0.200", "1.10", "0.050")
    assert (last["c"], last["v"]) == ("0.100", "1.60")


def test_mismatch_says_slower_plainly():
    found = rows("mismatch", MADE["mismatch"])
    assert [row["draft"] for row in found] == list(ALPHAS), "the record's order stays"
    assert (found[0]["speedup"], found[0]["95 %"], found[0]["verdict"]) == ("1.45x", "1.30 to 1.59", "faster")
    assert (found[-1]["speedup"], found[-1]["verdict"], found[-1]["α"]) == ("0.50x", "slower", "0.00")
    assert found[0]["round"] == f"{4 * DRAFT + VERIFY + OVERHEAD:.2f}"
