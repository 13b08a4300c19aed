"""`-k auto`: how far to draft is chosen in every round, from what rounds cost here and what was accepted so far.

The longest draft is not always the best one. A round with a draft of n tokens is expected to commit tokens(n) tokens
and takes seconds(n) seconds. All n are compared, since measured costs have steps:

    n that maximises  E[tokens(n)] - S * seconds(n)

S is the rate, in tokens per second, that the best fixed length is expected to reach. A drafter that works token by
token is asked again after each token, with the probability that it gave that token: then the expectation is that of
the tokens behind it.

Nothing is dropped once it is drawn. Whether a further token is drafted may depend on all that is known, the drawn
tokens included, and the output stays exact; dropping a token after it was looked at would make it wrong. For p = q =
(4/5, 1/5), dropping the second token whenever it is drawn gives (24/25, 1/25).
"""

import copy
import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling

LONGEST = 8  # tokens of a draft, unless costs say otherwise
EDGES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)  # between the ranges of the draft's probability of its own token
FIRST_GUESS = 0.7  # acceptance before anything is known
WEIGHT = 8.0  # tested tokens that a guess counts as
HIGHEST = 0.995  # acceptance that is believed
PAUSE = 8  # rounds without a draft before one token is tried again


@dataclass(frozen=True)
class RoundCosts:
    """The cost of a round in seconds by the number n of tokens that it drafts; measured here, with this draft.

    draft: [n] all of a draft of n tokens. rest: [n] everything else: the pass over n + 1 tokens, accept rule, rollback,
    host. Both from n = 0. looked_up: [n] the same as `rest` for tokens of a lookup, where that is something else: the
    draft runs a part of the target's pass itself.
    """

    draft: tuple[float, ...]
    rest: tuple[float, ...]
    looked_up: tuple[float, ...] = ()

    @property
    def longest(self) -> int:
        """Return the longest draft whose cost is known."""
        return min(len(self.draft), len(self.rest)) - 1

    @property
    def lookup_rounds(self) -> tuple[float, ...]:
        """Return [n]: the seconds of a round that drafts n tokens of a lookup, without the lookup itself."""
        return self.looked_up or self.rest

    def seconds(self, n: int) -> float:
        """Return the seconds of a whole round that drafts n tokens."""
        return self.draft[n] + self.rest[n]


def expected_tokens(chain: Sequence[float], drawn: int, survival: float) -> list[float]:
    """Return [n]: the tokens that a round with a draft of n tokens is expected to commit, n from 0. All entries up to
    `drawn` are equal.

    chain: acceptance by depth. survival: the probability that the `drawn` tokens are all accepted.
    """
    expected = [1.0] * (drawn + 1)
    for acceptance in chain[drawn:]:
        survival *= acceptance
        expected.append(expected[-1] + survival)
    return expected


def best_length(costs: RoundCosts, expected: Sequence[float], rate: float, first: int, last: int) -> int:
    """Return the n from `first` to `last` with the highest expected[n] - rate * seconds(n); the shortest among equals.

    expected: [n] tokens that a round with a draft of n tokens is expected to commit. rate: tokens per second.
    """
    return max(range(first, last + 1), key=lambda n: (expected[n] - rate * costs.seconds(n), -n))


class Tally:
    """Accepted out of tested, begun with a guess that counts as WEIGHT tested tokens."""

    def __init__(self, guess: float):
        self.tested, self.accepted = WEIGHT, WEIGHT * guess

    @property
    def rate(self) -> float:
        """Return the acceptance to expect."""
        return min(HIGHEST, self.accepted / self.tested)

    def add(self, accepted: bool) -> None:
        """Count a tested token."""
        self.tested += 1
        self.accepted += accepted


