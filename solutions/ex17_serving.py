"""Solution 17: read a server."""

from typing import NamedTuple

SPECULATION = "vllm:spec_decode_num_"
DRAFTS = SPECULATION + "drafts_total"  # rounds that drafted something
DRAFTED = SPECULATION + "draft_tokens_total"
ACCEPTED = SPECULATION + "accepted_tokens_total"


def kept_at(place: int) -> str:
    return f'{SPECULATION}accepted_tokens_per_pos_total{{position="{place}"}}'


class Curve(NamedTuple):
    rounds: int  # that drafted something
    drafted: int  # tokens
    kept: tuple[int, ...]  # rounds that kept the token at position 1, 2, ..., k


def between(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    for series, value in before.items():
        if after.get(series, -1.0) < value:
            raise ValueError(f"{series} fell from {value}, or is gone")
    return {series: value - before.get(series, 0.0) for series, value in after.items()}


def acceptance(counts: dict[str, float], k: int) -> tuple[float | None, float, float]:
    drafts, drafted, accepted = counts[DRAFTS], counts[DRAFTED], counts[ACCEPTED]
    # A round that kept its last token has rejected none; every other round has rejected exactly one.
    rejected = drafts - counts[kept_at(k - 1)]
    alpha = accepted / (accepted + rejected) if drafted == k * drafts else None
    return alpha, accepted / drafted, 1 + accepted / drafts


def from_stream(chunks: list[tuple[float, int]]) -> tuple[float, float]:
    chunks = [(seconds, n) for seconds, n in chunks if n]
    if not chunks:
        raise ValueError("the answer has no token")
    first, last = chunks[0][0], chunks[-1][0]
    n_after = sum(n for _, n in chunks[1:])
    return first, (last - first) / n_after if n_after else 0.0


def reconcile(counts: dict[str, float], own_rounds: list[tuple[int, int]], k: int) -> str:
    def counted(rounds: list[tuple[int, int]]) -> dict[str, float]:
        drafting = [(drafted, accepted) for drafted, accepted in rounds if drafted]
        own = {
            DRAFTS: len(drafting),
            DRAFTED: sum(drafted for drafted, _ in drafting),
            ACCEPTED: sum(accepted for _, accepted in drafting),
        }
        return own | {kept_at(place): sum(accepted > place for _, accepted in drafting) for place in range(k)}

    def says(rounds: list[tuple[int, int]]) -> bool:
        return all(counts[series] == n for series, n in counted(rounds).items())

    if says(own_rounds):
        return "equal"
    # There are few last rounds, so try them all; each must fit every counter, the places among them.
    if own_rounds and own_rounds[-1][0]:
        others = [(drafted, accepted) for drafted in range(1, k + 1) for accepted in range(drafted + 1)]
        if any(says([*own_rounds[:-1], last]) for last in others):
            return "last round"
    own = counted(own_rounds)
    names = {"drafts": DRAFTS, "drafted": DRAFTED}
    return next((name for name, series in names.items() if counts[series] != own[series]), "accepted")


def conditional(curve: Curve) -> list[float | None]:
    before = (curve.rounds, *curve.kept)
    return [kept / reached if reached else None for kept, reached in zip(curve.kept, before, strict=False)]


def diagnose(curve: Curve) -> str:
    accepted, k = sum(curve.kept), len(curve.kept)
    tested = curve.rounds + sum(curve.kept[:-1])  # position i + 1 was tested where position i was kept
    rates = [rate or 0.0 for rate in conditional(curve)]  # what no round reached says nothing against the draft
    if curve.rounds < 30:
        return "too few"
    if accepted / curve.drafted >= 0.9:
        return "unverified"
    if rates[0] < 0.15:
        return "states"
    if len(rates) > 1 and rates[1] < rates[0] / 2:
        return "recursion"
    if len(rates) > 2 and rates[0] > rates[1] > rates[2] and rates[2] < rates[1] * 2 / 3:
        return "independent"
    if accepted / tested < 0.55:
        return "another draft"
    if k >= 6 and sum(curve.kept[k // 2 :]) < 0.15 * accepted:
        return "k too long"
    return "fine"
