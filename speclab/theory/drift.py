"""How far would a speedup move if the same command ran again? The variation inside one run tells. This module is pure.

A shared machine changes its speed for milliseconds to minutes, and such a change may slow a wide pass and not a narrow
one. Arms that take turns cancel what slows all of them alike. The rest shows from prompt to prompt, as a round that
costs more, in decode steps of the baseline beside it, than its number of drafted tokens explains. A change that lasts
longer than a prompt makes neighbouring prompts alike, so they do not average out as independent ones would.
"""

import math

import numpy as np

from speclab.records.log import Line

FEWEST = 5  # prompts with which a line and a spread can be estimated
LONGEST_SHARE = 1 / 3  # of the series: correlations over longer distances are too uncertain to use


def residuals(lines: list[Line], baseline: list[Line]) -> dict[int, float] | None:
    """Return a dict: prompt -> log of a round's cost beyond what its drafted tokens explain; None with fewer than
    FEWEST prompts.

    The cost is in decode steps of the baseline on the same prompt; a line through cost against drafted tokens per
    round is taken out.
    """
    steps = {b.prompt_index: b.seconds / b.counts.n_emitted for b in baseline if b.counts.n_emitted}
    usable = [s for s in lines if s.counts.n_rounds and s.prompt_index in steps]
    if len(usable) < FEWEST:
        return None
    logs = [math.log(s.seconds / s.counts.n_rounds / steps[s.prompt_index]) for s in usable]
    drafted = np.array([s.counts.n_drafted / s.counts.n_rounds for s in usable])
    table = np.column_stack([np.ones(len(usable)), drafted - drafted.mean()])  # (prompts, 2)
    residual = np.array(logs) - table @ np.linalg.lstsq(table, np.array(logs))[0]
    return {s.prompt_index: float(value) for s, value in zip(usable, residual, strict=True)}


def correlation(series: list[list[float]]) -> list[float]:
    """Return the autocorrelation by distance, pooled over series in the order of time; 1 at distance 0, 0 from the
    first negative value on, and beyond LONGEST_SHARE of the series."""
    power = sum(float(np.dot(values, values)) for values in series)
    longest = max((len(values) for values in series), default=0)
    by_distance = [1.0]
    for distance in range(1, int(longest * LONGEST_SHARE) + 1):
        products = sum(
            float(np.dot(values[:-distance], values[distance:])) for values in series if len(values) > distance
        )
        if power == 0 or products <= 0:
            break
        by_distance.append(products / power)
    return by_distance


def repeat_noise(
    speedup: float,
    residuals: dict[int, float],
    shares: dict[int, float],
    places: dict[int, int],
    correlation: list[float],
) -> float:
    """Return half of the 95 % interval within which the speedup moves when the same command runs again.

    residuals: the arm's residuals over all prompts. shares: the row's prompts, each with its part of the row's seconds.
    places: prompt -> its place in time. correlation: by distance. Prompts and random numbers are held fixed; the
    difference of two runs has twice the variance of one. A state that outlasts the whole run cannot be seen in it.
    """
    variance = sum(value**2 for value in residuals.values()) / (len(residuals) - 2)  # a mean and a slope are taken out
    spread = sum(
        share * other * _at(correlation, abs(places[i] - places[j]))
        for i, share in shares.items()
        for j, other in shares.items()
    )
    return 1.96 * speedup * math.sqrt(2 * variance * max(spread, 0.0))


def _at(correlation: list[float], distance: int) -> float:
    return correlation[distance] if distance < len(correlation) else 0.0
