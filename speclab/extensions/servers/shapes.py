"""Shapes of acceptance curves, each with its usual causes, how to tell them apart, and the next step. Pure: counts in,
no torch.

A curve is the counts of a server's rounds. A shape is named only where a share of rounds is beyond a line by two
standard errors, the spread that so many independent rounds have. Some shapes ask for a second thing, which is compared
as it is. docs/acceptance-curves.md shows every shape as it was measured, by
`python -m speclab.extensions.servers.curves`.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from speclab.extensions.servers import causes
from speclab.extensions.servers.causes import Named, Texts
from speclab.extensions.servers.engine_counts import EngineCounts

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
    def variance(self) -> float:
        """Return the square of its standard error."""
        return self.rate * (1 - self.rate) / (self.whole + 3)


ZERO = Shape(
    "nothing is kept from the first position on",
    (causes.STATES, causes.DAMAGED, causes.FOREIGN),
    "a log names missing weights, and the draft's page its target",
    "see the draft's target, its vocabulary, the loader's log; of a head its layers and its offset",
    faulty=True,
)
CLIFF = Shape(
    "a cliff after the first position",
    (causes.FEEDBACK, causes.WIDE_PASS),
    "greedy texts differ from those without speculation where it is the target's pass",
    "compare the draft's second pass with its training code on one text",
    faulty=True,
)
RISING = Shape(  # of easy and hard rounds together, the easy ones reach the later positions: so of any sound draft
    "the first position is rejected more often than those behind it",
    (causes.PARTIAL, causes.STATES),
    "by the kinds in the table, or prompts of one kind alone: a draft that knows a part of them is level in those",
    "a draft that was trained on all of these kinds; ask each kind by itself to see which one it lacks",
)
RISING_INSIDE = Shape(
    "the first position is rejected more often than those behind it, inside the kinds, too",
    (causes.STATES, causes.PARTIAL),
    "texts of one sort alone, with --texts: a draft that knows a part of them is level in those",
    "check the layers that the draft reads, and their order, against its configuration",
    faulty=True,
)
FALLING = Shape(
    "each position is kept less often than the one before",
    (causes.SHALLOW, causes.TOO_LONG),
    "a draft that goes token by token keeps its rate in the same texts",
    "a shorter k; a head whose tokens follow each other (Markov, causal), or training on its own outputs",
)
TOO_LONG = Shape(
    "the last positions bring next to nothing",
    (causes.TOO_LONG,),
    "the rate of the rounds that reach a position stays, and few rounds reach the last ones",
    "a shorter k",
)
ALL = Shape(
    "everything is kept",
    (causes.SAME_TEXT, causes.LENIENT),
    "read the texts, and compare them with those of the server without speculation",
    "prompts that do not repeat themselves; where texts differ, do not use this server",
)
LOW = Shape(
    "low, and neither zero nor a cliff",
    (causes.FOREIGN, causes.DAMAGED),
    "the prompts that the draft was published with: a foreign draft is fine there",
    "a draft that was trained on texts of this very target",
)
FORGETS = Shape(
    "the second request for a prompt is kept far less often than the first",
    (causes.UNCACHED,),
    "the same prompt after a new start, or with the prefix cache switched off, is fine",
    "switch the prefix cache off",
    faulty=True,
)
ENDS = Shape(
    "fine in short texts, and less than half of that in long ones",
    (causes.SHORT,),
    "cut the same texts shorter: acceptance comes back",
    "a draft with a longer context, or no speculation for longer texts",
    faulty=True,
)
THRESHOLD = Shape(
    "f has fallen, and accepted tokens per round have not",
    (causes.STOPS,),
    "drafted tokens per round have grown; f counts every token that was drafted",
    "compare tokens per round and seconds, not f; set the threshold by hand",
)
SAME_WITH_BOTH = Shape(
    "equal and wrong with two drafts",
    (causes.WIDE_PASS,),
    "greedy texts differ from those without speculation",
    "report it with both texts, and do not use this server",
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
    if _above(Share(kept[-1], n), ALL_KEPT):  # rounds that kept all: their tokens do not depend on each other
        return ALL
    if _under(first, NONE_KEPT):
        return ZERO
    if counts.n_drafted < WHOLE_DRAFTS * n * len(kept):
        return None  # what the later positions were asked for is not known
    if len(kept) > 1 and _less(Share(kept[1], kept[0]), first, CLIFF_SHARE):
        return CLIFF
    if len(kept) > 2 and kept[0] * kept[0] > kept[1] * n and _less(Share(kept[2], kept[1]), first, FALL_SHARE):
        return FALLING
    if n >= ALWAYS * n_rounds and _less(_rejected(later_positions(counts)), _rejected(first), 1 / OFTENER):
        return RISING_INSIDE if _rises_inside(kinds) else RISING
    if _under(Share(counts.n_accepted, n + sum(kept[:-1])), LOW_RATE):
        return LOW
    tail = sum(kept[len(kept) // 2 :])
    if len(kept) >= LONG and tail < LONG_TAIL * counts.n_accepted and _under(Share(kept[-1], n), RARELY):
        return TOO_LONG
    return None


def _rises_inside(kinds: Sequence[EngineCounts]) -> bool:
    """Tell whether the first position is rejected more often inside the kinds, all of them taken together. One kind is
    no proof: nothing says that its texts are alike."""
    enough = [one for one in kinds if one.n_drafts >= FEWEST and one.accepted_at]
    pairs = [(_rejected(later_positions(one)), _rejected(_first(one))) for one in enough]
    return len(enough) > 1 and _less_inside(pairs, 1 / OFTENER)


def later_positions(counts: EngineCounts) -> Share:
    """Return what was kept behind the first position, of what was tested there."""
    return Share(sum(counts.accepted_at[1:]), sum(counts.accepted_at[:-1]))


def shape_of_two(earlier: EngineCounts, later: EngineCounts, what: Shape) -> Shape | None:
    """Return `what` where the first position is kept far less often later: FORGETS and ENDS are told by that, where
    both curves are of the same texts."""
    if not (earlier.n_drafts and later.n_drafts and earlier.accepted_at and later.accepted_at):
        return None
    good = _above(_first(earlier), GOOD_START)
    return what if good and _less(_first(later), _first(earlier), CLIFF_SHARE) else None


def shape_of_lengths(kinds: Sequence[tuple[EngineCounts, EngineCounts]]) -> Shape | None:
    """Return ENDS where the first position is kept far less often in long texts than in short ones of the same kind.

    kinds: of each kind of prompt the counts in short texts, and in long ones.
    """
    known = [both for both in kinds if all(one.n_drafts and one.accepted_at for one in both)]
    first = Share(sum(short.accepted_at[0] for short, _ in known), sum(short.n_drafts for short, _ in known))
    shares = [(_first(long), _first(short)) for short, long in known]
    return ENDS if known and _above(first, GOOD_START) and _less_inside(shares, CLIFF_SHARE) else None


def fell_by_threshold(earlier: EngineCounts, later: EngineCounts) -> Shape | None:
    """Return THRESHOLD where f fell and accepted tokens per round did not."""
    before, after = (Share(one.n_accepted, one.n_drafted) for one in (earlier, later))
    fell = _less(after, before, FEWER)
    as_many = later.n_accepted * earlier.n_drafts >= AS_MANY * earlier.n_accepted * later.n_drafts
    return THRESHOLD if fell and as_many else None


def same_with_both(one: EngineCounts, other: EngineCounts) -> Shape | None:
    """Return SAME_WITH_BOTH where two drafts have the same cliff, or keep nothing both."""
    found = shape_of(one)
    return SAME_WITH_BOTH if found in (ZERO, CLIFF) and shape_of(other) == found else None


def named(shape: Shape, counts: EngineCounts | None, texts: Texts) -> Named:
    """Return a shape's causes, as far as the counts and the texts leave them open."""
    found, tell = shape.causes, shape.tell
    if shape is ZERO and counts and _under(_first(counts), AT_ALL):
        found = (causes.DAMAGED, causes.STATES, causes.FOREIGN)
    if shape is CLIFF and texts.compared:  # the text is right, so the target's pass is
        found, tell = (causes.FEEDBACK, causes.SHALLOW), "the draft's training code on one text, pass by pass"
    if shape is ALL and texts.compared:
        found = (causes.SAME_TEXT,)
    return Named(found, tell)


def breaks_off(shapes: Sequence[Shape]) -> bool:
    """Tell whether a curve ends at its first position, or before it."""
    return any(shape in (ZERO, CLIFF, SAME_WITH_BOTH) for shape in shapes)


def _first(counts: EngineCounts) -> Share:
    return Share(counts.accepted_at[0], counts.n_drafts)


def _rejected(share: Share) -> Share:
    return Share(share.whole - share.part, share.whole)


def _under(share: Share, limit: float) -> bool:
    return share.rate + ERRORS * math.sqrt(share.variance) < limit


def _above(share: Share, limit: float) -> bool:
    return share.rate - ERRORS * math.sqrt(share.variance) > limit


def _less(share: Share, other: Share, factor: float) -> bool:
    """Tell whether a share is below `factor` times the other one."""
    spread = math.sqrt(share.variance + factor**2 * other.variance)
    return factor * other.rate - share.rate > ERRORS * spread


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
