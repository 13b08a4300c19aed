"""Why is it not faster? What was measured, the shape of its curve, one of four answers with the two numbers behind it,
the next thing to try, and the causes that are left. Pure: answers and counts in, words out.

A round brings tau tokens and costs r plain tokens, and the speedup is tau / r. Where it is no gain, the answer names
the side that is farther from what is usual: a draft whose tested tokens are accepted seven times in ten, and a round
that costs a tenth of a plain token more for each drafted one. The draft is what is wrong where its curve has a shape
that only a fault makes, however fast the server is. Later positions that are kept more often than the first one are
such a shape only inside the kinds of prompts: easy and hard texts together have it, too.

A shape is named only where a share of rounds is beyond a line by two standard errors, the spread that so many
independent rounds have (docs/acceptance-curves.md). Several faults leave the same trace, so at most two causes are
named, the likelier one first, with what tells them apart.
"""

import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from speclab.extensions.servers import counters
from speclab.extensions.servers.client import Answer, Pair
from speclab.extensions.servers.counters import Counted, EngineCounts, of_rounds
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
OTHER_TARGET = "the servers run different targets: other weights, precision, template or sampling defaults"
SHORT = "the draft's context, its window or a buffer of its states ends"
SAME_TEXT = "the text is a loop, or the draft is the target itself or nearly as good"
TOO_LONG = "k is too long for this draft"
DEAR_DRAFT = "drafting is dear: the draft is too large or too deep, or runs without the target's kernels"
DEAR_PASS = "the target's pass over k + 1 tokens is dear on this machine, or what surrounds it is"
BUSY = "other requests fill the batch"


Causes = tuple[tuple[str, ...], str]  # the likelier first; and what tells them apart, or shows the one


# --- what was measured ------------------------------------------------------------------------------------------------

