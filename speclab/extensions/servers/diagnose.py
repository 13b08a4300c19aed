"""Why is it not faster? What was measured, the shape of its curve, one of four answers with the two numbers behind it,
the next thing to try, and the causes that are left. Pure: answers and counts in, words out.

A round brings tau tokens and costs r plain tokens, and the speedup is tau / r. Where it is no gain, the answer names
the side that is farther from what is usual, which brings more when it is mended: a draft whose tested tokens are
accepted seven times in ten, and a round that costs a tenth of a plain token more for each drafted one. Where a shorter
draft is expected to pay, and its first token is kept at least every other time, the round costs too much. Where not
one first token in ten is kept, the draft is what is wrong, and so it is where its curve has a shape that only a fault
makes, however fast the server is. Later positions that are kept more often than the first one are such a shape only
inside the kinds of prompts: easy and hard texts together have it, too. A draft that is kept seldom, and pays, may be
weak, which is no fault. A lookup that finds nothing to draft in most rounds is neither rejected nor dear.

A shape is named only where a share of rounds is beyond a line by two standard errors, the spread that so many
independent rounds have (docs/acceptance-curves.md). Several faults leave the same trace in texts, times and counts, so
at most two causes are named, the likelier one first, with what tells them apart.
"""

import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import tabulate

from speclab.extensions.servers import counters, positions
from speclab.extensions.servers.client import Answer, Asked, Pair
from speclab.extensions.servers.counters import Between, EngineCounts
from speclab.theory import formulas

# --- causes: a closed list --------------------------------------------------------------------------------------------

STATES = "the draft reads other states of the target than it was trained with, or is one place off"
DAMAGED = "the draft's weights or settings are damaged, quantised too far, or not loaded"
FOREIGN = "the draft was made for another model or for other texts, or was never trained"
PARTIAL = "the draft knows a part of the texts: some rounds keep much, and others nothing"
FEEDBACK = "what the draft feeds back into its second pass is the wrong state or token"
SHALLOW = "the draft's later positions are untrained, or do not know of each other"
WIDE_PASS = "the target's pass over several tokens is wrong: its mask, its positions or its rows"
LENIENT = "tokens are kept that the target does not choose: a lenient rule, or nothing is verified"
SAMPLES = "the server samples where it is asked greedily"
DEFAULTS = "a server's sampling default changes the text: a penalty, a filter, a seeded temperature"
OTHER_TARGET = "the two servers run different targets: other weights, another precision or template"
SHORT = "the draft's context, its window or a buffer of its states ends"
UNCACHED = "the draft's states are not stored with a cached prompt of the target"
SAME_TEXT = "the text is a loop, or the draft is the target itself or nearly as good"
LITTLE = "the texts repeat little, so that what the lookup finds is seldom what comes next"
STOPS = "a threshold that ended drafts early has another default"
TOO_LONG = "k is too long for this draft"
DEAR_DRAFT = "drafting is dear: the draft is too large or too deep, or runs without the target's kernels"
DEAR_PASS = "the target's pass over k + 1 tokens is dear on this machine, or what surrounds it is"
BUSY = "other requests fill the batch"

# What a kind of draft cannot have: a draft model sees tokens alone, and a lookup has neither weights nor states.
KINDS = ("model", "head", "lookup")
NO_MODEL = frozenset({STATES, SHALLOW, LITTLE})
NO_LOOKUP = frozenset({STATES, SHALLOW, DAMAGED, FOREIGN, FEEDBACK, UNCACHED, DEAR_DRAFT})
IMPOSSIBLE = {"": frozenset({LITTLE}), "model": NO_MODEL, "head": frozenset({LITTLE}), "lookup": NO_LOOKUP}


class Named(NamedTuple):
    """causes: the likelier first. tell: what tells two of them apart, or shows the one."""

    causes: tuple[str, ...]
    tell: str


# --- what was measured ------------------------------------------------------------------------------------------------

Interval = tuple[float, float] | None
FEWEST_TO_JUDGE = 4  # prompts, below which none of them is an exception
UNLIKE = 1.5  # times as long as the shortest prompt: the longest of those that show what reading costs
DISTURBED = 3.0  # times the median: what a round, or a plain token, of one prompt may take
MOST_DISTURBED = 0.25  # of the prompts: more of them are no exceptions, and leaving them out would flatter the server


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
    def drafted_fraction(self) -> float | None:  # f
        return self.counts.drafted_fraction if self.counts else self.fraction

    @property
    def tokens_per_round(self) -> float | None:  # tau
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
    def conditional(self) -> list[float | None]:  # of the rounds that reached it
        counts = self.counts
        return positions.conditional_rates(counts.n_drafts, counts.accepted_at) if counts and counts.n_drafts else []

    @property
    def speedup(self) -> float | None:
        return self.plain_seconds / self.seconds if self.plain_seconds and self.seconds else None

    @property
    def round_cost(self) -> float | None:  # r, in plain tokens
        seconds = self.round_seconds
        if seconds is None and self.seconds and self.tokens_per_round:
            seconds = self.seconds * self.tokens_per_round
        return seconds / self.plain_seconds if seconds and self.plain_seconds else None


