"""One decoding as plain data: every token, where it came from, and the numbers that the accept rule used.

`trace` reads the stream of rounds; trace_terminal.py and page.py show it.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from speclab.core.counts import Counts
from speclab.core.rounds import Round, tokens_of
from speclab.models.pieces import Pieces
from speclab.system.terminal import harmless

TIMED = "One run with timers in it: a picture, no measurement."


class Candidate(NamedTuple):
    """A token that could stand at a place, with its probability there: the target's, and the draft's."""

    id: int
    target_prob: float
    draft_prob: float | None  # None after all drafted tokens


class Position(NamedTuple):
    """What was known of one token of a round: of each drafted one, then of the next one, the target's own.

    The probabilities are the rule's own: after temperature, top-k and top-p, and under greedy decoding one-hot, so
    `target_prob` is 1 or 0 there. A draft that is certain of its proposal (greedy drafting, prompt lookup) has 1.
    In a tree `target_prob` is the part of the target's row that was left by the siblings that were rejected before.
    """

    id: int
    target_prob: float
    draft_prob: float | None = None  # None for the next token
    uniform: float | None = None  # in [0, 1); None for the next token
    parent: int | None = None  # of a tree's token: the place of the one that it follows, -1 for the text
    tested: bool = True  # of a tree's token: whether the rule looked at it
    candidates: tuple[Candidate, ...] = ()  # when sampling, of a chain: the most probable tokens at its place

    @property
    def passes(self) -> bool:
        """Does this draft pass the test, if it gets as far?  Leviathan et al., arXiv 2211.17192"""
        if self.uniform is None or self.draft_prob is None:
            return False
        return self.uniform * self.draft_prob < self.target_prob


@dataclass(frozen=True)
class Token:
    """A token of the output, or a draft that never became one."""

    text: str  # what it adds to the text; empty where the text may still change: it comes with a later token
    kind: str  # first, plain, accepted, corrected, bonus, rejected, untested or after_eos
    position: Position | None = None  # None for the first token, which comes from the prompt's pass
    candidates: tuple[str, ...] = ()  # what each candidate of its position would have added here

    @property
    def against_rule(self) -> bool:
        """Was a draft accepted that fails the test, or rejected though it passes? Only a wrong rule does that."""
        if self.position is None or self.kind not in ("accepted", "rejected"):
            return False
        return self.position.passes != (self.kind == "accepted")


@dataclass(frozen=True)
class Event:
    """A round, or the first token (number 0). Seconds count from the moment the first token was there."""

    number: int
    drafts: list[Token]  # everything proposed, in order; of a tree the accepted branch first
    tokens: list[Token]  # everything committed, in order: the accepted drafts, then mostly one of the target's
    n_accepted: int
    seconds: dict[str, float]  # draft, verify, other
    end: float
    n_tokens: int  # of the output so far
    looked_up: bool = False  # whether a hybrid's lookup drafted

    @property
    def parents(self) -> list[int]:
        """Of a drafted tree the place in `drafts` that each token follows, -1 for the text; empty for a chain."""
        positions = [token.position for token in self.drafts]
        return [position.parent for position in positions if position and position.parent is not None]

    @property
    def rejected(self) -> list[tuple[int, Token]]:
        """The tokens that stood where the target's own one stands, with their places in `drafts`."""
        n, parents = self.n_accepted, self.parents
        here = [(place, token) for place, token in enumerate(self.drafts) if token.kind == "rejected"]
        return [(place, token) for place, token in here if not parents or parents[place] == n - 1]

    @property
    def in_order(self) -> list[Token]:
        """Its tokens as the text has them: what was kept, what was rejected or not tested, what follows. Of a tree only
        what was rejected at the end of the accepted branch stands between."""
        n = self.n_accepted
        between = [token for _, token in self.rejected] if self.parents else self.drafts[n:]
        return [*self.tokens[:n], *between, *self.tokens[n:]]


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
        return self.settings["temperature"] == 0

    @property
    def kinds(self) -> set[str]:
        return {token.kind for event in self.events for token in (*event.drafts, *event.tokens)}

    @property
    def has_trees(self) -> bool:
        return any(event.parents for event in self.events)

    def baseline_tokens(self, seconds: float) -> int:
        return bisect_right([end for _, end in self.baseline], seconds)


def visible(text: str) -> str:
    """A token for a narrow place, on one line: blanks and line ends as signs."""
    signs = str.maketrans({" ": "·", "\n": "↵", "\t": "→"})
    return harmless(text).translate(signs) or "◌"


