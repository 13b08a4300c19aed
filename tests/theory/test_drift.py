"""speclab/theory/drift.py: what one run says about running it again, against simulated machines with moods."""

import math

import numpy as np
import pytest

from speclab.core.counts import Counts
from speclab.records.arms import BASELINE, Arm
from speclab.records.log import Line
from speclab.theory import drift

ARM = Arm("model", "model", 4)


def sample(arm: Arm, index: int, seconds: float, rounds: int, drafted: int = 0) -> Line:
    made = Line.begin(arm, 0.0, index, "code", 7)
    made.add(0.1, seconds, [1] * 64, Counts(n_rounds=rounds, n_drafted=drafted, n_emitted=63))
    return made


def a_run(costs: list[float], drafted: list[int], rounds: int = 21) -> tuple[list[Line], list[Line]]:
    """Rounds that cost `costs` decode steps each.  -> samples of the arm and of the baseline"""
    ours = [sample(ARM, i, c * 0.01 * rounds, rounds, d) for i, (c, d) in enumerate(zip(costs, drafted, strict=True))]
    return ours, [sample(BASELINE, i, 0.63, 63) for i in range(len(costs))]


def test_residuals_are_what_drafted_tokens_do_not_explain():
    drafted = [21, 42, 63, 84, 84, 42]
    line = [1.5 * math.exp(0.1 * d / 21) for d in drafted]
    found = drift.residuals(*a_run(line, drafted))
    assert list(found.values()) == pytest.approx([0] * 6, abs=1e-12)
    line[2] *= 1.2
    found = drift.residuals(*a_run(line, drafted))
    assert max(found, key=found.get) == 2
    assert sum(found.values()) == pytest.approx(0, abs=1e-12)


def test_a_mood_that_both_arms_feel_is_no_noise():
    ours, baseline = a_run([1.5] * 6, [84] * 6)
    for one, other, mood in zip(ours, baseline, (1.0, 1.4, 1.0, 1.4, 1.4, 1.0), strict=True):
        one.decode_seconds = [mood * seconds for seconds in one.decode_seconds]
        other.decode_seconds = [mood * seconds for seconds in other.decode_seconds]
    assert list(drift.residuals(ours, baseline).values()) == pytest.approx([0] * 6, abs=1e-12)


def test_too_few_prompts_say_nothing():
    assert drift.residuals(*a_run([1.5] * 4, [84] * 4)) is None


def test_correlation_of_known_series():
    assert drift.correlation([[1.0, -1.0] * 6]) == [1.0], "neighbours that disagree are not alike"
    slow = [1.0] * 6 + [-1.0] * 6
    assert drift.correlation([slow]) == pytest.approx([1, 9 / 12, 6 / 12, 3 / 12])
    assert drift.correlation([[0.0] * 9]) == [1.0]
    assert drift.correlation([]) == [1.0]


def test_neighbours_that_are_alike_do_not_average_out():
    rest = dict(enumerate([0.1, 0.1, 0.1, -0.1, -0.1, -0.1]))
    shares, places = dict.fromkeys(range(6), 1 / 6), {i: i for i in range(6)}
    alone = drift.repeat_noise(1.5, rest, shares, places, [1.0])
    assert alone == pytest.approx(1.96 * 1.5 * math.sqrt(2 * (6 * 0.01 / 4) / 6))
    assert drift.repeat_noise(1.5, rest, shares, places, [1.0, 0.5]) > 1.2 * alone
    far = {i: 10 * i for i in range(6)}
    assert drift.repeat_noise(1.5, rest, shares, far, [1.0, 0.5]) == pytest.approx(alone)
    one = {0: 1.0}
    assert drift.repeat_noise(1.5, rest, one, places, [1.0]) == pytest.approx(alone * math.sqrt(6))


@pytest.mark.parametrize(("memory", "n", "expected"), [(0.0, 24, 0.94), (0.6, 24, 0.88)])
def test_the_interval_covers_another_run(memory, n, expected):
    """Two runs on a machine whose mood is an AR(1) series: how often the second falls inside the first's interval.

    Independent moods reach the nominal 95 % but for the estimated spread. Lasting ones fall short in a short run,
    because a run cannot see a mood longer than itself; the values are those of this estimator, seeded. Eight arms
    share the estimate of the correlation. Bound: 4.9 standard errors of 1,500 pairs, false-alarm rate 1e-6.
    """
    dice = np.random.default_rng(7)
    places, shares = {i: i for i in range(n)}, dict.fromkeys(range(n), 1 / n)

    def run() -> np.ndarray:
        """(8, n) logs of round costs"""
        shocks = 0.08 * dice.standard_normal((8, n))
        logs = np.empty((8, n))
        logs[:, 0] = shocks[:, 0] / math.sqrt(1 - memory**2)
        for i in range(1, n):
            logs[:, i] = memory * logs[:, i - 1] + shocks[:, i]
        return logs

    inside = trials = 0
    while trials < 1500:
        first, second = run(), run()
        rest = first - first.mean(1, keepdims=True)
        alike = drift.correlation([list(one) for one in rest])
        for mine, other, residual in zip(first, second, rest, strict=True):
            speedups = [2 * math.exp(-logs.mean()) for logs in (mine, other)]
            noise = drift.repeat_noise(speedups[0], dict(enumerate(residual)), shares, places, alike)
            inside += abs(speedups[1] - speedups[0]) <= noise
            trials += 1
    assert inside / trials == pytest.approx(expected, abs=4.9 * math.sqrt(0.9 * 0.1 / trials))
