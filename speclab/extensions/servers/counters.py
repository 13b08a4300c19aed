"""A server's counters of speculation, as its /metrics page shows them: reading, and differences of two looks.

vLLM and llama-server count the same things under the same names, vLLM with "vllm:" before them and llama-server with
"llamacpp:":

    spec_decode_num_drafts                     rounds that drafted something
    spec_decode_num_draft_tokens               drafted tokens
    spec_decode_num_accepted_tokens            those that were kept
    spec_decode_num_accepted_tokens_per_pos    rounds that kept the token at this position of the draft
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from speclab.core.counts import Counts
from speclab.system.errors import EnvironmentProblem

GENERATED = {"vllm:": "generation_tokens", "llamacpp:": "tokens_predicted"}
NAMES = {"vllm:": "vLLM", "llamacpp:": "llama-server"}
RUNNING = {"vllm:": "num_requests_running", "llamacpp:": "requests_processing"}
WAITING = {"vllm:": "num_requests_waiting", "llamacpp:": "requests_deferred"}
SPECULATION = "spec_decode_num_"
LATENCY = "inter_token_latency_seconds"  # vLLM observes it once for each output, so once for each round
MOST_POSITIONS = 256
MOST = 2.0**53  # of any amount: whole numbers above it have gaps, and no server has run so long
SIX_DIGITS = 10**6  # llama-server prints six digits of a counter


@dataclass(kw_only=True)
class EngineCounts:
    """How far an engine's counters of speculation went on between two looks at them. accepted_at: rounds that kept the
    drafted token 1, 2, ..."""

    n_drafts: int  # rounds in which something was drafted
    n_drafted: int
    n_accepted: int
    accepted_at: list[int]

    @property
    def drafted_fraction(self) -> float | None:  # f
        return Counts(n_drafted=self.n_drafted, n_accepted=self.n_accepted).drafted_fraction

    @property
    def acceptance_rate(self) -> float | None:
        """Return alpha; None where some draft came shorter than the others: nobody knows what was tested then."""
        if not self.n_drafts or self.n_drafted != self.n_drafts * len(self.accepted_at):
            return None
        n_rejected = self.n_drafts - self.accepted_at[-1]
        return Counts(n_accepted=self.n_accepted, n_rejected=n_rejected).acceptance_rate


class Look(NamedTuple):
    """A page at one moment, the sums over all engines behind it. by_engine: what can only grow, of each of them."""

    engine: str
    n_generated: int
    speculation: EngineCounts | None  # None: this server does not speculate, or does not count it
    n_running: int  # requests that were being answered
    n_outputs: float = 0.0  # vLLM alone: outputs after the first one of each request, and the seconds before them
    output_seconds: float = 0.0
    n_waiting: float | None = None  # requests in the server's queue
    by_engine: dict[str, dict[str, float]] = {}  # noqa: RUF012 - a NamedTuple's default, which nothing changes


def read(page: str) -> Look:
    """Return what a /metrics page says. EnvironmentProblem where no known engine wrote it, and where it ends inside a
    line: its last counter may have lost digits."""
    if not page.endswith("\n"):
        raise EnvironmentProblem("a /metrics page ends in the middle of a line; take it whole, from the engine itself")
    prefix = next((name for name in GENERATED if f"\n{name}" in f"\n{page}"), None)
    if prefix is None:
        raise EnvironmentProblem("a /metrics page has no counters of vLLM or llama-server")
    sums: dict[str, float] = {}
    at: dict[int, int] = {}
    by_engine: dict[str, dict[str, float]] = {}
    for sample in _samples(page, prefix):
        name = sample.name.removeprefix(prefix).removesuffix("_total")
        value = _value(sample, prefix, whole=name == GENERATED[prefix] or name.startswith(SPECULATION))
        if name == SPECULATION + "accepted_tokens_per_pos":
            place = _position(sample)
            at[place] = at.get(place, 0) + int(value)
            name = f"{name} {place}"
        else:
            sums[name] = sums.get(name, 0) + value
        if name not in (RUNNING[prefix], WAITING[prefix]):
            own = by_engine.setdefault(sample.labels.get("engine", ""), {})
            own[name] = own.get(name, 0) + value
    if GENERATED[prefix] not in sums:
        said = (
            f"the /metrics page of {NAMES[prefix]} has no {prefix}{GENERATED[prefix]}_total: counters are switched off"
        )
        raise EnvironmentProblem(f"{said}; start it without the flag that does that")
    return Look(
        engine=NAMES[prefix],
        n_generated=int(sums[GENERATED[prefix]]),
        speculation=_speculation(sums, at),
        n_running=int(sums.get(RUNNING[prefix], 0)),
        n_outputs=sums.get(f"{LATENCY}_count", 0.0),
        output_seconds=sums.get(f"{LATENCY}_sum", 0.0),
        n_waiting=sums.get(WAITING[prefix]),
        by_engine=by_engine,
    )


def _samples(page: str, prefix: str) -> Iterable[Sample]:
    names = (SPECULATION, GENERATED[prefix], RUNNING[prefix], WAITING[prefix], f"{LATENCY}_sum", f"{LATENCY}_count")
    lines = [line for line in page.split("\n") if line.startswith(tuple(prefix + name for name in names))]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            yield from (one for one in family.samples if not one.name.endswith("_created"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())[:100]
        raise EnvironmentProblem(f"a /metrics page has a line that is no metric: {why}") from None


def _speculation(sums: dict[str, float], at: dict[int, int]) -> EngineCounts | None:
    found = [sums.get(SPECULATION + name) for name in ("drafts", "draft_tokens", "accepted_tokens")]
    if None in found:
        return None
    n_drafts, n_drafted, n_accepted = (int(value) for value in found if value is not None)
    kept = [at.get(place, 0) for place in range(max(at, default=-1) + 1)]
    counts = EngineCounts(n_drafts=n_drafts, n_drafted=n_drafted, n_accepted=n_accepted, accepted_at=kept)
    _check(counts, "counters")
    return counts


def _position(sample: Sample) -> int:
    text = sample.labels.get("position", "")
    if not (text.isdecimal() and len(text) <= 3 and int(text) < MOST_POSITIONS):
        raise EnvironmentProblem(f"a /metrics page counts accepted tokens at the position {text[:20]!r}, which is none")
    return int(text)


def _value(sample: Sample, prefix: str, whole: bool) -> float:
    """Return what a page says, which is never negative. whole: a counter, which is a whole number."""
    if not 0 <= sample.value < MOST or (whole and sample.value != int(sample.value)):
        what = "count" if whole else "amount"
        raise EnvironmentProblem(f"a /metrics page says {sample.name} {sample.value}, which is no {what}")
    if whole and prefix == "llamacpp:" and sample.value >= SIX_DIGITS and "position" not in sample.labels:
        raise EnvironmentProblem(f"llama-server prints six digits of {sample.name}, which has more; start it again")
    return sample.value


def _check(counts: EngineCounts, what: str) -> None:
    """Raise EnvironmentProblem where counts contradict each other: no ratio of them would mean anything."""
    kept = counts.accepted_at
    if not (
        counts.n_accepted <= counts.n_drafted
        and counts.n_drafts <= counts.n_drafted
        and (not kept or sum(kept) == counts.n_accepted)
        and all(one >= other for one, other in zip([counts.n_drafts, *kept], kept, strict=False))
    ):
        found = f"{counts.n_drafts} drafts, {counts.n_drafted} tokens, {counts.n_accepted} accepted, {kept[:16]}"
        raise EnvironmentProblem(f"the server's {what} of speculation contradict each other: {found}")


class Between(NamedTuple):
    """How far the counters went on between two looks."""

    n_generated: int
    speculation: EngineCounts | None
    n_outputs: float  # vLLM alone: rounds, those that drafted nothing included
    round_seconds: float | None  # vLLM alone: of an output after the first one


def between(before: Look, after: Look) -> Between:
    """Return the difference. EnvironmentProblem where a counter went back: another server answered, or a new start."""
    one, other = before.speculation, after.speculation
    n_generated = after.n_generated - before.n_generated
    counts = None
    if one or other:
        if one is None and other:  # llama-server shows no positions before its first draft, vLLM all from the start
            one = EngineCounts(n_drafts=0, n_drafted=0, n_accepted=0, accepted_at=[])
        if one is None or other is None or len(one.accepted_at) > len(other.accepted_at):
            raise EnvironmentProblem("the server's counters of speculation went away while it was measured; ask again")
        old = [*one.accepted_at, *[0] * (len(other.accepted_at) - len(one.accepted_at))]
        counts = EngineCounts(
            n_drafts=other.n_drafts - one.n_drafts,
            n_drafted=other.n_drafted - one.n_drafted,
            n_accepted=other.n_accepted - one.n_accepted,
            accepted_at=[new - was for was, new in zip(old, other.accepted_at, strict=True)],
        )
    values = [n_generated, after.n_outputs - before.n_outputs, after.output_seconds - before.output_seconds]
    if counts:
        values += [counts.n_drafts, counts.n_drafted, counts.n_accepted, *counts.accepted_at]
    if before.engine != after.engine or min(values) < 0 or _went_back(before, after):
        why = "it was started again, or several engines answer at this address"
        raise EnvironmentProblem(f"a counter of the server went back: {why}; ask one engine, and ask it again")
    if counts:
        _check(counts, "differences")
    seconds = values[2] / values[1] if values[1] else None
    return Between(n_generated, counts, values[1], seconds)


def _went_back(before: Look, after: Look) -> bool:
    """Tell whether some engine has lost a part of what it had counted. Their sum may have grown all the same."""
    return any(
        after.by_engine.get(engine, {}).get(name, -1.0) < value
        for engine, counted in before.by_engine.items()
        for name, value in counted.items()
    )


def total(parts: Iterable[EngineCounts]) -> EngineCounts:
    parts = list(parts)
    width = max((len(one.accepted_at) for one in parts), default=0)
    padded = [[*one.accepted_at, *[0] * (width - len(one.accepted_at))] for one in parts]
    return EngineCounts(
        n_drafts=sum(one.n_drafts for one in parts),
        n_drafted=sum(one.n_drafted for one in parts),
        n_accepted=sum(one.n_accepted for one in parts),
        accepted_at=[sum(places) for places in zip(*padded, strict=True)],
    )


def of_rounds(rounds: Iterable[tuple[int, int]], draft_length: int) -> EngineCounts:
    """Return the counts of rounds, each with its drafted and accepted tokens, as an engine would count them."""
    drafting = [(drafted, accepted) for drafted, accepted in rounds if drafted]
    return EngineCounts(
        n_drafts=len(drafting),
        n_drafted=sum(drafted for drafted, _ in drafting),
        n_accepted=sum(accepted for _, accepted in drafting),
        accepted_at=[sum(accepted > place for _, accepted in drafting) for place in range(draft_length)],
    )
