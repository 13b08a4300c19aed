"""The expected number of rounds of a decoding, and their cost, computed without running it. Pure: numpy, no torch, no
clock.

Once the target's text is known, a drafted token is accepted with a probability that is known too, whatever happened in
the rounds before:

    model draft, sampling   min(1, draft_probs[token] / target_probs[token]) for the token that the target has there
    model draft, greedy     1 where both have the same first choice, else 0
    n-gram                  1 where the proposal is the token that the target has there, else 0

So the baseline's text and one pass of the draft model over it give the exact expectation of every count at every draft
length (tests/theory/test_forecast.py compares with the production decoder, enumerated in rational numbers). No average
acceptance rate is involved. That matters: hard places come in groups, and the formula for independent positions with
the same average promises several per cent too much.

A state t is the number of new tokens committed so far. Token 0 comes from prefill, so decoding starts in state 1 and
ends in state N = `n_tokens`. `accept_probs[t][n]` is the probability that the n-th token (from 0) of a proposal
made in state t is accepted, given that those before it were. A proposal may be shorter than the draft length or empty.

Not covered: accept rules that judge several drafted tokens together, drafts with branches, drafts that learn from the
rounds before (speclab/lab/known_texts/replay.py), and an end token that stops the text before N tokens.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

AcceptProbs = Sequence[Sequence[float]]  # by state; asked for the first n of a row, a row answers for a draft of n
Cost = Callable[[int, int], float]  # (tokens drafted, state) -> cost of that round, in any unit


class Forecast(NamedTuple):
    """Expectations over one decoding, the prefill token apart."""

    cost: float  # in the unit of `round_cost`; the number of rounds where none is given
    n_rounds: float
    n_drafted: float
    n_tested: float  # accepted and rejected: drafts after a rejection are never tested
    n_accepted: float
    n_rejected: float  # rounds in which not all drafts are accepted
    n_emitted: float


class ExpectedRounds(NamedTuple):
    """The rounds of one decoding, with one entry for every state that a round may begin in."""

    lengths: np.ndarray  # (states,) tokens drafted
    visits: np.ndarray  # (states,) probability that a round begins there
    full: np.ndarray  # (states,) probability that it accepts all of them and another round drafts after it
    rejected: np.ndarray  # (states,) probability that it does not accept all of them


def forecast(
    accept_probs: AcceptProbs,
    n_tokens: int,
    draft_length: int,
    round_cost: Cost | None = None,
    full_round_extra: float = 0.0,
    capped: bool = True,
    start: int = 1,
    rejected_round_extra: float = 0.0,
) -> Forecast:
    """Return exact expectations of decoding up to `n_tokens` with this draft length.

    full_round_extra: what a round costs more because the round before accepted all it drafted (at least one): the
    draft then has two tokens to read. A round that drafts nothing does not have this extra, and neither has the first.

    rejected_round_extra: what a round costs more in which not all drafts are accepted: some targets replay then.

    capped=True is production: no round drafts more than what is left but one. capped=False leaves out the effect of
    the end: rounds may run past it, `n_emitted` counts what follows it, and every full round is followed by
    another. Then n_emitted / n_rounds is tokens per round and cost / n_emitted the cost of a token of a text without
    an end. A proposal that reaches the end goes on with the one made in state `start`, as if the text began again.

    ValueError: a state without a row in `accept_probs` (unless the draft length is 0), or a probability outside 0 … 1.
    """
    if draft_length < 0 or start < 0:
        raise ValueError(f"draft length and start must be at least 0, got {draft_length} and {start}")
    rows = _proposals(accept_probs, n_tokens, draft_length, capped, start)
    return _expect(rows, start, round_cost or _one, full_round_extra, capped, rejected_round_extra)


def expected_rounds(accept_probs: AcceptProbs, n_tokens: int, draft_length: int) -> ExpectedRounds:
    """Return the rounds of `forecast`, from state 1 on: its cost is the sum over states of visits times (cost of the
    round + full x full_round_extra + rejected x rejected_round_extra).
    """
    return _visits(_proposals(accept_probs, n_tokens, draft_length, capped=True, start=1), capped=True)[0]


def oracle(
    accept_probs: AcceptProbs,
    n_tokens: int,
    longest: int,
    round_cost: Cost | None = None,
    start: int = 1,
    rejected_round_extra: float = 0.0,
) -> Forecast:
    """Return the forecast for the best draft length, 0 … `longest`, in every state: the least expected cost.

    It knows the acceptance probabilities of the text to come, so no rule that decides before anything is drawn can pass
    it. Greedy, that is every rule; when sampling, a rule that stops because of what it has drawn may pass it. It leaves
    out `full_round_extra`, which only makes the bound lower. Ties go to the shorter draft.
    """
    round_cost = round_cost or _one
    rows: list[Sequence[float]] = []
    cheapest = np.zeros(max(0, n_tokens - start) + 1)  # expected cost from state start + i to the end
    for i in reversed(range(len(cheapest) - 1)):
        proposals = [accept_probs[start + i][:m] for m in range(min(longest, n_tokens - start - i - 1) + 1)]
        ahead = [_ahead(row, cheapest[i + 1 :], rejected_round_extra) for row in proposals]
        totals = [round_cost(len(row), start + i) + then for row, then in zip(proposals, ahead, strict=True)]
        best = int(np.argmin(totals))
        cheapest[i] = totals[best]
        rows.insert(0, proposals[best])
    return _expect(rows, start, round_cost, 0.0, capped=True, rejected_round_extra=rejected_round_extra)


def _ahead(row: Sequence[float], cheapest: np.ndarray, rejected_round_extra: float) -> float:
    """Return the expected cost of what follows a round that drafts `row`: a replay, and the rest of the text, which
    costs `cheapest` after 1, 2, … tokens."""
    n = len(row)
    survival = np.cumprod(np.concatenate([[1.0], row]))  # (n + 1,) probability that the first 0 … n are accepted
    rejected = (survival[:-1] - survival[1:]) @ cheapest[:n]  # the first 0 … n - 1, then a rejection
    return float(rejected + survival[n] * cheapest[n] + rejected_round_extra * (1 - survival[n]))


def _one(n_drafted: int, state: int) -> float:
    return 1.0


def _proposals(
    accept_probs: AcceptProbs, n_tokens: int, draft_length: int, capped: bool, start: int
) -> list[Sequence[float]]:
    """Return the proposals in the states start … n_tokens - 1, as `accept_probs` gives them, each cut to
    `draft_length`."""
    if draft_length == 0:
        return [()] * max(0, n_tokens - start)
    if len(accept_probs) < n_tokens:
        raise ValueError(f"{n_tokens} tokens need acceptance probabilities for as many states, got {len(accept_probs)}")
    if not capped:
        return [_wrapped(accept_probs, t, n_tokens, draft_length, start) for t in range(start, n_tokens)]
    return [accept_probs[t][: min(draft_length, n_tokens - t - 1)] for t in range(start, n_tokens)]


def _wrapped(accept_probs: AcceptProbs, state: int, n_tokens: int, draft_length: int, start: int) -> list[float]:
    row: list[float] = []
    while True:
        piece = accept_probs[state][: draft_length - len(row)]
        row.extend(piece)
        if len(row) == draft_length or state + len(piece) < n_tokens:  # long enough, or a proposal that ends by itself
            return row
        state = start


def _visits(rows: list[Sequence[float]], capped: bool) -> tuple[ExpectedRounds, np.ndarray]:
    """Return the rounds; and (states, longest + 1) the probability that at least 0, 1, … drafts of each are
    accepted."""
    n_states = len(rows)
    lengths = np.array([len(row) for row in rows], dtype=int)
    longest = lengths.max(initial=0)
    # Probability that at least 0, 1, … drafts are accepted; 0 past the row's end.
    survival = np.zeros((n_states, longest + 1))
    survival[:, 0] = 1
    for i, row in enumerate(rows):
        survival[i, 1 : len(row) + 1] = row
    if not ((survival >= 0) & (survival <= 1)).all():
        raise ValueError("acceptance probabilities must lie in 0 … 1")
    survival = survival.cumprod(1)
    outcome = survival - np.pad(survival[:, 1:], ((0, 0), (0, 1)))  # probability of exactly 0, 1, … accepted

    # Probability that a round begins in state start + i; after the end none does.
    visits = np.zeros(n_states + longest + 1)
    visits[:1] = 1
    for i in range(n_states):
        visits[i + 1 : i + longest + 2] += visits[i] * outcome[i]
    visits = visits[:n_states]

    accepts_all = survival[np.arange(n_states), lengths]  # 1 where nothing is drafted
    full = accepts_all * (lengths > 0)
    if capped:  # does the round after a full one draft at all?
        follows = np.append(lengths, 0)[np.minimum(np.arange(n_states) + lengths + 1, n_states)] > 0
        full = full * follows
    return ExpectedRounds(lengths, visits, full, 1 - accepts_all), survival


def _expect(
    rows: list[Sequence[float]],
    start: int,
    round_cost: Cost,
    full_round_extra: float,
    capped: bool,
    rejected_round_extra: float = 0.0,
) -> Forecast:
    """Add up the rounds of every state, weighted with the probability that a round begins in it."""
    (lengths, visits, full, rejected), survival = _visits(rows, capped)
    costs = np.array([round_cost(int(n), start + i) for i, n in enumerate(lengths)], dtype=float)
    accepted = survival[:, 1:].sum(1)
    tested = survival.sum(1) - survival[np.arange(len(rows)), lengths]  # a draft is tested if all before it passed
    return Forecast(
        cost=float(visits @ (costs + full_round_extra * full + rejected_round_extra * rejected)),
        n_rounds=float(visits.sum()),
        n_drafted=float(visits @ lengths),
        n_tested=float(visits @ tested),
        n_accepted=float(visits @ accepted),
        n_rejected=float(visits @ rejected),
        n_emitted=float(visits @ (accepted + 1)),
    )
