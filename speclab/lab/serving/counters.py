"""An engine's counters of speculation, as its /metrics page shows them: reading, differences, and what they say.

They only grow, so what a request did is a difference of two looks. The names are vLLM's:

    vllm:spec_decode_num_drafts                       rounds that drafted something
    vllm:spec_decode_num_draft_tokens                 drafted tokens
    vllm:spec_decode_num_accepted_tokens              those that were kept
    vllm:spec_decode_num_accepted_tokens_per_pos      rounds that kept the token at this place of the draft

accepted / drafted is f, the drafted fraction, which serving engines call the acceptance rate. alpha, the acceptance
rate of a tested token, follows where every draft has k tokens: then a round has a rejection unless its last token was
kept.
"""

import re
from typing import NamedTuple

from speclab.core.counts import Counts
from speclab.records.serving import EngineCounts
from speclab.system.errors import EnvironmentProblem

SPECULATION = "vllm:spec_decode_num_"
GENERATED = "vllm:generation_tokens"
LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
POSITION = re.compile(r'position="(\d+)"')


class Look(NamedTuple):
    """The counters at one moment, the sums over all engines behind the page."""

    n_generated: int
    speculation: EngineCounts | None  # None: this server does not speculate


def read(page: str) -> Look:
    """What a /metrics page says. EnvironmentProblem where it has no counter of generated tokens: no vLLM."""
    sums: dict[str, float] = {}
    at: dict[int, float] = {}
    for match in filter(None, map(LINE.match, page.splitlines())):
        name, labels, value = match.groups()
        if not name.startswith((SPECULATION, GENERATED)) or name.endswith("_created"):
            continue
        name = name.removesuffix("_total")
        place = POSITION.search(labels or "")
        if place:
            at[int(place[1])] = at.get(int(place[1]), 0.0) + _number(value, name)
        else:
            sums[name] = sums.get(name, 0.0) + _number(value, name)
    if GENERATED not in sums:
        raise EnvironmentProblem(f"the server's /metrics page has no {GENERATED}: is it vLLM, with its statistics on?")
    n_drafts, n_drafted, n_accepted = (
        sums.get(SPECULATION + name) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if n_drafts is None or n_drafted is None or n_accepted is None:
        return Look(int(sums[GENERATED]), None)
    kept = [int(at[place]) for place in sorted(at)]
    counts = EngineCounts(
        n_drafts=int(n_drafts), n_drafted=int(n_drafted), n_accepted=int(n_accepted), accepted_at=kept
    )
    return Look(int(sums[GENERATED]), counts)


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise EnvironmentProblem(f"the server's /metrics page says {name} {text[:20]}, which is no number") from None


def between(before: Look, after: Look) -> EngineCounts | None:
    """What was counted between two looks. EnvironmentProblem where a counter went back: another server answered."""
    if before.speculation is None or after.speculation is None:
        return None
    one, other = before.speculation, after.speculation
    kept = [*one.accepted_at, *[0] * len(other.accepted_at)]
    counts = EngineCounts(
        n_drafts=other.n_drafts - one.n_drafts,
        n_drafted=other.n_drafted - one.n_drafted,
        n_accepted=other.n_accepted - one.n_accepted,
        accepted_at=[new - old for old, new in zip(kept, other.accepted_at, strict=False)],
    )
    if min(counts.n_drafts, counts.n_drafted, counts.n_accepted, *counts.accepted_at) < 0:
        raise EnvironmentProblem("a counter of the server went back: it was started again while it was measured")
    return counts


def total(parts: list[EngineCounts]) -> EngineCounts:
    """The sum."""
    width = max((len(one.accepted_at) for one in parts), default=0)
    padded = [[*one.accepted_at, *[0] * (width - len(one.accepted_at))] for one in parts]
    return EngineCounts(
        n_drafts=sum(one.n_drafts for one in parts),
        n_drafted=sum(one.n_drafted for one in parts),
        n_accepted=sum(one.n_accepted for one in parts),
        accepted_at=[sum(places) for places in zip(*padded, strict=True)],
    )


def whole(counts: EngineCounts, draft_length: int) -> bool:
    """Whether every draft had all k tokens."""
    return bool(counts.n_drafts) and counts.n_drafted == counts.n_drafts * draft_length == (
        counts.n_drafts * len(counts.accepted_at)
    )


def as_counts(counts: EngineCounts, draft_length: int) -> Counts:
    """The lab's own form, which makes the ratios. Of shorter drafts than k it is not known what was tested: then
    `n_rejected` is 0, and only the drafted fraction is right.
    """
    n_rejected = counts.n_drafts - counts.accepted_at[-1] if whole(counts, draft_length) else 0
    return Counts(
        n_rounds=counts.n_drafts, n_drafted=counts.n_drafted, n_accepted=counts.n_accepted, n_rejected=n_rejected
    )


def acceptance_rate(counts: EngineCounts, draft_length: int) -> float | None:
    """alpha; None where drafts came shorter than k."""
    return as_counts(counts, draft_length).acceptance_rate if whole(counts, draft_length) else None


def acceptance_length(counts: EngineCounts) -> float | None:
    """What vLLM calls the mean acceptance length: 1 + accepted / drafts, tokens of a round that drafted."""
    return 1 + counts.n_accepted / counts.n_drafts if counts.n_drafts else None
