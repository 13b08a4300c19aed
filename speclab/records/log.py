"""The log of a run: one line says what one arm did with one prompt. Rows are computed from it, and from nothing else.

A decoding leaves a line behind (`Line.add`), the record keeps the lines as `raw`, and speclab/lab/rows.py makes rows of
them: in the run, and from its record once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from speclab.core.counts import Counts
from speclab.records.arms import Arm
from speclab.records.rows import Amount, ArmCounts, Count, as_written

SUMS = ("n_rounds", "n_drafted", "n_accepted", "n_rejected", "n_emitted")


class RoundCounts(NamedTuple):
    """A round's counts. looked_up: a hybrid's lookup drafted, not its model."""

    n_drafted: int
    n_accepted: int
    looked_up: bool = False


class End(NamedTuple):
    """Where an answer ends: its new tokens up to the end token, and the seconds of decoding that it took. A text
    without an end token ends with its last one."""

    n_tokens: Count
    seconds: Amount


@dataclass(kw_only=True)
class Line(ArmCounts):
    """The log of one arm on one prompt at one temperature. The lists have one entry for each repeat.

    The harness adds seconds with the digits that a record writes, so that its rows can be computed again to the last
    digit.
    """

    prompt_index: Count
    n_prompt: Count  # tokens
    prefill_seconds: list[Amount] = field(default_factory=list)
    decode_seconds: list[Amount] = field(default_factory=list)
    rounds: list[list[RoundCounts]] = field(default_factory=list)  # of a draft; absent in older records
    again: list[Count] | None = None  # the repeats that were timed once more; their seconds are means. Absent: none
    branches: bool | None = None  # whether the draft is a tree; absent: it is none
    # Whether a greedy text of the baseline ends in repetition; absent: it does not. In records that have `n_cut` it is
    # cut where that begins.
    loops: bool | None = None
    lossy_rule: str | None = None  # that judged its drafted tokens; absent: a lossless one did, or there were none
    distance: Amount | None = None  # with a lossy rule, the sum of speclab/lab/output_checks.py; absent: not measured
    own_rates: dict[str, float] | None = None  # the sums of `note_own_rates`, speclab/lab/known_texts/
    ends: list[End] = field(default_factory=list)  # of an answer in a chat; absent: not looked for
    texts: list[list[int]] = field(default_factory=list)  # new tokens; no record holds them

    @classmethod
    def begin(cls, arm: Arm, temperature: float, prompt_index: int, prompt_kind: str, n_prompt: int) -> "Line":
        return cls(
            method=arm.method,
            draft=arm.draft or None,
            draft_length=arm.draft_length,
            branches=arm.branches or None,
            temperature=temperature,
            prompt_kind=prompt_kind,
            prompt_index=prompt_index,
            n_prompt=n_prompt,
            n_rounds=0,
            n_drafted=0,
            n_accepted=0,
            n_rejected=0,
            n_emitted=0,
        )

    def add(
        self,
        prefill: float,
        decode: float,
        tokens: list[int],
        counts: Counts | None = None,
        rounds: Sequence[RoundCounts] = (),
        end: End | None = None,
    ) -> None:
        """Book one more decoding; without `counts` it made one pass for every token."""
        self.ends += [end] if end else []
        self.prefill_seconds.append(prefill)
        self.decode_seconds.append(decode)
        self.texts.append(tokens)
        self.rounds.append(list(rounds))
        counts = counts or Counts(n_rounds=len(tokens) - 1, n_emitted=len(tokens) - 1)
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.n_replays = (self.n_replays or 0) + counts.n_replays or None

    def extend(self, other: "Line") -> None:
        """Add the repeats of another line of the same arm, prompt and temperature.

        Where the other one timed repeats of this line `again`, only their seconds are averaged in: the counts stay.
        """
        if other.again:
            self._average(other, other.again)
            return
        for name in ("prefill_seconds", "decode_seconds", "texts", "rounds", "ends"):
            setattr(self, name, [*getattr(self, name), *getattr(other, name)])
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.n_replays = (self.n_replays or 0) + (other.n_replays or 0) or None

    def _average(self, other: "Line", repeats: list[int]) -> None:
        again = self.again or []
        for name in ("prefill_seconds", "decode_seconds"):
            means, once_more = list(getattr(self, name)), getattr(other, name)
            for repeat, seconds in zip(repeats, once_more, strict=True):
                n = 1 + again.count(repeat)
                means[repeat] = as_written((n * means[repeat] + seconds) / (n + 1))
            setattr(self, name, means)
        for repeat, end in zip(repeats, other.ends, strict=False):  # none where nobody looked for ends
            n, before = 1 + again.count(repeat), self.ends[repeat]
            self.ends[repeat] = End(before.n_tokens, as_written((n * before.seconds + end.seconds) / (n + 1)))
        self.again = [*again, *repeats]

    @property
    def arm(self) -> Arm:
        return Arm(self.method, self.draft or "", self.draft_length, self.auto, bool(self.branches))

    @property
    def seconds(self) -> float:
        return sum(self.decode_seconds)

    @property
    def counts(self) -> Counts:
        """Return the sums, and what the rounds add to them where they are known."""
        counts = Counts(**{name: getattr(self, name) for name in SUMS}, n_replays=self.n_replays or 0)
        for made in (made for rounds in self.rounds for made in rounds):
            counts.accepted_lengths[made.n_accepted] += 1
            counts.n_without_drafts += made.n_drafted == 0
        return counts

    def recorded(self) -> "Line":
        """Return the line as a record holds it: without texts, and without rounds where there is no draft."""
        return replace(self, texts=[], rounds=self.rounds if self.draft else [])