def spell(made: Pieces, ids: Sequence[int]) -> list[str]:
    """What each of `ids` adds to the text; what is held back goes to the token that completes it, or to the last."""
    texts = [made.add([i]) for i in ids]
    return [*texts[:-1], texts[-1] + made.rest()] if texts else []


def branches(proposed: Sequence[Position]) -> list[list[int]]:
    """The ids before each proposed token, of this round: of a chain all of them, of a tree those of its branch."""
    found: list[list[int]] = []
    for i, position in enumerate(proposed):
        parent = i - 1 if position.parent is None else position.parent
        found.append([*found[parent], proposed[parent].id] if parent >= 0 else [])
    return found


def _proposed_texts(made: Pieces, proposed: list[Position]) -> list[str]:
    if not any(position.parent is not None for position in proposed):
        return spell(made.fork(), [position.id for position in proposed])
    ways = [[*branch, position.id] for branch, position in zip(branches(proposed), proposed, strict=True)]
    return [spell(made.fork(), way)[-1] for way in ways]


def _candidates(made: Pieces, before: Sequence[int], position: Position | None) -> tuple[str, ...]:
    """What each candidate of a position adds to the text, after the ids `before` it in its round."""
    if position is None or not position.candidates:
        return ()
    text = made.fork()
    text.add(before)
    return tuple(spell(text.fork(), [one.id])[0] for one in position.candidates)


def trace(
    rounds: Sequence[Round],
    baseline: Sequence[tuple[int, float]],
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    prompt_ids: Sequence[int],
    settings: dict[str, Any],
) -> Trace:
    """Read rounds with phases and positions.

    baseline: ids and the seconds at which they were there. prompt_ids: the ids that the text continues.
    """
    made = Pieces(tokenizer, prompt_ids, special=True)
    counts, ids = Counts(), tokens_of(rounds)
    events: list[Event] = []
    texts, n_tokens, end = spell(made.fork(), ids), 0, 0.0
    for round_ in rounds:
        counts.add(round_)
        positions: list[Any] = round_.detail if isinstance(round_.detail, list) else [None]
        *proposed, after = positions
        spelled = _proposed_texts(made, proposed)
        drafts = [
            Token(text, _fate(round_, i, proposed), place, _candidates(made, branch, place))
            for i, (text, branch, place) in enumerate(zip(spelled, branches(proposed), proposed, strict=True))
        ]
        committed, n = texts[n_tokens : n_tokens + len(round_.tokens)], round_.n_accepted
        tokens = [Token(text, "accepted", position) for text, position in zip(committed, proposed[:n], strict=False)]
        candidates = _candidates(made, round_.tokens[:n], after)
        tokens += [Token(text, _own_kind(round_), after, candidates) for text in committed[n:]]
        seconds = phases(round_.seconds or {})
        end += sum(seconds.values())
        n_tokens += len(tokens)
        made.add(round_.tokens)
        events.append(Event(len(events), drafts, tokens, n, seconds, end, n_tokens, round_.looked_up))
    baseline_ids, ends = zip(*baseline, strict=True)
    steps = list(zip(spell(Pieces(tokenizer, prompt_ids, special=True), baseline_ids), ends, strict=True))
    return Trace(settings, prompt, events, counts, steps, list(baseline_ids) == ids)


def phases(laps: Mapping[str, float]) -> dict[str, float]:
    """A round's seconds as the pictures show them: draft, verify, and other. The prompt's pass is none of them."""
    shown = {name: laps.get(name, 0.0) for name in ("draft", "verify")}
    return {**shown, "other": sum(s for name, s in laps.items() if name not in (*shown, "prefill"))}


def _fate(round_: Round, place: int, proposed: Sequence[Position]) -> str:
    if place < round_.n_accepted:
        return "accepted"
    if proposed[place].parent is not None:
        ended = round_.n_accepted == len(round_.tokens)  # inside the accepted branch
        if not proposed[place].tested:
            return "untested"
        return "after_eos" if ended and len(branches(proposed)[place]) >= round_.n_accepted else "rejected"
    if not round_.n_rejected:
        return "after_eos"
    return "rejected" if place == round_.n_accepted else "untested"


def _own_kind(round_: Round) -> str:
    if round_.prefill or not round_.n_drafted:
        return "first" if round_.prefill else "plain"
    return "corrected" if round_.n_rejected else "bonus"
