"""A server's counts of speculation: its /metrics page, the difference of two looks at it, and the rounds of a request.

vLLM and llama-server count the same things under the same names, vLLM with "vllm:" before them and llama-server with
"llamacpp:":

    spec_decode_num_drafts                     rounds that drafted something
    spec_decode_num_draft_tokens               drafted tokens
    spec_decode_num_accepted_tokens            those that were kept
    spec_decode_num_accepted_tokens_per_pos    rounds that kept the token at this position of the draft

A page counts the requests of everybody, and not how long a draft was. vLLM with --per-request-spec-decode-metrics
detailed says with each answer what every round of that request drafted and kept.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from speclab.core.counts import Counts
from speclab.system.errors import EnvironmentProblem

GENERATED = {"vllm:": "generation_tokens", "llamacpp:": "tokens_predicted"}
NAMES = {"vllm:": "vLLM", "llamacpp:": "llama-server"}
RUNNING = {"vllm:": "num_requests_running", "llamacpp:": "requests_processing"}
WAITING = {"vllm:": "num_requests_waiting", "llamacpp:": "requests_deferred"}
SPECULATION = "spec_decode_num_"
AT = f"{SPECULATION}accepted_tokens_per_pos"
LATENCY = "inter_token_latency_seconds"  # vLLM observes it once for each output, so once for each round
MOST_POSITIONS, LONGEST_POSITION = 256, 3  # of a draft, and digits of one in a page
MOST = 2.0**53  # of any amount: whole numbers above it have gaps, and no server has run so long
SIX_DIGITS = 10**6  # llama-server prints six digits of a counter

Rounds = list[tuple[int, int]]  # drafted and accepted tokens of each round


@dataclass(kw_only=True)
class EngineCounts:
    """What was drafted and kept. accepted_at: rounds that kept the drafted token 1, 2, ... tested_at: rounds that came
    to test it, where the length of each draft is known; a page does not say it."""

    n_drafts: int  # rounds in which something was drafted
    n_drafted: int
    n_accepted: int
    accepted_at: list[int]
    tested_at: list[int] = field(default_factory=list, compare=False)

    @property
    def tested(self) -> list[int]:
        """Return how many rounds tested each position. Of a page these are those that kept the position before."""
        return self.tested_at or [self.n_drafts, *self.accepted_at][: len(self.accepted_at)]

    @property
    def marginal(self) -> list[float]:
        return [kept / self.n_drafts for kept in self.accepted_at] if self.n_drafts else []

    @property
    def conditional(self) -> list[float | None]:
        return [kept / n if n else None for kept, n in zip(self.accepted_at, self.tested, strict=True)]

    @property
    def drafted_fraction(self) -> float | None:  # f
        return Counts(n_drafted=self.n_drafted, n_accepted=self.n_accepted).drafted_fraction

    @property
    def acceptance_rate(self) -> float | None:
        """Return alpha; None where a page counts some draft that was shorter: nobody knows what was tested then."""
        whole = self.n_drafted == self.n_drafts * len(self.accepted_at)
        if not self.n_drafts or not (self.tested_at or whole):
            return None
        n_rejected = sum(self.tested) - self.n_accepted
        return Counts(n_accepted=self.n_accepted, n_rejected=n_rejected).acceptance_rate


class Counted(NamedTuple):
    """What a server has counted since its start, or between two looks, the sums over all engines behind a page."""

    n_generated: int
    speculation: EngineCounts | None  # None: this server does not speculate, or does not count it
    n_outputs: float = 0.0  # vLLM alone: outputs after the first one of each request, so rounds, and their seconds
    output_seconds: float = 0.0


class Look(NamedTuple):
    """A page at one moment. by_engine: what can only grow, of each engine behind it."""

    engine: str
    total: Counted
    n_running: int = 0  # requests that were being answered
    n_waiting: float | None = None  # requests in the server's queue
    by_engine: dict[tuple[str, str], float] = {}  # noqa: RUF012 - a NamedTuple's default, which nothing changes


def read(page: str) -> Look:
    """Return what a /metrics page says. EnvironmentProblem where no known engine wrote it, and where it ends inside a
    line: its last counter may have lost digits."""
    if not page.endswith("\n"):
        raise EnvironmentProblem("a /metrics page ends in the middle of a line; take it whole, from the engine itself")
    prefix = next((name for name in GENERATED if f"\n{name}" in f"\n{page}"), None)
    if prefix is None:
        raise EnvironmentProblem("a /metrics page has no counters of vLLM or llama-server")
    generated, by_engine = GENERATED[prefix], dict[tuple[str, str], float]()
    now: dict[str, list[float]] = {RUNNING[prefix]: [], WAITING[prefix]: []}
    names = (SPECULATION, generated, *now, f"{LATENCY}_sum", f"{LATENCY}_count")
    lines = [line for line in page.split("\n") if line.startswith(tuple(prefix + name for name in names))]
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for one in (sample for sample in family.samples if not sample.name.endswith("_created")):
                name, value = one.name.removeprefix(prefix).removesuffix("_total"), one.value
                whole, at = name == generated or name.startswith(SPECULATION), one.labels.get("position", "")
                if not 0 <= value < MOST or (whole and value != int(value)) or len(at) > LONGEST_POSITION:
                    raise ValueError(f"{one.name} {value} {at[:20]}")
                if whole and prefix == "llamacpp:" and value >= SIX_DIGITS and not at:
                    raise ValueError(f"start llama-server again: it prints six digits of {one.name}")
                if name in now:
                    now[name].append(value)
                elif whole or name in names:  # not another one that begins in the same way
                    key = one.labels.get("engine", ""), f"{AT} {int(at)}" if name == AT else name
                    by_engine[key] = by_engine.get(key, 0) + value
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())[:100]
        raise EnvironmentProblem(f"a /metrics page has a line that is no metric of these: {why}") from None
    if all(name != generated for _, name in by_engine):
        said = f"the /metrics page of {NAMES[prefix]} has no {prefix}{generated}_total: counters are switched off"
        raise EnvironmentProblem(f"{said}; start it without the flag that does that")
    running, waiting = now.values()
    return Look(NAMES[prefix], _counted(by_engine), int(sum(running)), sum(waiting) if waiting else None, by_engine)


def _counted(by_engine: dict[tuple[str, str], float]) -> Counted:
    """Add the engines up. EnvironmentProblem where counts contradict each other: no ratio of them would mean
    anything."""
    sums: dict[str, float] = {}
    for (_, name), value in by_engine.items():
        sums[name] = sums.get(name, 0) + value
    n_generated = next(int(sums[name]) for name in GENERATED.values() if name in sums)
    at = {int(name.removeprefix(AT)): int(value) for name, value in sums.items() if name.startswith(AT)}
    kept = [at.get(place, 0) for place in range(max(at, default=-1) + 1)]
    found = [sums.get(SPECULATION + name) for name in ("drafts", "draft_tokens", "accepted_tokens")]
    counts = None
    if None not in found:
        n_drafts, n_drafted, n_accepted = (int(value) for value in found if value is not None)
        counts = EngineCounts(n_drafts=n_drafts, n_drafted=n_drafted, n_accepted=n_accepted, accepted_at=kept)
        falls = all(one >= other for one, other in zip([n_drafts, *kept], kept, strict=False))
        if max(n_accepted, n_drafts) > n_drafted or not falls or (kept and sum(kept) != n_accepted):
            said = f"{n_drafts} drafts, {n_drafted} tokens, {n_accepted} accepted, {kept[:16]}"
            raise EnvironmentProblem(f"the server's counters of speculation contradict each other: {said}")
    return Counted(n_generated, counts, sums.get(f"{LATENCY}_count", 0.0), sums.get(f"{LATENCY}_sum", 0.0))


def between(before: Look, after: Look) -> Counted:
    """Return the difference. EnvironmentProblem where a counter of some engine went back or away, though the sum of all
    engines may have grown: another server answered, or a new start. llama-server shows no positions before its first
    draft."""
    gone = [key for key, value in before.by_engine.items() if after.by_engine.get(key, -1.0) < value]
    if before.engine != after.engine or gone:
        why = "it was started again, or several engines answer at this address"
        raise EnvironmentProblem(f"a counter of the server went back: {why}; ask one engine, and ask it again")
    return _counted({key: value - before.by_engine.get(key, 0.0) for key, value in after.by_engine.items()})


# --- counts of rounds -------------------------------------------------------------------------------------------------


def total(parts: Iterable[EngineCounts]) -> EngineCounts:
    """Return the sum. What was tested is known where it is known of each part."""
    parts = list(parts)
    known = all(one.tested_at for one in parts)
    return EngineCounts(
        n_drafts=sum(one.n_drafts for one in parts),
        n_drafted=sum(one.n_drafted for one in parts),
        n_accepted=sum(one.n_accepted for one in parts),
        accepted_at=_sums([one.accepted_at for one in parts]),
        tested_at=_sums([one.tested_at for one in parts]) if known else [],
    )


def _sums(rows: Sequence[list[int]]) -> list[int]:
    return [sum(column) for column in itertools.zip_longest(*rows, fillvalue=0)]


def of_rounds(rounds: Iterable[tuple[int, int]], draft_length: int) -> EngineCounts:
    """Return the counts of rounds, each with its drafted and accepted tokens, as an engine would count them."""
    drafting, places = [(drafted, accepted) for drafted, accepted in rounds if drafted], range(draft_length)
    return EngineCounts(
        n_drafts=len(drafting),
        n_drafted=sum(drafted for drafted, _ in drafting),
        n_accepted=sum(accepted for _, accepted in drafting),
        accepted_at=[sum(accepted > place for _, accepted in drafting) for place in places],
        tested_at=[sum(min(accepted, drafted - 1) >= place for drafted, accepted in drafting) for place in places],
    )


def along(rounds: Rounds, draft_length: int, n_parts: int) -> list[EngineCounts]:
    """Return the counts of the parts of one text, each with about as many tokens, by where its rounds begin."""
    parts, done, length = [Rounds() for _ in range(n_parts)], 0, sum(accepted + 1 for _, accepted in rounds)
    for one in rounds:
        parts[done * n_parts // length].append(one)
        done += one[1] + 1
    return [of_rounds(part, draft_length) for part in parts]
