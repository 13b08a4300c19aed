"""What was measured of a server, or written down by somebody: counts and seconds, and the ratios that follow."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from speclab.extensions.servers import counters
from speclab.extensions.servers.ask.engines import Asked
from speclab.extensions.servers.ask.stream import Answer
from speclab.extensions.servers.counters import Between
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.theory import formulas, positions

Interval = tuple[float, float] | None
FEWEST_TO_JUDGE = 4  # prompts, below which none of them is an exception
UNLIKE = 1.5  # times as long as the shortest prompt: the longest of those that show what reading costs


class Pair(NamedTuple):
    """One prompt: what the server that speculates answered, and the one that does not, where there is one."""

    kind: str
    prompt: str
    speculative: Asked
    plain: Asked | None

    @property
    def same_text(self) -> bool:
        """Tell whether both servers have written the same."""
        return self.plain is not None and self.plain.answer.text == self.speculative.answer.text

    @property
    def miscounted(self) -> bool:
        """Tell whether a text has one number of tokens on one server, and another one on the other. One token more may
        be the end of the text, which not every server counts."""
        return self.same_text and self.n_tokens[-1] - self.n_tokens[0] > 1

    @property
    def n_tokens(self) -> list[int]:
        """Return the tokens of the answer by each server, the smaller number first."""
        return sorted(one.answer.n_tokens for one in (self.speculative, self.plain) if one)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one server, or of a kind of prompts. Seconds are per token after the first one; None: not known.

    n_rounds: all rounds, those without a draft included. n_tokens: what these made.
    """

    counts: EngineCounts | None = None
    n_rounds: float = 0
    n_tokens: float = 0.0
    fraction: float | None = None  # f, where no counts are known
    draft_length: float | None = None  # mean drafted tokens of a round that drafts
    plain_seconds: float | None = None
    seconds: float | None = None
    round_seconds: float | None = None
    speedup_interval: Interval = None
    tokens_interval: Interval = None
    n_running: int = 0  # requests of others that were being answered
    n_timed: int = 0  # prompts whose times are taken
    n_disturbed: int = 0  # those whose times are left out
    doubt: str = ""  # why the seconds of tokens are not known, so that those of whole answers are compared
    reading_seconds: float | None = None  # of a token of a prompt on the plain server, beyond what every request costs

    @property
    def acceptance_rate(self) -> float | None:
        """Return alpha, accepted / tested tokens; None where some draft came shorter than the others."""
        counts = self.counts
        return counters.acceptance_rate(counts, len(counts.accepted_at)) if counts else None

    @property
    def drafted_fraction(self) -> float | None:
        """Return f, accepted / drafted tokens."""
        return counters.as_counts(self.counts, 0).drafted_fraction if self.counts else self.fraction

    @property
    def tokens_per_round(self) -> float | None:
        """Return tau."""
        if self.n_rounds:
            return self.n_tokens / self.n_rounds
        known = self.fraction is not None and self.draft_length
        return 1 + self.fraction * self.draft_length if known else None  # type: ignore[operator]

    @property
    def drafting_share(self) -> float:
        """Return the share of rounds that drafted something: a lookup that finds nothing leaves a plain step."""
        return min(1.0, self.counts.n_drafts / self.n_rounds) if self.counts and self.n_rounds else 1.0

    @property
    def marginal(self) -> list[float]:
        """Return the share of drafting rounds that kept each position; empty where it is not counted."""
        counts = self.counts
        return positions.marginal_rates(counts.n_drafts, counts.accepted_at) if counts and counts.n_drafts else []

    @property
    def conditional(self) -> list[float | None]:
        """Return the share of those rounds that reached each position."""
        counts = self.counts
        return positions.conditional_rates(counts.n_drafts, counts.accepted_at) if counts and counts.n_drafts else []

    @property
    def speedup(self) -> float | None:
        """Return plain seconds of a token over seconds with speculation."""
        return self.plain_seconds / self.seconds if self.plain_seconds and self.seconds else None

    @property
    def round_cost(self) -> float | None:
        """Return r, the cost of a round in plain tokens."""
        seconds = self.round_seconds
        if seconds is None and self.seconds and self.tokens_per_round:
            seconds = self.seconds * self.tokens_per_round
        return seconds / self.plain_seconds if seconds and self.plain_seconds else None

    @property
    def reading_cost(self) -> float | None:
        """Return what reading one token more of a prompt costs, in plain tokens."""
        return self.reading_seconds / self.plain_seconds if self.reading_seconds and self.plain_seconds else None