Interval = tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of one server, or of a kind of prompts. Seconds are per token after the first one; None: not known.

    n_rounds: all rounds, those without a draft included. n_tokens: what these made.
    """

    counts: EngineCounts = field(default_factory=lambda: of_rounds([], 0))
    n_rounds: float = 0
    n_tokens: float = 0.0
    plain_seconds: float | None = None
    seconds: float | None = None
    speedup_interval: Interval = None
    tokens_interval: Interval = None
    n_running: int = 0  # requests of others that were being answered
    n_prompts: int = 0
    parts: list[EngineCounts] = field(default_factory=list)  # of each third of the answers, where rounds are told

    @property
    def draft_length(self) -> float | None:
        return self.counts.n_drafted / self.counts.n_drafts if self.counts.n_drafts else None

    @property
    def tokens_per_round(self) -> float | None:  # tau
        return self.n_tokens / self.n_rounds if self.n_rounds else None

    @property
    def drafting_share(self) -> float:
        """Return the share of rounds that drafted something: a lookup that finds nothing leaves a plain step."""
        return min(1.0, self.counts.n_drafts / self.n_rounds) if self.n_rounds else 1.0

    @property
    def speedup(self) -> float | None:
        return self.plain_seconds / self.seconds if self.plain_seconds and self.seconds else None

    @property
    def round_cost(self) -> float | None:  # r, in plain tokens
        return self.tokens_per_round / self.speedup if self.tokens_per_round and self.speedup else None


def n_rounds_of(one: Answer, n_tokens: float) -> float:
    """Return the rounds of an answer. What its drafts do not explain came from rounds that drafted nothing."""
    counts = one.counts
    assert counts
    if one.shared:  # the counts are of all requests, this one's share is not known
        made = counts.n_drafts + counts.n_accepted
        return n_tokens * counts.n_drafts / made if made else n_tokens
    return counts.n_drafts + max(0, n_tokens - counts.n_drafts - counts.n_accepted)


def of_pairs(pairs: Sequence[Pair], plain_seconds: float | None = None) -> Measured:
    """Return what the answers to some prompts say together. plain_seconds: given where no plain server was asked.

    A first chunk may carry several tokens, whose time is not known: all tokens of an answer but one are taken. Prompts
    with an answer of one token are left out.
    """
    pairs = [pair for pair in pairs if all(one.n_tokens > 1 for one in (pair.speculative, pair.plain) if one)]
    found, plain = [pair.speculative for pair in pairs], [pair.plain for pair in pairs if pair.plain]
    counts, tokens = [one.counts for one in found if one.counts], [float(one.n_tokens - 1) for one in found]
    known = found if len(counts) == len(found) else []
    rounds = [float(n_rounds_of(one, n)) for one, n in zip(known, tokens, strict=False)]
    seconds = [one.seconds_per_token * n for one, n in zip(found, tokens, strict=True)]
    same_work = [one.seconds_per_token * n for one, n in zip(plain, tokens, strict=False)]
    thirds = [counters.along(one.rounds, len(one.counts.accepted_at), THIRDS) for one in found if one.counts]
    told, all_tokens = all(one.rounds for one in found), sum(tokens)
    return Measured(
        counts=counters.total(counts if rounds else []),
        n_rounds=sum(rounds),
        n_tokens=all_tokens if rounds else 0.0,
        plain_seconds=sum(same_work) / all_tokens if same_work and all_tokens else plain_seconds,
        seconds=sum(seconds) / all_tokens if all_tokens else None,
        speedup_interval=formulas.ratio_interval(same_work, seconds) if same_work and min(seconds) > 0 else None,
        tokens_interval=formulas.ratio_interval(tokens, rounds) if rounds and min(*rounds, *tokens) > 0 else None,
        n_running=statistics.median_low([one.n_running for one in found] or [0]),
        n_prompts=len(pairs),
        parts=[counters.total(part) for part in zip(*thirds, strict=True)] if told else [],
    )


def of_pages(found: Counted, plain_seconds: float | None, seconds: float | None, n_running: int) -> Measured:
    """Return what two pages say of all requests between them, with the seconds that somebody has measured. vLLM counts
    its outputs, one a round. Elsewhere, tokens that no draft explains came from rounds that drafted nothing, but for
    the first token of each request, which no page counts."""
    counts = found.speculation or of_rounds([], 0)
    others = max(0, found.n_generated - counts.n_drafts - counts.n_accepted)
    n_rounds = max(found.n_outputs, counts.n_drafts) if found.n_outputs else float(counts.n_drafts + others)
    made = n_rounds + counts.n_accepted
    if seconds is None and found.n_outputs:
        seconds = found.output_seconds / found.n_outputs * n_rounds / made
    return Measured(
        counts=counts,
        n_rounds=n_rounds,
        n_tokens=made,
        plain_seconds=plain_seconds,
        seconds=seconds,
        n_running=n_running,
    )


# --- shapes of a curve ------------------------------------------------------------------------------------------------

FEWEST = 30  # rounds, below which nothing is named
ERRORS = 2.0  # standard errors by which a share must be on one side
NONE_KEPT, GOOD_START, LOW_RATE, ALL_KEPT = 0.15, 0.3, 0.55, 0.8  # of rounds; LOW_RATE of tested tokens
CLIFF_SHARE, FALL_SHARE = 0.5, 2 / 3  # of what the other share is
OFTENER = 1.5  # times as often rejected at the first position as at the later ones
ALWAYS = 0.9  # of the rounds: a model or a head drafts in all of them, a lookup does not
WHOLE_DRAFTS = 0.8  # of k: where drafts are shorter than that, positions behind the first say little
LONG, LONG_TAIL, RARELY = 6, 0.15, 0.1  # k; what its second half brings of all accepted tokens; its last position
THIRDS = 3  # parts of an answer, where the server tells its rounds


class Shape(NamedTuple):
    """A shape in words. causes: the likelier first. tell: how to tell them apart. then: the next step.
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
        spread = math.sqrt(self.variance + factor**2 * other.variance)
        return factor * other.rate - self.rate > ERRORS * spread