def undisturbed(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs whose times may be believed. A round costs about the same in any text, so a prompt that took
    three times the median was held up by something else. Of few pairs all are taken, and where many took so long.
    Where no rounds are counted, the plain server alone is judged: a token with speculation takes longer wherever fewer
    are accepted."""
    if len(pairs) < FEWEST_TO_JUDGE:
        return list(pairs)
    counted = all(pair.speculative.counts for pair in pairs)
    own = [_round_seconds(pair.speculative) if counted else 0.0 for pair in pairs]
    plain = [pair.plain.answer.seconds_per_token if pair.plain else 0.0 for pair in pairs]
    ours, theirs = (DISTURBED * sorted(times)[len(times) // 2] for times in (own, plain))
    usual = [pair for pair, one, two in zip(pairs, own, plain, strict=True) if one <= ours and two <= theirs]
    return usual if len(pairs) - len(usual) <= MOST_DISTURBED * len(pairs) else list(pairs)


def _round_seconds(one: Asked) -> float:
    n_tokens = float(one.answer.n_tokens - 1)
    return one.answer.seconds_per_token * n_tokens / max(1.0, n_rounds_of(one, n_tokens))


def n_rounds_of(one: Asked, n_tokens: float) -> float:
    """Return the rounds of an answer. What its drafts do not explain came from rounds that drafted nothing."""
    counts = one.counts
    assert counts
    if one.shared:  # the counts are of all requests, this one's share is not known
        made = counts.n_drafts + counts.n_accepted
        return n_tokens * counts.n_drafts / made if made else n_tokens
    return counts.n_drafts + max(0, n_tokens - counts.n_drafts - counts.n_accepted)


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
        answer, drafts = one.answer, one.counts and one.counts.n_drafts
        n_rounds = n_rounds_of(one, answer.n_tokens - 1.0) if drafts else math.inf
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
    kept = {name: getattr(whole, name) for name in ("counts", "n_rounds", "n_tokens", "draft_length", "n_running")}
    return replace(times, **kept, tokens_interval=whole.tokens_interval, n_timed=len(timed), n_disturbed=n_disturbed)


def _seconds(pair: Pair, doubt: str) -> tuple[float, float, float | None]:
    """Return tokens of an answer, their seconds, and those of as many plain tokens. In doubt all seconds of the answer
    are taken, the prompt's own pass included; those of one server alone mean nothing then."""
    one, other = pair.speculative.answer, pair.plain.answer if pair.plain else None
    if not doubt:  # A first chunk may carry several tokens, whose time is not known: all tokens but one are taken.
        n = float(one.n_tokens - 1)
        return n, one.seconds_per_token * n, other.seconds_per_token * n if other else None
    if other is None:
        return 0.0, 0.0, None
    n, n_plain = pair.n_tokens[-1:] * 2 if pair.same_text else (one.n_tokens, other.n_tokens)
    return float(n), one.whole_seconds, other.whole_seconds * n / n_plain


def _of_pairs(pairs: Sequence[Pair], plain_seconds: float | None, doubt: str) -> Measured:
    found = [pair.speculative for pair in pairs]
    counted = total_of(found, shared=True)
    tokens = [float(one.answer.n_tokens - 1) for one in found]
    times = [_seconds(pair, doubt) for pair in pairs]
    n_timed, seconds = sum(n for n, _, _ in times), [own for _, own, _ in times]
    rounds: list[float] = [float(n_rounds_of(one, n)) for one, n in zip(found, tokens, strict=True)] if counted else []
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


def total_of(asked: Sequence[Asked], shared: bool = False) -> EngineCounts | None:
    """Return the counts of some answers together; None where one of them has none, or, unless they may be shared,
    others asked meanwhile."""
    found = [one.counts for one in asked if one.counts and (shared or not one.shared)]
    return counters.total(found) if found and len(found) == len(asked) else None


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


def of_pages(found: Between, plain_seconds: float | None, seconds: float | None, n_running: int) -> Measured:
    """Return what two pages say of all requests between them, with the seconds that somebody has measured. vLLM counts
    its outputs, one a round. Elsewhere, tokens that no draft explains came from rounds that drafted nothing, but for
    the first token of each request, which no page counts."""
    counts, n_rounds, made = found.speculation, 0.0, 0.0
    if counts:
        others = max(0, found.n_generated - counts.n_drafts - counts.n_accepted)
        n_rounds = max(found.n_outputs, counts.n_drafts) if found.n_outputs else counts.n_drafts + others
        made = n_rounds + counts.n_accepted
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


# --- shapes of a curve ------------------------------------------------------------------------------------------------

FEWEST = 30  # rounds, below which nothing is named
ERRORS = 2.0  # standard errors by which a share must be on one side
NONE_KEPT, GOOD_START, LOW_RATE, ALL_KEPT = 0.15, 0.3, 0.55, 0.8  # of rounds; LOW_RATE of tested tokens
AT_ALL = 0.01  # of rounds: a draft that keeps fewer knows nothing of the language
CLIFF_SHARE, FALL_SHARE = 0.5, 2 / 3  # of what the other share is
OFTENER = 1.5  # times as often rejected at the first position as at the later ones
ALWAYS = 0.9  # of the rounds: a model or a head drafts in all of them, a lookup does not
FEWER, AS_MANY = 0.8, 0.95  # f that falls, and accepted tokens of a round that do not
WHOLE_DRAFTS = 0.8  # of k: where drafts are shorter than that, positions behind the first say little
LONG, LONG_TAIL, RARELY = 6, 0.15, 0.1  # k; what its second half brings of all accepted tokens; its last position
TWICE = 2  # times as long as short texts are long ones


class Shape(NamedTuple):
    """A shape in words. causes: the likelier first; two are shown. tell: how to tell them apart. then: the next step.
    faulty: a draft with a fault has it, and easy texts beside hard ones do not make it, so that it counts however fast
    the server is."""

    name: str
    causes: tuple[str, ...]
    tell: str
    then: str
    faulty: bool = False


class Share(NamedTuple):
    """So many of so many."""

    part: int
    whole: int

    @property
    def rate(self) -> float:
        """Return the share, drawn a little to one half, so that few counts are never certain."""
        return (self.part + 1) / (self.whole + 2)

    @property
    def variance(self) -> float:  # the square of its standard error
        return self.rate * (1 - self.rate) / (self.whole + 3)

    @property
    def rejected(self) -> "Share":
        return Share(self.whole - self.part, self.whole)

    def under(self, limit: float) -> bool:
        return self.rate + ERRORS * math.sqrt(self.variance) < limit

    def above(self, limit: float) -> bool:
        return self.rate - ERRORS * math.sqrt(self.variance) > limit

    def less(self, other: "Share", factor: float) -> bool:
        """Tell whether it is below `factor` times the other one."""
        spread = math.sqrt(self.variance + factor**2 * other.variance)
        return factor * other.rate - self.rate > ERRORS * spread


ZERO = Shape(
    "nothing is kept from the first position on",
    (STATES, DAMAGED, FOREIGN),
    "a log names missing weights, and the draft's page its target",
    "see the draft's target, its vocabulary, the loader's log; of a head its layers and its offset",
    faulty=True,
)
CLIFF = Shape(
    "a cliff after the first position",
    (FEEDBACK, WIDE_PASS),
    "greedy texts differ from those without speculation where it is the target's pass",
    "compare the draft's second pass with its training code on one text",
    faulty=True,
)
RISING = Shape(  # of easy and hard rounds together, the easy ones reach the later positions: so of any sound draft
    "the first position is rejected more often than those behind it",
    (PARTIAL, STATES),
    "by the kinds in the table, or prompts of one kind alone: a draft that knows a part of them is level in those",
    "a draft that was trained on all of these kinds; ask each kind by itself to see which one it lacks",
)
RISING_INSIDE = Shape(
    "the first position is rejected more often than those behind it, inside the kinds, too",
    (STATES, PARTIAL),
    "texts of one sort alone, with --texts: a draft that knows a part of them is level in those",
    "check the layers that the draft reads, and their order, against its configuration",
    faulty=True,
)
FALLING = Shape(
    "each position is kept less often than the one before",
    (SHALLOW, TOO_LONG),
    "a draft that goes token by token keeps its rate in the same texts",
    "a shorter k; a head whose tokens follow each other (Markov, causal), or training on its own outputs",
)
LATE = Shape(
    "the last positions bring next to nothing",
    (TOO_LONG,),
    "the rate of the rounds that reach a position stays, and few rounds reach the last ones",
    "a shorter k",
)
ALL = Shape(
    "everything is kept",
    (SAME_TEXT, LENIENT),
    "read the texts, and compare them with those of the server without speculation",
    "prompts that do not repeat themselves; where texts differ, do not use this server",
)
LOW = Shape(
    "low, and neither zero nor a cliff",
    (FOREIGN, DAMAGED),
    "the prompts that the draft was published with: a foreign draft is fine there",
    "a draft that was trained on texts of this very target",
)
FORGETS = Shape(
    "the second request for a prompt is kept far less often than the first",
    (UNCACHED,),
    "the same prompt after a new start, or with the prefix cache switched off, is fine",
    "switch the prefix cache off",
    faulty=True,
)
ENDS = Shape(
    "fine in short texts, and less than half of that in long ones",
    (SHORT,),
    "cut the same texts shorter: acceptance comes back",
    "a draft with a longer context, or no speculation for longer texts",
    faulty=True,
)
THRESHOLD = Shape(
    "f has fallen, and accepted tokens per round have not",
    (STOPS,),
    "drafted tokens per round have grown; f counts every token that was drafted",
    "compare tokens per round and seconds, not f; set the threshold by hand",
)


def shapes_of(
    pairs: Sequence[Pair], again: Sequence[Asked], whole: Measured, kinds: dict[str, Measured]
) -> list[Shape]:
    """Return the shapes of two curves where they have one, and of the one curve otherwise. again: what the first
    prompts got when they were asked once more."""
    first, second = total_of([pair.speculative for pair in pairs[: len(again)]]), total_of(again)
    found = [shape_of_two(first, second, FORGETS) if first and second else None, shape_of_lengths(_lengths(pairs))]
    if (counts := whole.counts) and not any(found):
        found.append(shape_of(counts, whole.n_rounds, [one.counts for one in kinds.values() if one.counts]))
    return [shape for shape in found if shape]


def shape_of(counts: EngineCounts, n_rounds: float = 0, kinds: Sequence[EngineCounts] = ()) -> Shape | None:
    """Return the shape of one curve; None where it is fine, or where its counts are too few to say.

    n_rounds: all rounds, those without a draft included; 0 where only those that draft are known. kinds: the same
    counts by kind of prompt, where they are known.
    """
    kept, n = counts.accepted_at, counts.n_drafts
    if not kept or n < FEWEST:
        return None
    first = Share(kept[0], n)
    if Share(kept[-1], n).above(ALL_KEPT):  # rounds that kept all: their tokens do not depend on each other
        return ALL
    if first.under(NONE_KEPT):
        return ZERO
    if counts.n_drafted < WHOLE_DRAFTS * n * len(kept):
        return None  # what the later positions were asked for is not known
    if len(kept) > 1 and Share(kept[1], kept[0]).less(first, CLIFF_SHARE):
        return CLIFF
    if len(kept) > 2 and kept[0] * kept[0] > kept[1] * n and Share(kept[2], kept[1]).less(first, FALL_SHARE):
        return FALLING
    if n >= ALWAYS * n_rounds and _later(counts).rejected.less(first.rejected, 1 / OFTENER):
        return RISING_INSIDE if _rises_inside(kinds) else RISING
    if Share(counts.n_accepted, n + sum(kept[:-1])).under(LOW_RATE):
        return LOW
    tail = sum(kept[len(kept) // 2 :])
    if len(kept) >= LONG and tail < LONG_TAIL * counts.n_accepted and Share(kept[-1], n).under(RARELY):
        return LATE
    return None


def _rises_inside(kinds: Sequence[EngineCounts]) -> bool:
    """Tell whether the first position is rejected more often inside the kinds, all of them taken together. One kind is
    no proof: nothing says that its texts are alike."""
    enough = [one for one in kinds if one.n_drafts >= FEWEST and one.accepted_at]
    pairs = [(_later(one).rejected, _first(one).rejected) for one in enough]
    return len(enough) > 1 and _less_inside(pairs, 1 / OFTENER)


def shape_of_two(earlier: EngineCounts, later: EngineCounts, what: Shape) -> Shape | None:
    """Return `what` where the first position is kept far less often later: FORGETS and ENDS are told by that, where
    both curves are of the same texts."""
    if not (earlier.n_drafts and later.n_drafts and earlier.accepted_at and later.accepted_at):
        return None
    good = _first(earlier).above(GOOD_START)
    return what if good and _first(later).less(_first(earlier), CLIFF_SHARE) else None


def fell_by_threshold(earlier: EngineCounts, later: EngineCounts) -> Shape | None:
    """Return THRESHOLD where f fell and accepted tokens per round did not."""
    before, after = (Share(one.n_accepted, one.n_drafted) for one in (earlier, later))
    as_many = later.n_accepted * earlier.n_drafts >= AS_MANY * earlier.n_accepted * later.n_drafts
    return THRESHOLD if after.less(before, FEWER) and as_many else None


def shape_of_lengths(kinds: Sequence[tuple[EngineCounts, EngineCounts]]) -> Shape | None:
    """Return ENDS where the first position is kept far less often in long texts than in short ones of the same kind.

    kinds: of each kind of prompt the counts in short texts, and in long ones.
    """
    known = [both for both in kinds if all(one.n_drafts and one.accepted_at for one in both)]
    first = Share(sum(short.accepted_at[0] for short, _ in known), sum(short.n_drafts for short, _ in known))
    shares = [(_first(long), _first(short)) for short, long in known]
    return ENDS if known and first.above(GOOD_START) and _less_inside(shares, CLIFF_SHARE) else None


def _lengths(pairs: Sequence[Pair]) -> list[tuple[EngineCounts, EngineCounts]]:
    """Return of each kind the counts in the third with the shortest texts, and in that with the longest, where these
    are TWICE as long and both are known. A text is the prompt, as the server counts it, and its answer."""

    def length(pair: Pair) -> int:
        return pair.speculative.answer.n_prompt + pair.speculative.answer.n_tokens

    found = []
    for kind in {pair.kind: None for pair in pairs}:
        ordered = sorted((pair for pair in pairs if pair.kind == kind), key=length)
        n = len(ordered) // 3
        short, long = ordered[:n], ordered[len(ordered) - n :]
        if n and short[0].speculative.answer.n_prompt and length(long[0]) >= TWICE * length(short[-1]):
            one, other = (total_of([pair.speculative for pair in part]) for part in (short, long))
            found += [(one, other)] if one and other else []
    return found


def _first(counts: EngineCounts) -> Share:
    return Share(counts.accepted_at[0], counts.n_drafts)


def _later(counts: EngineCounts) -> Share:
    """Return what was kept behind the first position, of what was tested there."""
    return Share(sum(counts.accepted_at[1:]), sum(counts.accepted_at[:-1]))


def _less_inside(pairs: Sequence[tuple[Share, Share]], factor: float) -> bool:
    """Tell whether the first share of the pairs is below `factor` times the second one, each pair compared in itself.

    The differences are added with the weights of Mantel and Haenszel, n m / (n + m). Where no pair differs in truth,
    the sum does not, however the pairs differ from each other.
    """
    weights = [share.whole * other.whole / max(1, share.whole + other.whole) for share, other in pairs]
    found = list(zip(weights, pairs, strict=True))
    difference = sum(weight * (factor * other.rate - share.rate) for weight, (share, other) in found)
    variance = sum(weight**2 * (share.variance + factor**2 * other.variance) for weight, (share, other) in found)
    return difference > ERRORS * math.sqrt(variance)


# --- causes that are left ---------------------------------------------------------------------------------------------

EXPLAINS = 0.5  # of what a round costs beyond one plain token: from here on reading k tokens explains it
TELL_DEAR = "a lookup at the same k drafts for nothing: what its round costs is the pass"
# What tells a fault from easy texts beside hard ones.
TELL_MORE = "more prompts of each kind, with --texts: inside the kinds a fault keeps this shape"


class Texts(NamedTuple):
    """What the texts of two servers say.

    compared: both were asked. wrong: some text differs, and no tie explains it. repeats: whether the server that
    speculates wrote a text again where it was asked for it again. alone: whether both servers say the same where they
    are asked for one token, which no draft makes. None: not known.
    """

    compared: bool = False
    wrong: bool = False
    repeats: bool | None = None
    alone: bool | None = None


def of_kind(named: Named, kind: str) -> Named:
    """Return at most two causes, of those that this kind of draft can have. Where the kind is not known and would rule
    one out, that is said."""
    left = tuple(cause for cause in named.causes if cause not in IMPOSSIBLE[kind])[:2] or (LITTLE,)
    if not kind and any(set(left) & IMPOSSIBLE[known] for known in KINDS):
        return Named(left, f"{named.tell}; or --kind {'|'.join(KINDS)}")
    return Named(left, named.tell if len(left) > 1 or left == named.causes else "")


def dear(found: Measured) -> tuple[str, str]:
    """Return both causes of a dear round. The pass comes first where the plain server reads prompts so slowly that k
    tokens more in a pass explain half of what the round costs beyond one token: nothing else tells them apart.
    """
    cost, k = found.round_cost, found.draft_length
    if not (cost and k and found.reading_seconds and found.plain_seconds):
        return DEAR_DRAFT, DEAR_PASS
    explained = found.reading_seconds / found.plain_seconds * k >= EXPLAINS * (cost - 1)
    return (DEAR_PASS, DEAR_DRAFT) if explained else (DEAR_DRAFT, DEAR_PASS)


def of_cost(found: Measured, is_long: bool, low: str | None) -> Named:
    """Return the causes of a round that costs too much. is_long: a shorter draft is expected to pay. low: the cause for
    which its draft is kept seldom, where that shows, too.
    """
    first, second = dear(found)
    if is_long:
        return Named((TOO_LONG, low or first), "ask the server once more with the k that is named")
    return Named((first, low or second), TELL_DEAR)


def of_texts(texts: Texts, seen: Sequence[Shape]) -> Named:
    alone = {
        None: "both servers asked for one token at a time, which no draft makes",
        True: "asked for one token at a time, which no draft makes, both servers say the same",
        False: "asked for one token at a time, which no draft makes, the servers differ, too",
    }[texts.alone]
    if texts.repeats is False:
        second = LENIENT if texts.alone else OTHER_TARGET
        return Named((SAMPLES, second), f"asked for the same again, it wrote another text; {alone}")
    if texts.alone is False:
        return Named((OTHER_TARGET, DEFAULTS if texts.repeats else SAMPLES), alone)
    if ALL in seen:
        return Named((LENIENT, WIDE_PASS if texts.alone else OTHER_TARGET), alone)
    if ZERO in seen or CLIFF in seen:
        return Named((WIDE_PASS, LENIENT if texts.alone else OTHER_TARGET), alone)
    return Named((LENIENT, WIDE_PASS) if texts.alone else (OTHER_TARGET, LENIENT), alone)


def of_shape(shape: Shape, counts: EngineCounts | None, texts: Texts) -> Named:
    """Return a shape's causes, as far as the counts and the texts leave them open."""
    if shape is ZERO and counts and _first(counts).under(AT_ALL):
        return Named((DAMAGED, STATES, FOREIGN), shape.tell)
    if shape is CLIFF and texts.compared:  # the text is right, so the target's pass is
        return Named((FEEDBACK, SHALLOW), "the draft's training code on one text, pass by pass")
    return Named((SAME_TEXT,) if shape is ALL and texts.compared else shape.causes, shape.tell)


# --- the answer -------------------------------------------------------------------------------------------------------

REJECTED, COST = "the draft is rejected too often", "a round costs too much"
LOAD, NOTHING = "load: the batch pays already", "nothing is wrong"
MORE = "it pays, and may pay more"  # between two of the four: a fault has this shape, and easy texts beside hard ones
UNKNOWN = "not known yet"  # behind which stands what a token without a draft must take, where a round's time is known
# Chosen by hand on the servers of docs/serving.md: the first two sets of those that are wrong on purpose were known
# when these numbers and rules were made, so they do not test them. The third set does.
FASTER = 1.05  # a speedup from here on is a gain
USUAL_ACCEPTANCE, USUAL_TOKEN_COST = 0.7, 0.1  # alpha, and what a drafted token adds to a round in plain tokens
MOST_MORE = 1000  # prompts
LOADED = 4  # requests of others at a time, from which on a batch may be what pays
GOOD_ENOUGH = 0.5  # acceptance at the first position, from which on a shorter draft may be what is missing
SELDOM = 0.5  # share of rounds that draft, below which a lookup finds too little to matter
PREDICTS_NOTHING = 0.1  # acceptance at the first position


class Diagnosis(NamedTuple):
    """numbers: the two behind the answer, each with its break-even. then: what to try. causes: at most two, the
    likelier first. tell: what tells them apart. length: the shorter draft that is advised."""

    answer: str
    numbers: list[str]
    then: str
    causes: tuple[str, ...] = ()
    tell: str = ""
    length: int | None = None


def diagnose(found: Measured, seen: Sequence[Shape] = (), texts: Texts | None = None, kind: str = "") -> Diagnosis:
    """Return the answer for what was measured. seen: the shapes of its curve. texts: what both servers wrote. kind: of
    the draft, "" where it is not known."""
    said, texts = _answer(found, seen), texts or Texts()
    if named := _causes(found, said, seen, texts):
        named = of_kind(named, kind)
        said = said._replace(causes=named.causes, tell=named.tell)
    if kind == "lookup" and said.answer == REJECTED:
        said = said._replace(then="a lookup that asks for a longer match, or a draft model or a head")
    certain = said.answer == LOAD or any(shape.faulty for shape in seen) or _predicts_nothing(found)
    if found.speedup is None or certain or not (n_more := more_prompts(found)):
        return said
    more = f"about {n_more}" if n_more <= MOST_MORE else f"over {MOST_MORE}"
    why = f"{found.speedup:.2f}x, with 1 in its interval; {more} more prompts would tell"
    return said._replace(answer=f"not clear: {why}")


def more_prompts(found: Measured) -> int:
    """Return how many more prompts would make the speedup clear, if they are like those that were asked: its interval
    gets shorter by the root of their number. 0 where it is clear: 1 is outside, or all of it is within what is no gain
    and no loss."""
    low, high = map(math.log, found.speedup_interval or (1.0, 1.0))
    small = math.log(FASTER)
    if not low < 0 < high or (-small <= low and high <= small) or not found.speedup:
        return 0
    gain = math.log(found.speedup)
    half, wanted = (gain - low if gain > 0 else high - gain), max(abs(gain), small / 2)
    return max(1, math.ceil(found.n_timed * ((half / wanted) ** 2 - 1)))


def _answer(found: Measured, seen: Sequence[Shape]) -> Diagnosis:
    tau, cost, length = found.tokens_per_round, found.round_cost, found.draft_length
    fault = next((shape for shape in seen if shape.faulty), None)
    if tau is None or not length:
        return _without_counts(found)
    if cost is None:
        return _without_plain(found, tau, length, fault)
    speedup, k, share = tau / cost, max(1, round(length)), found.drafting_share
    drafting = 1 + (cost - 1) / share if share else cost  # of a round that drafts, where the others are plain steps
    usual = 1 + USUAL_TOKEN_COST * k * share
    numbers = [
        f"a round brings {tau:.2f} tokens; it has to bring {cost:.2f} to break even ({_alpha(k, drafting)})",
        f"a round costs {cost:.2f} plain tokens; it may cost {tau:.2f} to break even, and {usual:.2f} is usual",
    ]
    if share < SELDOM:
        numbers[0] = f"{1 - share:.0%} of the rounds drafted nothing; all together bring {tau:.2f} tokens a round"
    kept = [share * rate for rate in found.marginal]  # of all rounds
    best = positions.best_length(kept, positions.linear_cost(k, cost)) if cost > 1 else None
    shorter = best if best and 0 < best.draft_length < k and best.speedup >= FASTER else None
    better = shorter if shorter and shorter.speedup >= FASTER * speedup else None
    if fault:
        if speedup >= FASTER:
            numbers[0] = f"it makes {speedup:.2f}x all the same, with a shape that a draft with a fault has"
        until = f"; until then {_expected(better)}" if better else ""
        return Diagnosis(REJECTED, numbers, fault.then + until)
    if found.n_running >= LOADED and cost > usual and (speedup < FASTER or more_prompts(found)):
        numbers[0] = f"{found.n_running} other requests were being answered at the same time"
        return Diagnosis(LOAD, numbers[::-1], "ask it when nobody else does, and see up to which load it pays: --load")
    if speedup >= FASTER:
        return _paying(found, seen, numbers, better, _more(k, drafting))
    if share < SELDOM and speedup >= 1 / FASTER:
        finds = "the lookup finds little that repeats in these texts"
        return Diagnosis(NOTHING, numbers, f"a draft model or a head, which drafts in every round: {finds}")
    if shorter and found.marginal[0] >= GOOD_ENOUGH:
        return Diagnosis(COST, numbers[::-1], _expected(shorter), length=shorter.draft_length)
    if _predicts_nothing(found):  # at no cost would such a draft pay
        return Diagnosis(REJECTED, numbers, _what_rejects(found))
    usual_tokens = 1 + share * (formulas.expected_tokens_per_round(USUAL_ACCEPTANCE, k) - 1)
    if math.log(usual_tokens / tau) >= math.log(cost / usual):
        also = f", or {_expected(shorter)}" if shorter else ""
        return Diagnosis(REJECTED, numbers, _what_rejects(found) + also)
    return Diagnosis(COST, numbers[::-1], _what_costs(k, drafting))


def _causes(found: Measured, said: Diagnosis, seen: Sequence[Shape], texts: Texts) -> Named | None:
    """Return the causes that are left for this answer; None where there is nothing to explain."""
    shape = seen[0] if seen else None
    if texts.wrong:
        return of_texts(texts, seen)
    if said.answer == LOAD:
        return Named((BUSY,), "")
    if said.answer == COST and shape is not FALLING:
        low = LOW.causes[0] if shape is LOW else None
        return of_cost(found, said.length is not None or shape is LATE, low)
    if shape is RISING and said.answer == MORE:
        return Named(shape.causes, TELL_MORE)
    if said.answer == NOTHING and said.length and more_prompts(found):
        return of_cost(found, is_long=True, low=None)
    if shape is LOW and said.answer == NOTHING:
        return None  # a weak draft has it, too, and this one pays
    if shape is None and said.answer == REJECTED:
        shape = ZERO if _predicts_nothing(found) else LOW
    return of_shape(shape, found.counts, texts) if shape else None


def _paying(
    found: Measured, seen: Sequence[Shape], numbers: list[str], better: positions.Choice | None, then: str
) -> Diagnosis:
    """Return the answer for a gain where no shape of a fault alone is seen. better: a shorter draft that promises
    more."""
    length = better.draft_length if better else None
    if RISING in seen:
        both = "a shape that a draft with a fault has, or easy texts beside hard ones"
        said = f"it makes {found.speedup:.2f}x with {both}"
        return Diagnosis(MORE, [said, *numbers[1:]], RISING_INSIDE.then, length=length)
    then = _expected(better) if better else then
    if LOW in seen and found.counts and (alpha := found.counts.acceptance_rate) is not None:
        then += f"; one that is kept more often, {USUAL_ACCEPTANCE:.2f} is usual and α is {alpha:.2f}"
    return Diagnosis(NOTHING, numbers, then, length=length)


def _expected(best: positions.Choice) -> str:
    makes = f"which by this curve makes {best.speedup:.2f}x if every drafted token costs the same"
    return f"k = {best.draft_length}, {makes}"


def _alpha(k: int, cost: float) -> str:
    alpha = positions.break_even_acceptance(k, cost)
    fraction = positions.break_even_fraction(k, cost)
    return "no draft brings that" if alpha is None else f"α {alpha:.2f}, f {fraction:.2f}"


def _more(k: int, cost: float) -> str:
    best = positions.ceiling(k, cost)
    return f"nothing has to change; a draft that is never rejected would make {best:.2f}x at this k and cost"


def _predicts_nothing(found: Measured) -> bool:
    return bool(found.marginal) and found.marginal[0] < PREDICTS_NOTHING


def _what_rejects(found: Measured) -> str:
    if _predicts_nothing(found):
        return (
            "the draft predicts nothing from its first token on: see that it was made for this very target, with the "
            "same tokenizer, template and layers, and that its weights are loaded"
        )
    return "a draft that was trained for this target and these texts; with --url it is seen which kinds of prompt pay"


def _what_costs(k: int, cost: float) -> str:
    best = positions.ceiling(k, cost)
    if best < 1:
        return f"a cheaper round: even a draft that is never rejected makes {best:.2f}x at this cost"
    return "a smaller draft or a lookup; the same graphs, kernels and precision with and without speculation"


def _without_counts(found: Measured) -> Diagnosis:
    gain = [f"speedup {found.speedup:.2f}x"] if found.speedup else []
    if found.speedup and found.speedup >= FASTER:
        return Diagnosis(NOTHING, gain, "the server counts no rounds, so what a better draft would bring is not known")
    return Diagnosis(UNKNOWN, gain, "a server that counts its rounds: vLLM, or llama-server with --metrics")


def _without_plain(found: Measured, tau: float, length: float, fault: Shape | None) -> Diagnosis:
    """Return what rounds and their time say without the time of a plain token: how long that must take."""
    usual, k = 1 + USUAL_TOKEN_COST * length, max(1, round(length))
    takes, pays = "", ""
    if found.seconds:
        takes = f"takes {1e3 * (found.round_seconds or found.seconds * tau):.1f} ms and "
        pays = f"it pays if a token without a draft takes more than {1e3 * found.seconds:.2f} ms"
    numbers = [
        f"a round {takes}brings {tau:.2f} tokens, so it may cost up to {tau:.2f} plain tokens",
        f"a round of k = {k} usually costs {usual:.2f} plain tokens; what it costs here is not measured",
    ]
    if tau < usual or fault:
        shown = [*numbers, pays] if pays else numbers
        return Diagnosis(REJECTED, shown, fault.then if fault else _what_rejects(found))
    then = (
        "start the same model without its draft, and add --plain-url URL. No room for both? Ask that one alone, with "
        "--plain-url, and give what it prints: --plain-ms MS"
    )
    return Diagnosis(f"{UNKNOWN}: {pays}" if pays else UNKNOWN, numbers, then)


# --- words on a screen ------------------------------------------------------------------------------------------------

WIDTH, LABEL = 100, 10


def labelled(label: str, text: str) -> str:
    """Return a line with a label before it, continued below the text."""
    return textwrap.fill(text, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL)


def compact(columns: dict[str, list[str]], n_words: int) -> str:
    """Return a table whose first columns are words, to the left, and whose others are numbers."""
    tabulate.MIN_PADDING = 0
    sides = ["left"] * n_words + ["right"] * (len(columns) - n_words)
    return tabulate.tabulate(columns, headers="keys", disable_numparse=True, colalign=sides)
