"""The number of texts at a time beyond which speculation no longer pays. Numbers only: no torch, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from speclab.records.rows import Count, RecordPart


@dataclass(kw_only=True)
class KneeEntry(RecordPart):
    """The number of texts at a time at which the best speedup over all draft lengths falls below 1 for the last time.

    `batch` is that number, as records call it.
    """

    draft: str
    context: Count
    source: Literal["measured", "predicted", "from measured passes"]
    batch: float | None  # None: it does not, up to the largest number that was tried
    below: bool  # every number loses
    best: dict[str, list[int | float]]  # number of texts -> [best k, its speedup]


def best_k(tokens_per_second: Mapping[int, float]) -> int:
    """Return the draft length with the most tokens a second, the shortest among equals. 0 is plain decoding.

    >>> best_k({0: 100.0, 2: 130.0, 4: 130.0})
    2
    """
    return max(sorted(tokens_per_second), key=lambda k: tokens_per_second[k])


class Knee(NamedTuple):
    """The number of texts at which the best speedup over all draft lengths falls to 1.

    n_texts: texts at a time, interpolated on a logarithmic axis; None where speculation still pays, or costs nothing,
    at the largest number that was tried. below: the speedup is below 1 at every number.
    """

    n_texts: float | None
    below: bool = False


def knee(best_speedups: Mapping[int, float]) -> Knee:
    """Return the last fall below 1 of the best speedup over k, by texts at a time. A speedup of 1 is no loss.

    >>> round(knee({1: 2.0, 2: 1.5, 4: 0.75}).n_texts, 2)
    3.17
    >>> knee({1: 0.9, 2: 0.8}), knee({1: 2.0, 2: 1.5})
    (Knee(n_texts=None, below=True), Knee(n_texts=None, below=False))
    """
    tried = sorted(best_speedups)
    if all(best_speedups[n] < 1 for n in tried):
        return Knee(None, True)
    if best_speedups[tried[-1]] >= 1:
        return Knee(None)
    small = max(n for n in tried if best_speedups[n] >= 1)
    large = tried[tried.index(small) + 1]
    high, low = best_speedups[small], best_speedups[large]
    return Knee(float(small * (large / small) ** ((high - 1) / (high - low))))


def knee_of(draft: str, context: int, source: Any, speedups: Mapping[tuple[int, int], float]) -> KneeEntry:
    """Return the best length for every number of texts, and where its speedup falls below 1.

    speedups: (texts, k) -> speedup
    """
    best: dict[int, tuple[int, float]] = {}
    for n in sorted({n for n, _ in speedups}):
        by_length = {k: speedup for (n_texts, k), speedup in speedups.items() if n_texts == n}
        k = best_k(by_length)
        best[n] = k, by_length[k]
    found = knee({n: speedup for n, (_, speedup) in best.items()})
    return KneeEntry(
        draft=draft,
        context=context,
        source=source,
        batch=found.n_texts,
        below=found.below,
        best={str(n): list(pair) for n, pair in best.items()},
    )