class Acceptance:
    """Counts of accepted tokens so far, at one temperature: by depth, and by the draft's probability of its own
    token."""

    def __init__(self) -> None:
        self.depths = [Tally(FIRST_GUESS) for _ in range(LONGEST)]
        middles = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
        self.ranges = [Tally(middle) for middle in middles]

    def at_depth(self, depth: int) -> Tally:
        """Return the tally of tokens at this place of a draft; the first has depth 0."""
        return self.depths[min(depth, LONGEST - 1)]

    def given(self, probability: float) -> float:
        """Return the acceptance of a drawn token to which its draft gave this probability."""
        return self.ranges[bisect(EDGES, probability)].rate

    def add(self, accepted: bool, depth: int, probability: float | None) -> None:
        """Count a tested token."""
        self.at_depth(depth).add(accepted)
        if probability is not None:
            self.ranges[bisect(EDGES, probability)].add(accepted)


class AutoLength(Wrapper):
    """Lets a drafter draft as far as it pays, and not beyond the length up to which costs are known.

    A drafter that works token by token is asked after each of them. On a GPU, where that would wait for the device, and
    for any other drafter the length is decided before the draft.

    costs: by temperature; where there are none yet, all that is asked for is drafted. Costs and what was accepted are
    kept from text to text and shared by copies.
    """

    chooses_length = True

    def __init__(self, drafter: Drafter):
        self.drafter = drafter
        self.costs: dict[float, RoundCosts] = {}
        self.seen: dict[float, Acceptance] = {}  # by temperature
        self._begin(0.0)

    def forget(self) -> None:
        """Drop the counts of what was accepted in other texts."""
        self.seen = {}

    def __deepcopy__(self, memo: dict) -> "AutoLength":
        other = type(self)(copy.deepcopy(self.drafter, memo))
        other.costs, other.seen = self.costs, self.seen
        return other

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        """Let the drafter read the prompt."""
        self._begin(sampling.temperature)
        self.drafter.prefill(target, prompt, sampling)

    def _begin(self, temperature: float) -> None:
        self._temperature = temperature
        self._acceptance = self.seen.setdefault(temperature, Acceptance())
        self._n_drafted = self._n_idle = 0
        self._probabilities: list[float] = []  # that the draft gave this round's tokens

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        """Propose at most `k` tokens. uniforms (1, k), in [0, 1)."""
        self._probabilities, n = [], k
        step_drafter = self.drafter if self.drafter.asks_to_go_on and uniforms.device.type == "cpu" else None
        if costs := self.costs.get(self._temperature):
            self._last = min(k, costs.longest)
            self._chain = [self._acceptance.at_depth(depth).rate for depth in range(costs.longest)]
            expected = expected_tokens(self._chain, 0, 1.0)
            self._rate = max(tokens / costs.seconds(n) for n, tokens in enumerate(expected))
            n = best_length(costs, expected, self._rate, 0, self._last)
            self._n_idle = self._n_idle + 1 if n == 0 else 0
            if self._n_idle == PAUSE:
                n, self._n_idle = min(1, self._last), 0
            elif n and step_drafter:
                n = self._last
        if step_drafter:
            step_drafter.keep_drafting = self._pays
        try:
            draft = self.drafter.propose(n, uniforms[:, :n])
        finally:
            if step_drafter:
                step_drafter.keep_drafting = None
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def _pays(self, probability: float) -> bool:
        """Tell whether another token pays, after one to which the draft gave this probability."""
        self._probabilities.append(probability)
        costs, drawn = self.costs.get(self._temperature), len(self._probabilities)
        if costs is None:
            return True
        survival = math.prod(self._acceptance.given(probability) for probability in self._probabilities)
        expected = expected_tokens(self._chain, drawn, survival)
        return best_length(costs, expected, self._rate, drawn, self._last) > drawn

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Count what was tested: the accepted tokens and the first rejected one."""
        for depth in range(min(n_accepted + 1, self._n_drafted)):
            probability = self._probabilities[depth] if self._probabilities else None
            self._acceptance.add(depth < n_accepted, depth, probability)
        self._n_drafted = 0
        self.drafter.observe(n_accepted, committed)
