"""Why is it not faster? One of four answers, the two numbers behind it, the next thing to try, and the causes that are
left. Pure: numbers in.

A round brings tau tokens and costs r plain tokens, and the speedup is tau / r. Where it is no gain, the answer names
the side that is farther from what is usual: a draft whose tested tokens are accepted seven times in ten, and a round
that costs a tenth of a plain token more for each drafted one. So it is the side that brings more when it is mended.
Where a shorter draft is expected to pay, and its first token is kept at least every other time, the draft is good
enough, and the round costs too much. Where not one first token in ten is kept, the draft is what is wrong, whatever the
round costs. A curve of a shape that a draft with a fault has says that the draft is wrong, too, however fast the
server is and whatever shorter drafts would bring: "nothing is wrong" is never said beside such a shape. Later positions
that are kept more often than the first one are such a shape only inside the kinds of prompts: a sound draft on easy and
hard texts together has it, too. Where it pays and this shape is not seen inside the kinds, nobody knows which of the
two it is, and the answer is neither. A draft that is kept seldom, and pays, may be damaged or weak: a weak one is no
fault. A lookup that finds nothing to draft in most rounds is neither rejected nor dear: nothing is wrong with it, it
only does little.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from speclab.extensions.servers import causes, shapes
from speclab.extensions.servers.causes import Named, Texts
from speclab.extensions.servers.measured import Measured
from speclab.extensions.servers.shapes import Shape
from speclab.theory import formulas, positions

REJECTED, COST, LOAD, NOTHING = (
    "the draft is rejected too often",
    "a round costs too much",
    "load: the batch pays already",
    "nothing is wrong",
)
TEXT_WRONG, SAMPLING_WRONG = "the text is wrong", "sampling is broken"  # with which the shown answer begins then
NOT_CLEAR = "not clear"  # where the interval of the speedup contains 1
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
# What tells a fault from easy texts beside hard ones.
TELL_MORE = "more prompts of each kind, with --texts: inside the kinds a fault keeps this shape"


class Diagnosis(NamedTuple):
    """numbers: the two behind the answer, each with its break-even. then: what to try. causes: at most two, the
    likelier first. tell: what tells them apart. length: the shorter draft that is advised."""

    answer: str
    numbers: list[str]
    then: str
    causes: tuple[str, ...] = ()
    tell: str = ""
    length: int | None = None


def usual_cost(draft_length: float) -> float:
    """Return what a round usually costs, in plain tokens.

    >>> usual_cost(4)
    1.4
    """
    return 1 + USUAL_TOKEN_COST * draft_length


def diagnose(found: Measured, seen: Sequence[Shape] = (), texts: Texts | None = None, kind: str = "") -> Diagnosis:
    """Return the answer for what was measured. seen: the shapes of its curve. texts: what both servers wrote. kind: of
    the draft, "" where it is not known."""
    said, texts = _answer(found, seen), texts or Texts()
    named = _causes(found, said, seen, texts)
    if named:
        named = causes.of_kind(named, kind)
        said = said._replace(causes=named.causes, tell=named.tell)
    if kind == "lookup" and said.answer == REJECTED:
        said = said._replace(then="a lookup that asks for a longer match, or a draft model or a head")
    certain = said.answer == LOAD or any(shape.faulty for shape in seen) or _predicts_nothing(found)
    if found.speedup is None or certain or not (n_more := more_prompts(found)):
        return said
    more = f"about {n_more}" if n_more <= MOST_MORE else f"over {MOST_MORE}"
    return said._replace(
        answer=f"{NOT_CLEAR}: {found.speedup:.2f}x, with 1 in its interval; {more} more prompts would tell"
    )


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
    drafting = (
        1 + (cost - 1) / share if share else cost
    )  # cost of a round that drafts, where the others are plain steps
    usual = usual_cost(k * share)
    numbers = [
        f"a round brings {tau:.2f} tokens; it has to bring {cost:.2f} to break even ({_alpha(k, drafting)})",
        f"a round costs {cost:.2f} plain tokens; it may cost {tau:.2f} to break even, and {usual:.2f} is usual",
    ]
    if share < SELDOM:
        numbers[0] = f"{1 - share:.0%} of the rounds drafted nothing; all together bring {tau:.2f} tokens a round"
    kept = [share * rate for rate in found.marginal]  # of all rounds
    best = positions.best_length(kept, positions.linear_cost(k, cost)) if cost > 1 else None
    shorter = best if best and 0 < best.draft_length < k and best.speedup >= FASTER else None
    if fault:
        if speedup >= FASTER:
            numbers[0] = f"it makes {speedup:.2f}x all the same, with a shape that a draft with a fault has"
        return Diagnosis(REJECTED, numbers, fault.then + _until_then(shorter, speedup))
    if found.n_running >= LOADED and cost > usual and (speedup < FASTER or more_prompts(found)):
        numbers[0] = f"{found.n_running} other requests were being answered at the same time"
        return Diagnosis(LOAD, numbers[::-1], "ask it when nobody else does, and see up to which load it pays: --load")
    if speedup >= FASTER:
        better = shorter if shorter and shorter.speedup >= FASTER * speedup else None
        then = f"k = {better.draft_length}, {expected(better)}" if better else _more(k, drafting)
        return _paying(found, seen, numbers, then)._replace(length=better.draft_length if better else None)
    if share < SELDOM and speedup >= 1 / FASTER:
        return Diagnosis(NOTHING, numbers, _seldom())
    if shorter and found.marginal[0] >= GOOD_ENOUGH:
        then = f"k = {shorter.draft_length}, {expected(shorter)}"
        return Diagnosis(COST, numbers[::-1], then, length=shorter.draft_length)
    if _predicts_nothing(found):  # at no cost would such a draft pay
        return Diagnosis(REJECTED, numbers, _what_rejects(found))
    usual_tokens = 1 + share * (formulas.expected_tokens_per_round(USUAL_ACCEPTANCE, k) - 1)
    if math.log(usual_tokens / tau) >= math.log(cost / usual):
        also = f", or k = {shorter.draft_length}, {expected(shorter)}" if shorter else ""
        return Diagnosis(REJECTED, numbers, _what_rejects(found) + also)
    return Diagnosis(COST, numbers[::-1], _what_costs(k, drafting))


def _causes(found: Measured, said: Diagnosis, seen: Sequence[Shape], texts: Texts) -> Named | None:
    """Return the causes that are left for this answer; None where there is nothing to explain."""
    shape = seen[0] if seen else None
    if texts.wrong:
        return causes.of_texts(texts, shapes.ALL in seen, shapes.breaks_off(seen))
    if said.answer == LOAD:
        return Named((causes.BUSY,), "")
    if said.answer == COST:
        if shape is shapes.FALLING:
            return shapes.named(shape, found.counts, texts)
        low = shape.causes[0] if shape is shapes.LOW else None
        return causes.of_cost(found, said.length is not None or shape is shapes.TOO_LONG, low)
    if shape is shapes.RISING and said.answer == MORE:
        return Named(shape.causes, TELL_MORE)
    if said.answer == NOTHING and said.length and more_prompts(found):
        return causes.of_cost(found, is_long=True, low=None)
    if shape is shapes.LOW and said.answer == NOTHING:
        return None  # a weak draft has it, too, and this one pays
    if shape:
        return shapes.named(shape, found.counts, texts)
    if said.answer == REJECTED:
        return shapes.named(shapes.ZERO if _predicts_nothing(found) else shapes.LOW, found.counts, texts)
    return None


def _paying(found: Measured, seen: Sequence[Shape], numbers: list[str], then: str) -> Diagnosis:
    """Return the answer for a gain where no shape of a fault alone is seen."""
    if shapes.RISING in seen:
        said = (
            f"it makes {found.speedup:.2f}x with a shape that a draft with a fault has, or easy texts beside hard ones"
        )
        return Diagnosis(MORE, [said, *numbers[1:]], shapes.RISING_INSIDE.then)
    return Diagnosis(NOTHING, numbers, then + _kept_more(found) * (shapes.LOW in seen))


def _kept_more(found: Measured) -> str:
    """Return the words that advise a draft that is kept more often, and how often this one is kept; "" where nobody
    knows it."""
    if (alpha := found.acceptance_rate) is None:
        return ""
    return f"; one that is kept more often, {USUAL_ACCEPTANCE:.2f} is usual and α is {alpha:.2f}"


def _until_then(shorter: positions.Choice | None, speedup: float) -> str:
    if shorter is None or shorter.speedup < FASTER * speedup:
        return ""
    return f"; until then k = {shorter.draft_length}, {expected(shorter)}"


def _seldom() -> str:
    return "a draft model or a head, which drafts in every round: the lookup finds little that repeats in these texts"


def expected(best: positions.Choice) -> str:
    """Return the words for a length that was not run."""
    return f"which by this curve makes {best.speedup:.2f}x if every drafted token costs the same"


def _alpha(k: int, cost: float) -> str:
    alpha = positions.break_even_acceptance(k, cost)
    fraction = positions.break_even_fraction(k, cost)
    return "no draft brings that" if alpha is None else f"α {alpha:.2f}, f {fraction:.2f}"


def _more(k: int, cost: float) -> str:
    return (
        f"nothing has to change; a draft that is never rejected would make {positions.ceiling(k, cost):.2f}x at this "
        "k and cost"
    )


def _predicts_nothing(found: Measured) -> bool:
    first = found.conditional[0] if found.conditional else None
    return first is not None and first < PREDICTS_NOTHING


def _what_rejects(found: Measured) -> str:
    if _predicts_nothing(found):
        return (
            "the draft predicts nothing from its first token on: see that it was made for this very target, with the "
            "same tokenizer, template and layers, and that its weights are loaded"
        )
    return "a draft that was trained for this target and these texts; with --url it is seen which kinds of prompt pay"


def _what_costs(k: int, cost: float) -> str:
    if positions.ceiling(k, cost) < 1:
        return (
            f"a cheaper round: even a draft that is never rejected makes {positions.ceiling(k, cost):.2f}x at this cost"
        )
    return "a smaller draft or a lookup; the same graphs, kernels and precision with and without speculation"


def _without_counts(found: Measured) -> Diagnosis:
    gain = [f"speedup {found.speedup:.2f}x"] if found.speedup else []
    if found.speedup and found.speedup >= FASTER:
        return Diagnosis(NOTHING, gain, "the server counts no rounds, so what a better draft would bring is not known")
    return Diagnosis(UNKNOWN, gain, "a server that counts its rounds: vLLM, or llama-server with --metrics")


def _without_plain(found: Measured, tau: float, length: float, fault: Shape | None) -> Diagnosis:
    """Return what rounds and their time say without the time of a plain token: how long that must take."""
    usual, k = usual_cost(length), max(1, round(length))
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
