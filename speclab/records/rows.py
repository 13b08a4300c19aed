"""The rows of records as dataclasses: the measurements of one arm, and the results of the formulas for it."""

from dataclasses import dataclass
from typing import Any, Literal

from speclab.records.arms import AUTO

Count = int  # 0 or more
Amount = float  # 0 or more: seconds, speedups, temperatures
Share = float  # 0 to 1
Verdict = Literal["faster", "unclear", "slower"]
Facts = dict[str, Any]  # plain JSON whose keys depend on the run


def as_written(number: float) -> float:
    """Return the number as a record holds it: seven digits are more than any clock here knows."""
    return float(f"{float(number):.7g}")


class RecordPart:
    """Base of all that records are made of. When one is read, entries that its class does not have are ignored, since
    older records have more; other types and infinities are refused."""

    __pydantic_config__ = {"extra": "ignore", "strict": True, "allow_inf_nan": False}  # noqa: RUF012 - pydantic's form


@dataclass(kw_only=True)
class OwnRate(RecordPart):
    """A share that only some kind of draft has: the head of its column, and its mean over the decoded tokens."""

    name: str
    mean: Share


@dataclass(kw_only=True)
class Rung(RecordPart):
    """A step of the ladder from the book's formula to the measured speedup."""

    name: str
    speedup: Amount


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

    @property
    def auto(self) -> bool:
        """Tell whether the length was chosen in every round: records say so at the end of the draft's name."""
        return (self.draft or "").endswith(AUTO)


@dataclass(kw_only=True)
class Row(ArmCounts):
    """One arm beside the baseline on the same prompts. Costs are in decode steps of the target.

    The fields from `draft_cost` on are None until speclab/theory/attribution.py knows the costs.
    """

    target: str
    device: str
    dtype: str
    n_prompts: Count
    n_tokens: Count
    seconds: Amount  # of decoding, prefill apart
    prefill_seconds: Amount
    tokens_per_second: Amount
    speedup: Amount
    speedup_low: float | None
    speedup_high: float | None
    speedup_with_prefill: Amount
    accepted_lengths: list[Count] | None  # rounds that accepted 0, 1, ... draft_length tokens
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
    forecast_whole: float | None = None  # the forecast with whole texts in place of those that are cut; absent: none is
    forecast_tokens_per_round: float | None = None
    ladder: list[Rung] | None = None
    verdict: Verdict | None = None
    repeat_noise: float | None = None
    speedup_best_plain: float | None = None  # over ComparisonRun.best_plain, prefill included, on half of the prompts
    best_plain_low: float | None = None  # its interval
    best_plain_high: float | None = None
    oracle: float | None = None  # speedup of the best length in every round, known afterwards; of drafts on auto
    lossy_rule: str | None = None  # that judged the drafted tokens; absent: a lossless one did, or there were none
    total_variation: Share | None = None  # with a lossy rule, mean over the decoded tokens; absent: not measured
    n_without_drafts: Count | None = None  # of the rounds that accepted 0, those that drafted nothing; absent: unknown
    own_rates: list[OwnRate] | None = None  # columns that only this kind of draft has (columns.py); absent: none