ZERO = Shape(
    "nothing is kept from the first position on",
    (STATES, DAMAGED),
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
ENDS = Shape(
    "fine where texts begin, and less than half of that where they end",
    (SHORT,),
    "ask for shorter answers: acceptance comes back",
    "a draft with a longer context, or no speculation for longer texts",
    faulty=True,
)


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
    if not counts.tested_at and counts.n_drafted < WHOLE_DRAFTS * n * len(kept):
        return None  # what the later positions were asked for is not known
    at = [Share(part, whole) for part, whole in zip(kept, counts.tested, strict=True)]
    if len(at) > 1 and at[1].less(first, CLIFF_SHARE):
        return CLIFF
    if len(at) > 2 and at[1].part * n < kept[0] * at[1].whole and at[2].less(first, FALL_SHARE):
        return FALLING
    if n >= ALWAYS * n_rounds and _later(counts).rejected.less(first.rejected, 1 / OFTENER):
        return RISING_INSIDE if _rises_inside(kinds) else RISING
    if Share(counts.n_accepted, sum(counts.tested)).under(LOW_RATE):
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
    """Return `what` where the first position is kept far less often later, in the same texts."""
    if not (earlier.n_drafts and later.n_drafts and earlier.accepted_at and later.accepted_at):
        return None
    good = _first(earlier).above(GOOD_START)
    return what if good and _first(later).less(_first(earlier), CLIFF_SHARE) else None


def _first(counts: EngineCounts) -> Share:
    return Share(counts.accepted_at[0], counts.n_drafts)


def _later(counts: EngineCounts) -> Share:
    """Return what was kept behind the first position, of what was tested there."""
    return Share(sum(counts.accepted_at[1:]), sum(counts.tested[1:]))


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


# --- the best length --------------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A draft length, and the speedup that is expected of it."""

    draft_length: int
    speedup: float


def break_even_acceptance(draft_length: int, round_cost: float) -> float | None:
    """Return the alpha at which independent positions bring as many tokens as a round costs; None: no alpha does.

    >>> round(break_even_acceptance(4, 2.0), 3), break_even_acceptance(4, 5.5), break_even_acceptance(4, 0.9)
    (0.519, None, 0.0)
    """
    if not 1 < round_cost <= draft_length + 1:
        return None if round_cost > 1 else 0.0
    low, high = 0.0, 1.0
    for _ in range(40):  # halves, to a millionth of a millionth
        middle = (low + high) / 2
        enough = formulas.expected_tokens_per_round(middle, draft_length) >= round_cost
        low, high = (low, middle) if enough else (middle, high)
    return high


def best_length(marginal: Sequence[float], draft_length: int, round_cost: float) -> Choice:
    """Return the draft length, 0 to the measured one, with the highest expected speedup; the shortest of equals. Each
    drafted token adds the same to one plain token: one measured round says no more. A round has fixed parts too, so
    short drafts look somewhat too good.

    >>> best_length([0.75, 0.0], 2, 1.5)
    Choice(draft_length=1, speedup=1.4)
    """
    each = (round_cost - 1) / draft_length
    choices = [Choice(n, (1 + sum(marginal[:n])) / (1 + each * n)) for n in range(len(marginal) + 1)]
    return max(choices, key=lambda choice: choice.speedup)


# --- the answer -------------------------------------------------------------------------------------------------------

TELL_DEAR = "try a lookup at the same k, which drafts for nothing: if its round is dear, too, the pass is"
# What tells a fault from easy texts beside hard ones.
TELL_MORE = "more prompts of each kind, with --texts: inside the kinds a fault keeps this shape"
REJECTED, COST = "the draft is rejected too often", "a round costs too much"
LOAD, NOTHING = "load: the batch pays already", "nothing is wrong"
MORE = "it pays, and may pay more"  # between two of the four: a fault has this shape, and easy texts beside hard ones
UNKNOWN = "not known yet"  # behind which stands what a token without a draft must take, where a round's time is known
# Chosen by hand on the servers of docs/serving.md: the first two sets of those that are wrong on purpose were known
# when these numbers and rules were made, so they do not test them. The third set does.
FASTER = 1.05  # a speedup from here on is a gain
USUAL_ACCEPTANCE, USUAL_TOKEN_COST = 0.7, 0.1  # alpha, and what a drafted token adds to a round in plain tokens
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


def diagnose(found: Measured, shape: Shape | None = None, same_text: bool | None = None) -> Diagnosis:
    """Return the answer for what was measured. shape: of its curve. same_text: whether two servers wrote the same, or
    ties; None: that is not known."""
    said = _answer(found, shape)
    if named := _causes(found, said, shape, same_text):
        said = said._replace(causes=named[0], tell=named[1])
    if said.answer == LOAD or (shape and shape.faulty) or _predicts_nothing(found) or not unclear(found):
        return said
    low, high = found.speedup_interval or (1.0, 1.0)
    why = f"{found.speedup:.2f}x, and its interval is {low:.2f} to {high:.2f}: ask more prompts, with --texts"
    return said._replace(answer=f"not clear: {why}")


def unclear(found: Measured) -> bool:
    """Tell whether 1 is inside the speedup's interval, and not all of this is within what is no gain and no loss."""
    low, high = found.speedup_interval or (1.0, 1.0)
    return low < 1 < high and (low < 1 / FASTER or high > FASTER)


def _answer(found: Measured, shape: Shape | None) -> Diagnosis:
    tau, cost, length = found.tokens_per_round, found.round_cost, found.draft_length
    fault = shape if shape and shape.faulty else None
    if tau is None or not length:
        return _without_counts(found)
    k, share = max(1, round(length)), found.drafting_share
    usual = 1 + USUAL_TOKEN_COST * k * share
    if cost is None:
        return _without_plain(found, tau, usual, fault)
    speedup, drafting = tau / cost, 1 + (cost - 1) / share if share else cost  # of a round that drafts
    alpha, fraction, ceiling = break_even_acceptance(k, drafting), max(0.0, drafting - 1) / k, (k + 1) / drafting
    even = "no draft brings that" if alpha is None else f"that is accepted / drafted {fraction:.2f}, α {alpha:.2f}"
    numbers = [
        f"a round brings {tau:.2f} tokens; it has to bring {cost:.2f} to break even ({even})",
        f"a round costs {cost:.2f} plain tokens; it may cost {tau:.2f} to break even, and {usual:.2f} is usual",
    ]
    if share < SELDOM:
        numbers[0] = f"{1 - share:.0%} of the rounds drafted nothing; all together bring {tau:.2f} tokens a round"
    kept = [share * rate for rate in found.counts.marginal]  # of all rounds
    best = best_length(kept, k, cost) if cost > 1 else None
    shorter = best if best and 0 < best.draft_length < k and best.speedup >= FASTER else None
    better = shorter if shorter and shorter.speedup >= FASTER * speedup else None
    if fault:
        if speedup >= FASTER:
            numbers[0] = f"it makes {speedup:.2f}x all the same, with a shape that a draft with a fault has"
        return Diagnosis(REJECTED, numbers, fault.then + (f"; until then {_expected(better)}" if better else ""))
    if found.n_running >= LOADED and cost > usual and (speedup < FASTER or unclear(found)):
        numbers[0] = f"{found.n_running} other requests were being answered at the same time"
        return Diagnosis(LOAD, numbers[::-1], "ask it when nobody else does, and see up to which load it pays: --load")
    if speedup >= FASTER:
        return _paying(found, shape, numbers, better, ceiling)
    if share < SELDOM and speedup >= 1 / FASTER:
        finds = "the lookup finds little that repeats in these texts"
        return Diagnosis(NOTHING, numbers, f"a draft model or a head, which drafts in every round: {finds}")
    if shorter and found.counts.marginal[0] >= GOOD_ENOUGH:
        return Diagnosis(COST, numbers[::-1], _expected(shorter), length=shorter.draft_length)
    usual_tokens = 1 + share * (formulas.expected_tokens_per_round(USUAL_ACCEPTANCE, k) - 1)
    if _predicts_nothing(found) or math.log(usual_tokens / tau) >= math.log(cost / usual):
        return Diagnosis(REJECTED, numbers, _what_rejects(found) + (f", or {_expected(shorter)}" if shorter else ""))
    then = "a smaller draft or a lookup; check that both runs have the same graphs, kernels and precision"
    if ceiling < 1:
        then = f"a cheaper round: even a draft that is never rejected makes {ceiling:.2f}x at this cost"
    return Diagnosis(COST, numbers[::-1], then)


def _causes(found: Measured, said: Diagnosis, shape: Shape | None, same_text: bool | None) -> Causes | None:
    """Return the causes that are left for this answer; None where there is nothing to explain."""
    if same_text is False:
        of_draft = WIDE_PASS if shape in (ZERO, CLIFF) else LENIENT
        causes = (of_draft, OTHER_TARGET) if shape in (ZERO, CLIFF, ALL) else (OTHER_TARGET, of_draft)
        return causes, "both servers asked for one token at a time, which no draft makes"
    if said.answer == LOAD:
        return (BUSY,), ""
    if (said.answer == COST and shape is not FALLING) or (said.answer == NOTHING and said.length and unclear(found)):
        low = FOREIGN if shape is LOW else None
        if said.length is not None or shape is LATE:
            return (TOO_LONG, low or DEAR_DRAFT), "ask the server once more with the k that is named"
        return (DEAR_DRAFT, low or DEAR_PASS), TELL_DEAR
    if shape is RISING and said.answer == MORE:
        return shape.causes, TELL_MORE
    if shape is LOW and said.answer == NOTHING:
        return None  # a weak draft has it, too, and this one pays
    if shape is None and said.answer == REJECTED:
        shape = ZERO if _predicts_nothing(found) else LOW
    if shape is CLIFF and same_text:  # the text is right, so the target's pass is
        return (FEEDBACK, SHALLOW), "the draft's training code on one text, pass by pass"
    return (shape.causes[: 1 if shape is ALL and same_text else 2], shape.tell) if shape else None


def _paying(
    found: Measured, shape: Shape | None, numbers: list[str], better: Choice | None, ceiling: float
) -> Diagnosis:
    """Return the answer for a gain where no shape of a fault alone is seen. better: a shorter draft that promises
    more. ceiling: the speedup of a draft that is never rejected."""
    length = better.draft_length if better else None
    if shape is RISING:
        both = "a shape that a draft with a fault has, or easy texts beside hard ones"
        said = f"it makes {found.speedup:.2f}x with {both}"
        return Diagnosis(MORE, [said, *numbers[1:]], RISING_INSIDE.then, length=length)
    most = f"a draft that is never rejected would make {ceiling:.2f}x at this k and cost"
    then = _expected(better) if better else f"nothing has to change; {most}"
    if shape is LOW and (alpha := found.counts.acceptance_rate) is not None:
        then += f"; one that is kept more often, {USUAL_ACCEPTANCE:.2f} is usual and α is {alpha:.2f}"
    return Diagnosis(NOTHING, numbers, then, length=length)


def _expected(best: Choice) -> str:
    makes = f"which by this curve makes {best.speedup:.2f}x if every drafted token costs the same"
    return f"k = {best.draft_length}, {makes}"


def _predicts_nothing(found: Measured) -> bool:
    return bool(found.counts.marginal) and found.counts.marginal[0] < PREDICTS_NOTHING


def _what_rejects(found: Measured) -> str:
    if _predicts_nothing(found):
        look = (
            "it was made for this very target, with the same tokenizer, template and layers, and its weights are loaded"
        )
        return f"the draft predicts nothing from its first token on: see that {look}"
    return "a draft that was trained for this target and these texts; with --url it is seen which kinds of prompt pay"


def _without_counts(found: Measured) -> Diagnosis:
    gain = [f"speedup {found.speedup:.2f}x"] if found.speedup else []
    if found.speedup and found.speedup >= FASTER:
        return Diagnosis(NOTHING, gain, "the server counts no rounds, so what a better draft would bring is not known")
    return Diagnosis(UNKNOWN, gain, "a server that counts its rounds: vLLM, or llama-server with --metrics")


def _without_plain(found: Measured, tau: float, usual: float, fault: Shape | None) -> Diagnosis:
    """Return what rounds and their time say without the time of a plain token: how long that must take."""
    takes, pays = "", ""
    if found.seconds:
        takes = f"takes {1e3 * found.seconds * tau:.1f} ms and "
        pays = f"it pays if a token without a draft takes more than {1e3 * found.seconds:.2f} ms"
    numbers = [
        f"a round {takes}brings {tau:.2f} tokens, so it may cost up to {tau:.2f} plain tokens",
        f"a round of this k usually costs {usual:.2f} plain tokens; what it costs here is not measured",
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
    return textwrap.fill(text, WIDTH, initial_indent=f"{label:<{LABEL}}", subsequent_indent=" " * LABEL)
