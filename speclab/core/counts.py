"""Counts of rounds; and α, f and tau, which are computed from them nowhere else. Needs no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from speclab.core.rounds import Round


@dataclass
class Counts:
    """The counts of the rounds of one or more decodings, without the prefill token."""

    n_rounds: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_rejected: int = 0
    n_emitted: int = 0
    n_after_eos: int = 0  # generated after an end token, and dropped
    n_replays: int = 0  # target passes beyond one in a round: some backends read accepted tokens once more
    accepted_lengths: Counter[int] = field(default_factory=Counter)  # accepted drafts in a round -> rounds

    def add(self, round_: Round) -> None:
        if round_.prefill:
            return
        self.n_rounds += 1
        self.n_drafted += round_.n_drafted
        self.n_accepted += round_.n_accepted
        self.n_rejected += round_.n_rejected
        self.n_emitted += len(round_.tokens)
        self.n_after_eos += round_.n_after_eos
        self.n_replays += round_.n_replays
        self.accepted_lengths[round_.n_accepted] += 1

    def merge(self, other: Counts) -> None:
        for item in fields(self):  # numbers, and a Counter
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    @property
    def acceptance_rate(self) -> float | None:
        """Return alpha, accepted / tested: the maximum-likelihood estimate of a censored geometric. None: nothing
        tested. A round tests its drafts one by one up to the first rejection; those after it were never tested. Under a
        rule that judges several tokens together it is no acceptance by position."""
        n_tested = self.n_accepted + self.n_rejected
        return self.n_accepted / n_tested if n_tested else None

    @property
    def drafted_fraction(self) -> float | None:
        """Return f, accepted / drafted, which serving engines print as acceptance rate. None: nothing drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Return tau, the tokens per target pass that verifies, between 1 and k + 1. None: no round."""
        return self.n_emitted / self.n_rounds if self.n_rounds else None
