"""One decoding as plain data: every token, where it came from, and the numbers that the accept rule used.

`trace` reads the stream of rounds; speclab/present/trace_terminal.py and trace_page.py show it.
"""

import copy
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from speclab.core.counts import Counts
from speclab.lab.tracing.detail import Detail


@dataclass(frozen=True)
class Token:
    """A token of the output, or a draft that never became one."""

    id: int
    text: str  # what it adds to the text; empty where it ends inside a character that the next one completes
    kind: str  # first, plain, accepted, corrected, bonus, rejected, untested or after_eos
    draft_prob: float | None = None  # the rule's numbers (speclab/lab/tracing/detail.py); None where nothing was tested
    target_prob: float | None = None
    uniform: float | None = None
    confidence: float | None = None  # the target's softmax at temperature 1

    @property
    def against_rule(self) -> bool:
        """Was a draft accepted that fails the test, or rejected though it passes? Only a wrong rule does that."""
        if self.uniform is None or self.draft_prob is None or self.target_prob is None:
            return False
        if self.kind not in ("accepted", "rejected"):
            return False
        return (self.uniform * self.draft_prob < self.target_prob) != (self.kind == "accepted")


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
    def greedy(self) -> bool:
        """Was every token the target's first choice?"""
        return self.settings["temperature"] == 0

    @property
    def kinds(self) -> set[str]:
        """The kinds of token that occur in it."""
        return {token.kind for event in self.events for token in (*event.drafts, *event.tokens)}

    def baseline_tokens(self, seconds: float) -> int:
        """Tokens the baseline has by then."""
        return bisect_right([end for _, end in self.baseline], seconds)


class Speller:
    """Spells a text token by token. A token may end inside a character: its bytes then go to the one that ends it."""

    WINDOW = 16  # tokens of context: what a token adds depends on its neighbours
    PENDING = 3  # bytes of a character that may still lack its last one; each may stand as a replacement sign

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int]):
        self._tokenizer = tokenizer
        self._ids = list(before[-self.WINDOW :])
        self._shown = len(self._text())

    def spell(self, token: int) -> str:
        """What the next token adds to the text."""
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
        """The pieces of tokens that may never be committed; what was spelled so far stays as it is."""
        speller = copy.copy(self)
        speller._ids = list(self._ids)
        pieces = [speller.spell(token) for token in tokens]
        return [*pieces[:-1], pieces[-1] + speller.rest()] if pieces else []

    def _text(self) -> str:
        return str(self._tokenizer.decode(self._ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def trace(
    rounds: Iterable[Any],
    baseline: Iterable[tuple[int, float]],
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    prompt_ids: Sequence[int],
    settings: dict[str, Any],
) -> Trace:
    """Read a stream of rounds with phases and detail.  baseline: ids and the seconds at which they were there."""
    counts, emitted = Counts(), []
    events: list[Event] = []
    speller, end = Speller(tokenizer, prompt_ids), 0.0
    for round_ in rounds:
        counts.add(round_)
        drafts = _drafts(round_, speller)
        tokens = _committed(round_, [speller.spell(token) for token in round_.tokens], drafts)
        seconds = phases(round_.seconds)
        end += 0.0 if round_.prefill else sum(seconds.values())
        emitted += round_.tokens
        events.append(Event(len(events), drafts, tokens, round_.n_accepted, seconds, end, len(emitted)))
    last = events[-1].tokens[-1]
    events[-1].tokens[-1] = replace(last, text=last.text + speller.rest())
    ids, ends = zip(*baseline, strict=True)
    texts = Speller(tokenizer, prompt_ids).ahead(ids)
    return Trace(settings, prompt, events, counts, list(zip(texts, ends, strict=True)), list(ids) == emitted)


def phases(laps: dict[str, float] | None) -> dict[str, float]:
    """A round's seconds as the pictures show them: draft, verify, and other."""
    laps = laps or {}
    shown = {name: laps.get(name, 0.0) for name in ("draft", "verify")}
    return {**shown, "other": sum(s for name, s in laps.items() if name not in (*shown, "prefill"))}


def _drafts(round_: Any, speller: Speller) -> list[Token]:
    """Everything that a round proposed."""
    detail: Detail | None = round_.detail
    if detail is None:
        return []
    drafts = []
    for i, text in enumerate(speller.ahead(detail.proposed)):
        kind = "accepted"
        if i >= round_.n_accepted:
            kind = "after_eos" if not round_.n_rejected else "rejected" if i == round_.n_accepted else "untested"
        numbers = detail.draft_probs[i], detail.target_probs[i], detail.uniforms[i], detail.confidence[i]
        drafts.append(Token(detail.proposed[i], text, kind, *numbers))
    return drafts


def _committed(round_: Any, texts: list[str], drafts: list[Token]) -> list[Token]:
    """Everything that a round added to the output."""
    tokens = []
    for i, (token, text) in enumerate(zip(round_.tokens, texts, strict=True)):
        if i < round_.n_accepted and drafts:
            tokens.append(replace(drafts[i], text=text))
            continue
        kind = "bonus" if round_.n_drafted else "plain"
        kind = "first" if round_.prefill else "corrected" if round_.n_rejected else kind
        detail = round_.detail
        known = {"target_prob": detail.next_prob, "confidence": detail.confidence[-1]} if detail else {}
        tokens.append(Token(token, text, kind, **known))
    return tokens
