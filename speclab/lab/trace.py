"""One decoding as plain data: every token, where it came from, and what the rule made of the drafts.

`trace` reads the stream of rounds; speclab/present/trace_views.py draws what it found and adds nothing.
"""

import copy
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from speclab.core.counts import Counts
from speclab.lab.detail import Detail
from speclab.present.trace_words import apart, counted, milliseconds

MEANINGS = {  # what happened to a token
    "first": "from the prompt's own pass",
    "plain": "nothing was drafted: an ordinary step of the target",
    "accepted": "drafted, and kept",
    "corrected": "the target's own, in place of a refused draft",
    "bonus": "the target's own, after all drafts were kept",
    "refused": "drafted, and refused",
    "untested": "drafted behind a refused one, never tested",
    "unsaid": "drafted behind the end of the text",
}


@dataclass(frozen=True)
class Token:
    """A token of the output, or a draft that never became one."""

    id: int
    text: str  # what it adds to the text; empty where it ends inside a character that the next one completes
    kind: str  # one of MEANINGS
    words: str  # the rule's outcome
    draft_prob: float | None = None  # the rule's numbers (speclab/lab/detail.py); None where nothing was tested
    target_prob: float | None = None
    uniform: float | None = None
    confidence: float | None = None  # the target's softmax at temperature 1


@dataclass(frozen=True)
class Event:
    """A round, or the first token (number 0). Seconds count from the moment the first token was there."""

    number: int
    drafts: list[Token]  # everything proposed, in order
    tokens: list[Token]  # everything committed, in order: the accepted drafts, then mostly one of the target's
    n_accepted: int
    seconds: dict[str, float]  # draft, verify, other
    end: float
    n_tokens: int  # of the output so far


@dataclass(frozen=True)
class Trace:
    """A decoding and the baseline's on the same prompt, in the same process."""

    settings: dict[str, Any]  # target, draft, draft_length, temperature, seed, ...
    prompt: str
    events: list[Event]
    counts: Counts
    baseline: list[tuple[str, float]]  # a token's text and the second at which it was there
    same_text: bool

    @property
    def seconds(self) -> tuple[float, float]:
        """Decoding alone, after the first token: speculative, baseline."""
        return self.events[-1].end, self.baseline[-1][1]

    def baseline_tokens(self, seconds: float) -> int:
        """Tokens the baseline has by then."""
        return bisect_right([end for _, end in self.baseline], seconds)

    def summary(self) -> str:
        """The counts of the rounds, in one line."""
        counts = self.counts
        per_round = "no round" if counts.tokens_per_round is None else f"{counts.tokens_per_round:.2f} tokens per round"
        return (
            f"{counted(counts.n_rounds, 'round')}, {counts.n_drafted} drafted, {counts.n_accepted} accepted, "
            f"{counts.n_rejected} refused, {per_round}"
        )

    def times(self) -> str:
        """How long both took, without the word speedup: one run with timers in it is no measurement."""
        mine, other = self.seconds
        n_mine, n_other = self.events[-1].n_tokens - 1, len(self.baseline) - 1
        return (
            f"After the first token: {counted(n_mine, 'token')} in {milliseconds(mine)}, the baseline's {n_other} in "
            f"{milliseconds(other)}. One run with timers in it: a picture, no measurement."
        )

    def agreement(self) -> str:
        if self.same_text:
            return "Both say the same."
        if self.settings["temperature"]:
            return "The texts may differ: both are draws from the same distribution."
        return "The texts differ. compare.py says whether rounding explains that."


