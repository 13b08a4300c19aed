"""`-k auto`: how far to draft is chosen in every round, from what rounds cost here and what was accepted so far.

The longest draft is not always the best one. A round with a draft of n tokens is expected to commit tokens(n) tokens
and takes seconds(n) seconds. All n are compared, since measured costs have steps:

    n that maximises  E[tokens(n)] - S * seconds(n)

S is the rate, in tokens per second, that the best fixed length is expected to reach. A drafter that works token by
token is asked again after each, with the probability that it gave that token: the expectation is then of those behind.

Nothing is dropped once it is drawn. Whether a further token is drafted may depend on all that is known, the drawn
tokens included, and the output stays exact; dropping a token after it was looked at would make it wrong. For p = q =
(4/5, 1/5), dropping the second token whenever it is drawn gives (24/25, 1/25).
"""

import copy
import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import Draft, Target
from speclab.core.sampling import Sampling

LONGEST = 8  # tokens of a draft, unless costs say otherwise
EDGES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)  # between the ranges of the draft's probability of its own token
MIDDLES = [(low + high) / 2 for low, high in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
FIRST_GUESS = 0.7  # acceptance before anything is known
MATCHES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)  # the same for a lookup, after matches of one token, two, ... and more
WEIGHT = 8.0  # tested tokens that a guess counts as
HIGHEST = 0.995  # acceptance that is believed
PAUSE = 8  # after PAUSE - 1 rounds without a draft the next one tries one token


@dataclass(frozen=True)
class RoundCosts:
    """The cost of a round in seconds by the number of tokens that it drafts, from 0; measured here, with this draft."""

    draft: tuple[float, ...]  # all of a draft
    rest: tuple[float, ...]  # everything else: the target's pass, accept rule, rollback, host

    @property
    def longest(self) -> int:
        return min(len(self.draft), len(self.rest)) - 1

    def seconds(self, n: int) -> float:
        return self.draft[n] + self.rest[n]


def expected_tokens(chain: Sequence[float], drawn: int = 0, survival: float = 1.0) -> list[float]:
    """Return [n]: the tokens that a round with a draft of n tokens is expected to commit; all up to `drawn` are equal.

    chain: acceptance by depth. survival: the probability that the `drawn` tokens are all accepted.
    """
    expected = [1.0] * (drawn + 1)
    for acceptance in chain[drawn:]:
        survival *= acceptance
        expected.append(expected[-1] + survival)
    return expected


def best_length(costs: RoundCosts, expected: Sequence[float], rate: float, first: int, last: int) -> int:
    """Return the n from `first` to `last` with the most expected[n] - rate * seconds(n); among equals the shortest."""
    return max(range(first, last + 1), key=lambda n: (expected[n] - rate * costs.seconds(n), -n))


class Tally:
    """Accepted out of tested, begun with a guess that counts as WEIGHT tested tokens."""

    def __init__(self, guess: float):
        self.tested, self.accepted = WEIGHT, WEIGHT * guess

    @property
    def rate(self) -> float:
        return min(HIGHEST, self.accepted / self.tested)

    def add(self, accepted: bool) -> None:
        self.tested += 1
        self.accepted += accepted


class Acceptance:
    """Counts of accepted tokens at a temperature: by depth, by the draft's own probability, by length of a match."""

    def __init__(self) -> None:
        self.depths = [Tally(FIRST_GUESS) for _ in range(LONGEST)]
        self.ranges = [Tally(middle) for middle in MIDDLES]
        self.matches = [Tally(guess) for guess in MATCHES]

    def chain(self, longest: int) -> list[float]:
        return [self.depths[min(depth, LONGEST - 1)].rate for depth in range(longest)]

    def given(self, probability: float) -> Tally:
        return self.ranges[bisect(EDGES, probability)]

    def after(self, matched: int) -> Tally:
        return self.matches[min(matched, len(self.matches)) - 1]


class AutoLength(Wrapper):
    """Lets a drafter draft as far as it pays, and not beyond the length up to which costs are known.

    A drafter that works token by token is asked after each of them. On a GPU, where that would wait for the device, and
    for any other drafter the length is decided before the draft. Costs and what was accepted, by temperature, are kept
    from text to text and shared by copies; without costs all is drafted. If not chooses_length, it only counts.
    """

    costs: dict[float, RoundCosts]

    def __init__(self, drafter: Drafter, chooses_length: bool = True):
        self.drafter, self.chooses_length = drafter, chooses_length
        self.costs = {}
        self.seen: dict[float, Acceptance] = {}  # by temperature
        self._begin(0.0)

    def forget(self) -> None:
        self.seen = {}

    def __deepcopy__(self, memo: dict) -> Self:
        other = copy.copy(self)
        other.drafter = copy.deepcopy(self.drafter, memo)
        return other

    def prefill(self, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        self._begin(sampling.temperature)
        self.drafter.prefill(target, prompt, sampling)

    def _begin(self, temperature: float) -> None:
        self.temperature = temperature
        self.acceptance = self.seen.setdefault(temperature, Acceptance())
        self._n_drafted = self._n_idle = 0
        self._probabilities: list[float] = []  # that the draft gave this round's tokens

    def propose(self, k: int, uniforms: Tensor) -> Draft:
        self._probabilities, n, asked = [], k, False
        if self.chooses_length and (costs := self.costs.get(self.temperature)):
            asked = self.drafter.asks_to_go_on and uniforms.device.type == "cpu"
            self._last = min(k, costs.longest)
            self._chain = self.acceptance.chain(costs.longest)
            expected = expected_tokens(self._chain)
            self._rate = max(tokens / costs.seconds(n) for n, tokens in enumerate(expected))
            n = best_length(costs, expected, self._rate, 0, self._last)
            self._n_idle = self._n_idle + 1 if n == 0 else 0
            if self._n_idle == PAUSE:
                n, self._n_idle = min(1, self._last), 0
            elif n and asked:
                n = self._last
        self.drafter.keep_drafting = self._pays if asked else None
        draft = self.drafter.propose(n, uniforms[:, :n])
        self.drafter.keep_drafting = None
        self._n_drafted = draft.tokens.shape[1]
        return draft

    def _pays(self, probability: float) -> bool:
        """Tell whether another token pays, after one to which the draft gave this probability."""
        self._probabilities.append(probability)
        costs, drawn = self.costs[self.temperature], len(self._probabilities)
        survival = math.prod(self.acceptance.given(probability).rate for probability in self._probabilities)
        expected = expected_tokens(self._chain, drawn, survival)
        return best_length(costs, expected, self._rate, drawn, self._last) > drawn

    def observe(self, n_accepted: int, committed: list[int]) -> None:
        """Count what was tested: the accepted tokens and the first rejected one."""
        for depth in range(min(n_accepted + 1, self._n_drafted)):
            self.acceptance.depths[min(depth, LONGEST - 1)].add(depth < n_accepted)
            if self._probabilities:
                self.acceptance.given(self._probabilities[depth]).add(depth < n_accepted)
        self._n_drafted = 0
        self.drafter.observe(n_accepted, committed)
