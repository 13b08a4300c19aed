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

import math
import re
from typing import NamedTuple

from speclab.core.counts import Counts
from speclab.extensions.servers.server_record import EngineCounts
from speclab.system.errors import EnvironmentProblem

SPECULATION = "vllm:spec_decode_num_"
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
GENERATED = "vllm:generation_tokens"
LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
POSITION = re.compile(r'position="(\d{1,6})"')
CACHE, PREFIX_CACHE = "vllm:cache_config_info", re.compile(r'enable_prefix_caching="(\w+)"')


class Look(NamedTuple):
    """The counters at one moment, the sums over all engines behind the page."""

    n_generated: int
    speculation: EngineCounts | None  # None: this server does not speculate
    prefix_cache: bool | None = None  # whether a prompt that comes again is cheaper; None: the page does not say


def read(page: str) -> Look:
    """What a /metrics page says. EnvironmentProblem where it has no counter of generated tokens: no vLLM; and where it
    ends in the middle of a line: its last counter may have lost digits."""
    if not page.endswith("\n"):
        raise EnvironmentProblem(
            "the server's /metrics page ends in the middle of a line; give the engine's own address"
        )
    sums: dict[str, int] = {}
    at: dict[int, int] = {}
    prefix_cache = None
    for match in filter(None, map(LINE.match, page.splitlines())):
        name, labels, value = match.groups()
        if name == CACHE and (says := PREFIX_CACHE.search(labels or "")):
            prefix_cache = bool(prefix_cache) or says[1] == "True"
        if not name.startswith((SPECULATION, GENERATED)) or name.endswith("_created"):
            continue
        name = name.removesuffix("_total")
        place = POSITION.search(labels or "")
        if place and name == PER_POSITION:
            at[int(place[1])] = at.get(int(place[1]), 0) + _count(value, name)
        elif not place:
            sums[name] = sums.get(name, 0) + _count(value, name)
    if GENERATED not in sums:
        raise EnvironmentProblem(f"the server's /metrics page has no {GENERATED}: is it vLLM, with its statistics on?")
    n_drafts, n_drafted, n_accepted = (
        sums.get(SPECULATION + name) for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    if n_drafts is None or n_drafted is None or n_accepted is None:
        return Look(sums[GENERATED], None, prefix_cache)
    kept = [at.get(place, 0) for place in range(len(at))]
    counts = EngineCounts(n_drafts=n_drafts, n_drafted=n_drafted, n_accepted=n_accepted, accepted_at=kept)
    _check(counts, "counters")
    return Look(sums[GENERATED], counts, prefix_cache)


def _count(text: str, name: str) -> int:
    """A counter's value, which is a whole number and never negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 <= value < 2**53 and value == int(value)):
        raise EnvironmentProblem(f"the server's /metrics page says {name} {text[:20]}, which is no count")
    return int(value)


def _check(counts: EngineCounts, what: str) -> None:
    """Raise EnvironmentProblem where counts contradict each other: no ratio of them would mean anything."""
    kept = counts.accepted_at
    if not (
        counts.n_accepted <= counts.n_drafted
        and (not kept or sum(kept) == counts.n_accepted)
        and all(one >= other for one, other in zip([counts.n_drafts, *kept], kept, strict=False))
    ):
        raise EnvironmentProblem(
            f"the server's {what} of speculation contradict each other: {counts.n_drafts} drafts of {counts.n_drafted} "
            f"tokens, {counts.n_accepted} accepted, by place {kept[:16]}"
        )


def between(before: Look, after: Look) -> EngineCounts | None:
    """What was counted between two looks. EnvironmentProblem where a counter went back: another server answered."""
    one, other = before.speculation, after.speculation
    if one is None and other is None:
        return None
    if one is None or other is None or len(one.accepted_at) != len(other.accepted_at):
        raise EnvironmentProblem("the server's counters of speculation came or went while it was measured")
    counts = EngineCounts(
        n_drafts=other.n_drafts - one.n_drafts,
        n_drafted=other.n_drafted - one.n_drafted,
        n_accepted=other.n_accepted - one.n_accepted,
        accepted_at=[new - old for old, new in zip(one.accepted_at, other.accepted_at, strict=True)],
    )
    if min(counts.n_drafts, counts.n_drafted, counts.n_accepted, *counts.accepted_at) < 0:
        raise EnvironmentProblem("a counter of the server went back: it was started again while it was measured")
    _check(counts, "differences")
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