class Speller:
    """Spells a text token by token. A token may end inside a character: its bytes then go to the one that ends it."""

    WINDOW = 16  # tokens of context: what a token adds depends on its neighbours
    PENDING = 3  # bytes of a character that may still lack its last one; each may stand as a replacement sign

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids = list(before[-self.WINDOW :])
        self._shown = len(self._text())

    def spell(self, token: int) -> str:
        self._ids.append(token)
        new = self._text()[self._shown :]
        pending = len(new) - len(new.rstrip("\ufffd"))
        ready = new[: len(new) - min(pending, self.PENDING)]
        self._shown += len(ready)
        if not pending and len(self._ids) > 4 * self.WINDOW:
            self._ids = self._ids[-self.WINDOW :]
            self._shown = len(self._text())
        return ready

    def rest(self) -> str:
        """What stands at the end and is no character."""
        return self._text()[self._shown :]

    def ahead(self, tokens: Sequence[int]) -> list[str]:
        """The pieces of tokens that may never be said."""
        speller = copy.copy(self)
        speller._ids = list(self._ids)
        pieces = [speller.spell(token) for token in tokens]
        return [*pieces[:-1], pieces[-1] + speller.rest()] if pieces else []

    def _text(self) -> str:
        return self._tokenizer.decode(self._ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def trace(
    rounds: Iterable[Any],
    baseline: Iterable[tuple[int, float]],
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    prompt_ids: Sequence[int],
    settings: dict[str, Any],
) -> Trace:
    """Read a stream of rounds with phases and detail.  baseline: ids and the seconds at which they were there."""
    greedy, counts, events = settings["temperature"] == 0, Counts(), []
    speller, end, said = Speller(tokenizer, prompt_ids), 0.0, []
    for round_ in rounds:
        counts.add(round_)
        drafts = _drafts(round_, speller, greedy)
        tokens = _committed(round_, [speller.spell(token) for token in round_.tokens], drafts, greedy)
        seconds = phases(round_.seconds)
        end += 0.0 if round_.prefill else sum(seconds.values())
        said += round_.tokens
        events.append(Event(len(events), drafts, tokens, round_.n_accepted, seconds, end, len(said)))
    if speller.rest():
        events[-1].tokens[-1] = _with_text(events[-1].tokens[-1], speller.rest())
    speller, texts, baseline = Speller(tokenizer, prompt_ids), [], list(baseline)
    for token, seconds in baseline:
        texts.append((speller.spell(token), seconds))
    if speller.rest():
        texts[-1] = (texts[-1][0] + speller.rest(), texts[-1][1])
    return Trace(settings, prompt, events, counts, texts, [token for token, _ in baseline] == said)


def phases(laps: dict[str, float] | None) -> dict[str, float]:
    """A round's seconds as the pictures show them."""
    laps = laps or {}
    found = {name: laps.get(name, 0.0) for name in ("draft", "verify")}
    return {**found, "other": sum(s for name, s in laps.items() if name not in (*found, "prefill"))}


def _with_text(token: Token, more: str) -> Token:
    return replace(token, text=token.text + more)


def _drafts(round_: Any, speller: Speller, greedy: bool) -> list[Token]:
    detail: Detail | None = round_.detail
    if detail is None:
        return []
    found = []
    for i, text in enumerate(speller.ahead(detail.proposed)):
        kind = "accepted"
        if i >= round_.n_accepted:
            kind = "unsaid" if not round_.n_rejected else "refused" if i == round_.n_accepted else "untested"
        numbers = detail.draft_probs[i], detail.target_probs[i], detail.uniforms[i], detail.confidence[i]
        found.append(Token(detail.proposed[i], text, kind, outcome(kind, detail, i, greedy), *numbers))
    return found


def _committed(round_: Any, texts: list[str], drafts: list[Token], greedy: bool) -> list[Token]:
    tokens = []
    for i, (token, text) in enumerate(zip(round_.tokens, texts, strict=True)):
        if i < round_.n_accepted and drafts:
            tokens.append(replace(drafts[i], text=text))
            continue
        kind = "bonus" if round_.n_drafted else "plain"
        kind = "first" if round_.prefill else "corrected" if round_.n_rejected else kind
        detail = round_.detail
        known = (detail.next_prob, None, detail.confidence[-1]) if detail else (None, None, None)
        tokens.append(Token(token, text, kind, _origin(kind, greedy), None, *known))
    return tokens


def outcome(kind: str, detail: Detail, i: int, greedy: bool) -> str:
    """The rule's outcome for one draft, in words, with the numbers it rests on."""
    if kind in ("untested", "unsaid"):
        return "not tested: behind a refused draft" if kind == "untested" else "never said: behind the end of the text"
    kept, right = kind == "accepted", detail.passes(i)
    if greedy:
        reason = "the target's own choice, so p = 1" if right else "not the target's own choice, so p = 0"
    else:
        product, target = detail.uniforms[i] * detail.draft_probs[i], detail.target_probs[i]
        left, mine = apart(product, target)
        reason = f"u × q = {left} is {'' if right else 'not '}below p = {mine}"
    against = "" if kept == right else ", against the rule"
    return f"{'kept' if kept else 'refused'}{against}: {reason}"


def _origin(kind: str, greedy: bool) -> str:
    if kind == "corrected":
        where = "the target's own choice" if greedy else "drawn from what p has more than q, max(0, p − q)"
        return f"corrected: {where}"
    if kind == "bonus":
        return f"bonus: all drafts were kept, and the last row's {'choice' if greedy else 'draw'} comes on top"
    return f"{kind}: {MEANINGS[kind]}"
