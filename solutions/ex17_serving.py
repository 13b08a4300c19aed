"""Solution 17: serving."""

import re

SPECULATION = "vllm:spec_decode_num_"
DRAFTS = SPECULATION + "drafts_total"  # rounds that drafted something
DRAFTED = SPECULATION + "draft_tokens_total"
ACCEPTED = SPECULATION + "accepted_tokens_total"
LEFT_OUT = ("engine", "model_name")  # labels that say whose a value is, not what it counts


def kept_at(place: int) -> str:
    return f'{SPECULATION}accepted_tokens_per_pos_total{{position="{place}"}}'


def read_counters(page: str) -> dict[str, float]:
    found: dict[str, float] = {}
    counts = False
    for line in page.split("\n"):
        if line.startswith("# TYPE "):
            counts = line.split()[-1] in ("counter", "histogram")
        if not counts or not line or line.startswith("#"):
            continue
        # Split at the last blank: a label's value may have some, too.
        series, number = line.rsplit(maxsplit=1)
        name = series.partition("{")[0]
        labels = [label for label in re.findall(r'\w+="[^"]*"', series) if label.partition("=")[0] not in LEFT_OUT]
        if labels:
            name += "{" + ",".join(labels) + "}"
        found[name] = found.get(name, 0.0) + float(number)
    return found


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


def predict(
    plain: float, k: int, draft_cost: float, verify_cost: float, overhead: float, tokens_per_round: float
) -> float:
    return plain * (k * draft_cost + verify_cost + overhead) / tokens_per_round


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