DISTURBED = 3.0  # times the median: what a round, or a plain token, of one prompt may take
MOST_DISTURBED = 0.25  # of the prompts: more of them are no exceptions, and leaving them out would flatter the server


def undisturbed(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose times may be believed: neither server took much longer for a round than it usually does.

    A round costs about the same in any text, so a prompt that took three times the median was held up by something
    else: another program, a pause, a cold start. Of fewer than four pairs all are taken, and where many took so long.
    Where no rounds are counted, the plain server alone is judged: a token with speculation takes longer wherever fewer
    are accepted.
    """
    if len(pairs) < FEWEST_TO_JUDGE:
        return list(pairs)
    counted = all(pair.speculative.counted and pair.speculative.counted.speculation for pair in pairs)
    own = [_round_seconds(pair.speculative) if counted else 0.0 for pair in pairs]
    plain = [pair.plain.answer.seconds_per_token if pair.plain else 0.0 for pair in pairs]
    ours, theirs = (DISTURBED * sorted(times)[len(times) // 2] for times in (own, plain))
    usual = [pair for pair, one, two in zip(pairs, own, plain, strict=True) if one <= ours and two <= theirs]
    return usual if len(pairs) - len(usual) <= MOST_DISTURBED * len(pairs) else list(pairs)


def _round_seconds(one: Asked) -> float:
    """Return the seconds of a round of an answer whose rounds are counted."""
    n_tokens = float(one.answer.n_tokens - 1)
    return one.answer.seconds_per_token * n_tokens / max(1.0, _n_rounds(one, n_tokens))


def doubt_of(pairs: Sequence[Pair]) -> str:
    """Return why the arrivals of the tokens do not say what one takes; "" where they do. An event is no token, and
    tokens that come behind a proxy or a filter are not seen."""
    asked = [one for pair in pairs for one in (pair.speculative, pair.plain) if one]
    uncounted = not all(one.answer.has_count for one in asked)
    for pair in pairs:
        if pair.miscounted:
            why = "one server counts none, and its events are no tokens" if uncounted else "one server counts wrongly"
            return f"equal texts have {pair.n_tokens[0]} and {pair.n_tokens[-1]} tokens: {why}"
    for one in asked:
        answer, n_rounds = one.answer, _n_rounds(one, one.answer.n_tokens - 1.0) if one.n_drafts else math.inf
        if answer.hides_tokens and answer.n_events < n_rounds:  # an event for each round is all that comes
            return f"a server counts {answer.n_tokens} tokens of an answer, and {answer.n_seen} were seen to arrive"
    alone = uncounted and all(pair.plain is None for pair in pairs)
    return "the server counts no tokens, and its events are none" if alone else ""


def of_pairs(pairs: Sequence[Pair], plain_seconds: float | None = None) -> Measured:
    """Return what the answers to some prompts say together. plain_seconds: given where no plain server was asked.

    Counts are of all prompts, and times of those that nothing disturbed. Where texts are miscounted, times are those of
    equal texts, which have as many tokens on both servers, however many these are.
    """
    doubt, timed = doubt_of(pairs), undisturbed(pairs)
    n_disturbed = len(pairs) - len(timed)
    if any(pair.miscounted for pair in pairs):
        timed = [pair for pair in timed if pair.same_text]
    whole, times = _of_pairs(pairs, plain_seconds, doubt), _of_pairs(timed, plain_seconds, doubt)
    return replace(
        whole,
        plain_seconds=times.plain_seconds,
        seconds=times.seconds,
        round_seconds=times.round_seconds,
        reading_seconds=times.reading_seconds,
        speedup_interval=times.speedup_interval,
        n_timed=len(timed),
        n_disturbed=n_disturbed,
    )


def _seconds(pair: Pair, doubt: str) -> tuple[float, float, float | None]:
    """Return tokens of an answer, their seconds, and those of as many plain tokens. In doubt all seconds of the answer
    are taken, the prompt's own pass included; those of one server alone mean nothing then."""
    one, other = pair.speculative.answer, pair.plain.answer if pair.plain else None
    if not doubt:  # A first chunk may carry several tokens, whose time is not known: all tokens but one are taken.
        n = float(one.n_tokens - 1)
        return n, one.seconds_per_token * n, other.seconds_per_token * n if other else None
    if other is None:
        return 0.0, 0.0, None
    n, n_plain = (pair.n_tokens[-1], pair.n_tokens[-1]) if pair.same_text else (one.n_tokens, other.n_tokens)
    return float(n), one.whole_seconds, other.whole_seconds * n / n_plain


def _of_pairs(pairs: Sequence[Pair], plain_seconds: float | None, doubt: str) -> Measured:
    found = [pair.speculative for pair in pairs]
    counts = [one.counted.speculation for one in found if one.counted and one.counted.speculation]
    counted = counters.total(counts) if len(counts) == len(found) else None
    tokens = [float(one.answer.n_tokens - 1) for one in found]
    times = [_seconds(pair, doubt) for pair in pairs]
    n_timed, seconds = sum(n for n, _, _ in times), [own for _, own, _ in times]
    rounds: list[float] = [float(_n_rounds(one, n)) for one, n in zip(found, tokens, strict=True)] if counted else []
    same_work = [plain for _, _, plain in times if plain is not None]
    both = len(same_work) == len(found) > 0
    has_interval = bool(rounds) and min(*rounds, *tokens) > 0
    return Measured(
        counts=counted,
        n_rounds=sum(rounds),
        n_tokens=sum(tokens) if rounds else 0.0,
        draft_length=counted.n_drafted / counted.n_drafts if counted and counted.n_drafts else None,
        plain_seconds=sum(same_work) / n_timed if both and n_timed else plain_seconds,
        seconds=sum(seconds) / n_timed if n_timed else None,
        round_seconds=sum(seconds) / sum(rounds) if n_timed and rounds and sum(rounds) else None,
        speedup_interval=formulas.ratio_interval(same_work, seconds) if both and min(seconds) > 0 else None,
        tokens_interval=formulas.ratio_interval(tokens, rounds) if has_interval else None,
        n_running=statistics.median_low([one.n_running for one in found] or [0]),
        reading_seconds=None if doubt else reading_seconds([pair.plain.answer for pair in pairs if pair.plain]),
        doubt=doubt,
    )


def reading_seconds(answers: Sequence[Answer]) -> float | None:
    """Return by how much the first token comes later for one token more of a prompt: the slope of a straight line.
    None where prompts are too few or too much alike, or where longer ones did not take longer.
    """
    lengths = [one.n_prompt - one.n_cached for one in answers if one.n_prompt]
    times = [one.first_seconds for one in answers if one.n_prompt]
    if len(lengths) < FEWEST_TO_JUDGE or max(lengths) < UNLIKE * max(1, min(lengths)):
        return None
    slope = statistics.linear_regression(lengths, times).slope
    return slope if slope > 0 else None


def _n_rounds(one: Asked, n_tokens: float) -> float:
    """Return the rounds of an answer. What its drafts do not explain came from rounds that drafted nothing."""
    counts = one.counted.speculation if one.counted else None
    assert counts
    if one.shared:  # the counts are of all requests, this one's share is not known
        made = counts.n_drafts + counts.n_accepted
        return n_tokens * counts.n_drafts / made if made else n_tokens
    return counts.n_drafts + max(0, n_tokens - counts.n_drafts - counts.n_accepted)


def _rounds_between(found: Between) -> float:
    """Return the rounds between two pages. vLLM counts its outputs, one a round. Elsewhere, tokens that no draft
    explains came from rounds that drafted nothing, but for the first token of each request, which no page counts."""
    counts = found.speculation
    if counts is None:
        return 0
    if found.n_outputs:
        return max(found.n_outputs, counts.n_drafts)
    return counts.n_drafts + max(0, found.n_generated - counts.n_drafts - counts.n_accepted)


def of_pages(found: Between, plain_seconds: float | None, seconds: float | None, n_running: int) -> Measured:
    """Return what two pages say of all requests between them, with the seconds that somebody has measured."""
    counts = found.speculation
    n_rounds = _rounds_between(found)
    made = n_rounds + counts.n_accepted if counts else 0
    if seconds is None and found.round_seconds and made:
        seconds = found.round_seconds * n_rounds / made
    return Measured(
        counts=counts,
        n_rounds=n_rounds,
        n_tokens=made,
        draft_length=counts.n_drafted / counts.n_drafts if counts and counts.n_drafts else None,
        plain_seconds=plain_seconds,
        seconds=seconds,
        n_running=n_running,
    )
