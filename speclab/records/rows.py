"""Three forms of what was measured: Round -> Decoded -> Row.

A loop yields rounds. What one arm did with one prompt is a `Decoded`, which a record keeps as `raw`. What rows have
measured is computed from these alone, by speclab/lab/rows.py; predictions need costs and texts as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from speclab.core.counts import Counts

Count = int  # 0 or more
Amount = float  # 0 or more: seconds, speedups, temperatures
Share = float  # 0 to 1
Verdict = Literal["faster", "unclear", "slower"]
Facts = dict[str, Any]  # plain JSON whose keys depend on the run

AUTO = " auto"  # at the end of a draft's name: its length changes from round to round
LOOKUP = ", lookup"  # at the end of a draft's name: the costs are those of the rounds in which a hybrid's lookup drafts


def as_written(number: float | str) -> float:
    """Return the number as a record holds it: seven digits are more than any clock here knows."""
    return float(f"{float(number):.7g}")


@dataclass(frozen=True)
class Arm:
    """One way to decode."""

    method: str  # "baseline", "generate" or a draft kind
    draft: str = ""  # name of the draft, as the user may type it; the baseline has none
    draft_length: int = 0  # where it is chosen in every round: the longest
    auto: bool = field(default=False, compare=False)  # whether the length is chosen in every round
    branches: bool = field(default=False, compare=False)  # whether a draft may have several tokens for one place

    @property
    def speculative(self) -> bool:
        return bool(self.draft)

    @property
    def label(self) -> str:
        return f"{self.method} k={self.draft_length}" if self.speculative and not self.auto else self.method


BASELINE, BASELINE_REPEAT, GENERATE = Arm("baseline"), Arm("baseline again"), Arm("generate")
INSTRUMENT, CONTROL = "instrument", "control"  # methods of decodings that no row is made of: see lab/harness.py


class RecordPart:
    """Base of all that records are made of. Entries that its class does not have are ignored, since older records have
    more; other types and infinities are refused."""

    __pydantic_config__ = {"extra": "ignore", "strict": True, "allow_inf_nan": False}  # noqa: RUF012 - pydantic's form


@dataclass(kw_only=True)
class ArmCounts(RecordPart):
    """One arm on one or more prompts, and the sums over its rounds, the prefill token apart."""

    method: str
    draft: str | None
    draft_length: Count
    temperature: Amount
    prompt_kind: str
    n_rounds: Count
    n_drafted: Count
    n_accepted: Count
    n_rejected: Count
    n_emitted: Count
    n_replays: Count | None = None  # passes beyond one a round, over accepted tokens (recurrent layers)
    n_texts: Count = 1  # that were decoded side by side

    @property
    def auto(self) -> bool:
        """Tell whether the length was chosen in every round: records say so at the end of the draft's name."""
        return (self.draft or "").endswith(AUTO)


SUMS = ("n_rounds", "n_drafted", "n_accepted", "n_rejected", "n_emitted")


class RoundCounts(NamedTuple):
    """A round's counts."""

    n_drafted: int
    n_accepted: int
    looked_up: bool = False  # a hybrid's lookup drafted, not its model


