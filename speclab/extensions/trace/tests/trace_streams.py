"""Scripted streams of rounds for the pictures' tests: every kind of token, numbers that fit the rule, no model."""

import random
from dataclasses import replace

from speclab.core.rounds import Round, tokens_of
from speclab.extensions.trace import trace
from speclab.extensions.trace.trace import Position


def settings(temperature: float = 0.8, draft_length: int = 4) -> dict:
    said = {"target": "a-target", "draft": "a-draft", "device": "cpu", "dtype": "float32", "engine": "eager"}
    said |= {"draft_length": draft_length, "temperature": temperature, "top_k": 0, "top_p": 1.0, "seed": 0}
    return said


def rounds(vocab: list[int], n_tokens: int, draft_length: int = 4, seed: int = 0, keep: float = 0.6) -> list[Round]:
    """Rounds that commit `n_tokens` ids drawn from `vocab`; every fifth drafts nothing."""
    dice = random.Random(seed)
    found, n_done = [Round([dice.choice(vocab)], prefill=True, seconds={"prefill": 0.5})], 1
    while n_done < n_tokens:
        k = 0 if len(found) % 5 == 4 else min(draft_length, n_tokens - n_done - 1)
        kept = 0
        while kept < k and dice.random() < keep:
            kept += 1
        proposed = [dice.choice(vocab) for _ in range(k)]
        q = [dice.uniform(0.1, 1) for _ in range(k)]
        u = [dice.random() for _ in range(k)]
        # Above u q where the draft is kept, at or below it where it is rejected: what the rule would have said.
        p = [u[i] * q[i] * (1.5 if i < kept else 0.5) + (1e-9 if i < kept else 0) for i in range(k)]
        tokens = [*proposed[:kept], dice.choice(vocab)]
        positions = [Position(token, *rest) for token, *rest in zip(proposed, p, q, u, strict=True)]
        seconds = {"host": 1e-4, "draft": 1e-3 * k, "verify": 8e-3, "accept": 3e-4, "rollback": 1e-5}
        positions.append(Position(tokens[-1], dice.random()))
        n_done += len(tokens)
        finish = "length" if n_done == n_tokens else None
        found.append(Round(tokens, k, kept, int(kept < k), False, finish, seconds, positions))
    return found


def clock(tokens: list[int], step: float = 0.01) -> list[tuple[int, float]]:
    return [(token, step * i) for i, token in enumerate(tokens)]


def scripted(tokenizer, prompt: str, n_tokens: int = 60, vocab: list[int] | None = None, **options) -> trace.Trace:
    """A trace whose baseline says the same, at a hundred tokens a second."""
    temperature = options.pop("temperature", 0.8)
    stream = rounds(vocab or list(range(1, len(tokenizer))), n_tokens, **options)
    ids = tokenizer(prompt).input_ids
    return trace.trace(stream, clock(tokens_of(stream)), tokenizer, prompt, ids, settings(temperature))


def at(token: int, parent: int | None, kept: bool, tested: bool = True) -> Position:
    return Position(token, 0.9 if kept else 0.1, 1.0, 0.5, parent, tested)


def by_hand(tokenizer, finish: str | None = None, n_accepted: int = 2) -> trace.Trace:
    """A tree whose text goes 11 14. Beside 11 stand 10, tried before it, and 12; 13 before 14; 15 and 16 after 14."""
    positions = [
        at(11, -1, True), at(14, 0, True), at(10, -1, False), at(12, -1, False, False), at(13, 0, False),
        at(15, 1, False), at(16, 1, False), at(17, 3, False, False), Position(18, 0.3),
    ]  # fmt: skip
    tokens = [11, 14, 18] if finish is None else [11, 14][:n_accepted]
    own = Round(tokens, 8, n_accepted, int(finish is None), False, finish, {"verify": 0.01}, positions)
    return trace.trace([Round([3], prefill=True), own], clock([3, *tokens]), tokenizer, "x", [4], settings())


def count_all(stream: list[Round]) -> dict[str, int]:
    """Tokens of each kind, from the counts of the rounds alone."""
    decoding = [r for r in stream if not r.prefill]
    return {
        "first": sum(len(r.tokens) for r in stream if r.prefill),
        "accepted": sum(r.n_accepted for r in decoding),
        "corrected": sum(len(r.tokens) - r.n_accepted for r in decoding if r.n_rejected),
        "bonus": sum(len(r.tokens) - r.n_accepted for r in decoding if r.n_drafted and not r.n_rejected),
        "plain": sum(len(r.tokens) for r in decoding if not r.n_drafted),
    }


def with_texts(found: trace.Trace, text: str) -> trace.Trace:
    """The same decoding by a tokenizer that says `text` with every token."""

    def say(tokens: list[trace.Token]) -> list[trace.Token]:
        return [replace(token, text=text) for token in tokens]

    events = [replace(event, drafts=say(event.drafts), tokens=say(event.tokens)) for event in found.events]
    return replace(found, events=events, baseline=[(text, seconds) for _, seconds in found.baseline])
