"""Rows against the best plain decoding of a run: chosen on half of the prompts, measured on the other half."""

from types import SimpleNamespace

import pytest
import torch

from speclab.core.sampling import Sampling
from speclab.lab.comparison import add_best_plain
from speclab.lab.harness import Measurement
from speclab.lab.rows import build_row
from speclab.lab.run_config import RunConfig
from speclab.present import first_screen, report, tables
from speclab.records.arms import BASELINE, EAGER, GENERATE, Arm
from speclab.records.log import Line

MODEL = Arm("model", "model", 4)
COMMON = {"target": "t", "device": "cpu", "dtype": "float32"}


def made(seconds: dict[Arm, tuple[float, ...]]) -> tuple[SimpleNamespace, Measurement]:
    """A run of four prompts; seconds of each arm on each, the prompt's own pass a tenth of them."""
    measured = Measurement(None, [])
    for arm, of_arm in seconds.items():
        for index, all_seconds in enumerate(of_arm):
            sample = Line.begin(arm, 0.0, index, "code", 7)
            sample.add(0.1 * all_seconds, 0.9 * all_seconds, [1, 2, 3])
            measured.lines.append(sample)
    rows = [build_row(arm, measured.of(arm, 0.0), measured.of(BASELINE, 0.0), COMMON, "all") for arm in seconds]
    settings = {"target": "t"}
    return SimpleNamespace(rows=rows, best_plain=None, settings=settings, headline=rows[-1]), measured


def test_the_best_one_is_chosen_on_one_half_and_measured_on_the_other():
    """Prompts 1 and 3 are held out. There `generate` happens to be slow, and that is what counts."""
    run, measured = made(
        {
            BASELINE: (4.0, 4.0, 4.0, 4.0),
            GENERATE: (3.0, 8.0, 3.0, 8.0),
            EAGER: (5.0, 1.0, 5.0, 1.0),
            MODEL: (2.0, 1.0, 2.0, 3.0),
        }
    )
    add_best_plain(run, measured)
    assert run.best_plain == "generate"
    ratios = {row.method: row.speedup_best_plain for row in run.rows}
    assert ratios == pytest.approx({"baseline": 2.0, "generate": 1.0, "eager": 8.0, "model": 4.0})
    assert "÷ best plain" in tables.show([report.speed_table(run.rows)])
    assert "(generate); on all prompts 0.73x the baseline" in report.plain_line(run)
    line = first_screen.best_plain_line(run)
    assert line.startswith("t, model k = 4: 4.00x (95 %: -) over the library's own loop (generate)")
    assert "on half of the prompts" in line


def test_the_first_screen_says_nothing_where_the_baseline_is_the_best():
    run, measured = made({BASELINE: (4.0,) * 4, GENERATE: (5.0,) * 4, MODEL: (2.0,) * 4})
    add_best_plain(run, measured)
    assert run.best_plain == "baseline"
    assert run.rows[-1].speedup_best_plain == 2.0
    assert first_screen.best_plain_line(run) is None


@pytest.mark.parametrize(("graphed", "expected"), [(False, [GENERATE]), (True, [GENERATE, EAGER])])
def test_the_eager_engine_is_timed_where_passes_are_graphs(graphed, expected):
    setup = SimpleNamespace(target=SimpleNamespace(graphed=graphed), sampling=Sampling(), device=torch.device("cpu"))
    config = RunConfig(setup, {}, [], [4], [0.0, 0.8], 8, 1, 0)
    assert config.with_plain() == [BASELINE, *expected]
    config.temperatures = [0.8]
    assert config.with_plain() == [BASELINE]
