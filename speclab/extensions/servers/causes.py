"""What may be wrong with a server: a closed list of causes, and the two of them that a measurement leaves open. Pure.

Who has only addresses sees texts, times and counts. Several faults leave the same trace there. So at most two causes
are named, the likelier one first, with what tells them apart.
"""

from typing import NamedTuple

from speclab.extensions.servers.measured import Measured

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
EXPLAINS = 0.5  # of what a round costs beyond one plain token: from here on reading k tokens explains it


class Named(NamedTuple):
    """causes: the likelier first. tell: what tells two of them apart, or shows the one."""

    causes: tuple[str, ...]
    tell: str


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
    cost, reading, k = found.round_cost, found.reading_cost, found.draft_length
    if cost and reading and k and reading * k >= EXPLAINS * (cost - 1):
        return DEAR_PASS, DEAR_DRAFT
    return DEAR_DRAFT, DEAR_PASS


TELL_DEAR = "a lookup at the same k drafts for nothing: what its round costs is the pass"


def of_cost(found: Measured, is_long: bool, low: str | None) -> Named:
    """Return the causes of a round that costs too much. is_long: a shorter draft is expected to pay. low: the cause for
    which its draft is kept seldom, where that shows, too.
    """
    first, second = dear(found)
    if is_long:
        return Named((TOO_LONG, low or first), "ask the server once more with the k that is named")
    return Named((first, low), TELL_DEAR) if low else Named((first, second), TELL_DEAR)


def of_texts(texts: Texts, keeps_all: bool, breaks_off: bool) -> Named:
    """Return the causes of a wrong text. keeps_all: every drafted token is kept. breaks_off: a cliff, or nothing is
    kept."""
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
    if keeps_all:
        return Named((LENIENT, WIDE_PASS if texts.alone else OTHER_TARGET), alone)
    if breaks_off:
        return Named((WIDE_PASS, LENIENT if texts.alone else OTHER_TARGET), alone)
    return Named((LENIENT, WIDE_PASS) if texts.alone else (OTHER_TARGET, LENIENT), alone)