@dataclass(kw_only=True)
class Decoded(ArmCounts):
    """What one arm did with one prompt at one temperature. The lists have one entry for each repeat. The seconds have
    the digits that a record writes, so that rows can be computed again to the last digit."""

    prompt_index: Count
    n_prompt: Count  # tokens
    prefill_seconds: list[Amount] = field(default_factory=list)
    decode_seconds: list[Amount] = field(default_factory=list)
    rounds: list[list[RoundCounts]] = field(default_factory=list)  # of a draft; absent in older records
    branches: bool | None = None  # whether the draft is a tree; absent: it is none
    loops: bool | None = None  # whether a greedy text of the baseline ends in repetition and is cut where that begins
    lossy_rule: str | None = None  # that judged its drafted tokens; absent: a lossless one did, or there were none
    distance: Amount | None = None  # with a lossy rule, the sum of extensions/rules/distance.py; absent: not measured
    texts: list[list[int]] = field(default_factory=list)  # new tokens; no record holds them

    @classmethod
    def begin(cls, arm: Arm, temperature: float, prompt_index: int, prompt_kind: str, n_prompt: int) -> "Decoded":
        its: Facts = {"method": arm.method, "draft": arm.draft or None, "draft_length": arm.draft_length}
        its |= dict.fromkeys(SUMS, 0) | {"temperature": temperature, "prompt_kind": prompt_kind}
        return cls(**its, branches=arm.branches or None, prompt_index=prompt_index, n_prompt=n_prompt)

    def add(
        self, prefill: float, decode: float, tokens: list[int], counts: Counts | None = None, rounds: Sequence = ()
    ) -> None:
        """Book one more repeat; without `counts` it made one pass for every token."""
        self.prefill_seconds.append(as_written(prefill))
        self.decode_seconds.append(as_written(decode))
        self.texts.append(tokens)
        self.rounds.append(list(rounds))
        counts = counts or Counts(n_rounds=len(tokens) - 1, n_emitted=len(tokens) - 1)
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.n_replays = (self.n_replays or 0) + counts.n_replays or None

    @property
    def arm(self) -> Arm:
        return Arm(self.method, self.draft or "", self.draft_length, self.auto, bool(self.branches))

    @property
    def seconds(self) -> float:
        return sum(self.decode_seconds)

    @property
    def counts(self) -> Counts:
        return Counts(**{name: getattr(self, name) for name in SUMS}, n_replays=self.n_replays or 0)

    def recorded(self) -> "Decoded":
        """Return it as a record holds it: without texts, and without rounds where there is no draft."""
        return replace(self, texts=[], rounds=self.rounds if self.draft else [])


def lookup_shares(decoded: list[Decoded]) -> dict[tuple[str, int, float], dict[str, float]]:
    """Return in which share of its rounds the lookup of each hybrid drafted: on all prompts, and on each kind of them.
    -> share by kind, by draft, length and temperature"""
    made: dict[tuple[str, int, float], dict[str, list[bool]]] = {}
    for line in decoded:
        for kind in ("all", line.prompt_kind) * bool(line.draft):
            rounds = made.setdefault((line.method, line.draft_length, line.temperature), {}).setdefault(kind, [])
            rounds += [one.looked_up for repeat in line.rounds for one in repeat]
    return {
        arm: {kind: sum(rounds) / len(rounds) for kind, rounds in kinds.items() if rounds}
        for arm, kinds in made.items()
        if any(kinds["all"])
    }


@dataclass(kw_only=True)
class Rung(RecordPart):
    """A step of the ladder from the book's formula to the measured speedup."""

    name: str
    speedup: Amount


@dataclass(kw_only=True)
class Noise(RecordPart):
    """The ratio of the baseline's time to that of its own second run at one temperature."""

    temperature: Amount
    ratio: Amount
    low: float | None
    high: float | None
    n_texts: Count = 1  # that were decoded side by side


@dataclass(kw_only=True)
class Row(ArmCounts):
    """One arm beside the baseline on the same prompts. Costs are in decode steps of the target.

    From `draft_cost` to `ladder` fields are None until speclab/theory/attribution.py knows the costs. `draft_cost` is
    of a drafted token, `verify_cost` and `overhead` are of a round.
    """

    n_prompts: Count
    seconds: Amount  # of decoding, prefill apart
    tokens_per_second: Amount  # of `generate` all tokens over all seconds, the prompt's pass included
    speedup: Amount  # a quotient of sums over all prompts and repeats, prefill apart
    speedup_low: float | None
    speedup_high: float | None
    speedup_with_prefill: Amount
    acceptance_rate: Share | None
    drafted_fraction: Share | None
    tokens_per_round: float | None
    book_formula: float | None
    book_formula_drafted_fraction: float | None
    same_as_baseline: bool | None  # None when sampled
    draft_cost: float | None = None
    verify_cost: float | None = None
    overhead: float | None = None
    leviathan: float | None = None
    cost_model: float | None = None
    accounting: float | None = None
    forecast: float | None = None
    forecast_tokens_per_round: float | None = None
    ladder: list[Rung] | None = None
    verdict: Verdict | None = None
    lossy_rule: str | None = None  # that judged the drafted tokens; absent: a lossless one did, or there were none
    total_variation: Share | None = None  # with a lossy rule, mean over the decoded tokens; absent: not measured
