"""Solution 18: name the fault."""

from typing import NamedTuple


class Curve(NamedTuple):
    rounds: int  # that drafted something
    drafted: int  # tokens
    kept: tuple[int, ...]  # rounds that kept the token at position 1, 2, ..., k


def conditional(curve: Curve) -> list[float | None]:
    before = (curve.rounds, *curve.kept)
    return [kept / reached if reached else None for kept, reached in zip(curve.kept, before, strict=False)]


def accepted_share(curve: Curve) -> float:
    return sum(curve.kept) / curve.drafted


def diagnose(curve: Curve) -> str:
    if curve.rounds < 30:
        return "too few"
    if accepted_share(curve) >= 0.9:
        return "unverified"
    rates = [rate or 0.0 for rate in conditional(curve)]  # what no round reached says nothing against the draft
    if rates[0] < 0.15:
        return "states"
    if len(rates) > 1 and rates[1] < rates[0] / 2:
        return "recursion"
    if len(rates) > 2 and rates[0] > rates[1] > rates[2] and rates[2] < rates[1] * 2 / 3:
        return "independent"
    accepted = sum(curve.kept)
    tested = curve.rounds + sum(curve.kept[:-1])  # position i + 1 was tested where position i was kept
    if accepted / tested < 0.55:
        return "another draft"
    k = len(curve.kept)
    if k >= 6 and sum(curve.kept[k // 2 :]) < 0.15 * accepted:
        return "k too long"
    return "fine"
