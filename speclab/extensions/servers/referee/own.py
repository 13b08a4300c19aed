"""What the lab itself does with a prompt, and its counts beside an engine's.

The engine does not know in its last round that the text is about to end: it drafts k tokens there as everywhere, and
counts what it kept of them, also behind the end. So the lab decodes past the end here, and counts the rounds that begin
before it.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from draft_models import NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup


class FirstMatch(NgramDrafter):
    """Prompt lookup as vLLM does it: among matches of equal length the first one, not the most recent."""

    def _append(self, tokens: list[int]) -> None:
        for token in tokens:
            end = len(self._tokens)
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._after.setdefault(tuple(self._tokens[end - n : end]), end)
            self._tokens.append(token)


@dataclass(frozen=True)
class OwnRounds:
    """The lab's rounds of one text that begin before its end. counts: those that drafted something."""

    tokens: list[int]
    counts: EngineCounts
    last_drafted: int  # of the very last round; 0 where that drafted nothing
    last_accepted: int


def own_rounds(setup: Setup, drafter: Drafter | None, prompt: Prompt, draft_length: int, n_tokens: int) -> OwnRounds:
    """Decode a prompt greedily on the lab's own loop. drafter: None for prompt lookup as vLLM does it."""
    # Anew for every prompt: what a draft has learned from others is not asked of the engine either.
    drafter = copy.deepcopy(drafter) if drafter else FirstMatch()
    settings = DecodeSettings(n_tokens + 2 * draft_length)
    rounds, n_new = list[Round](), 0
    target, ids = setup.target.with_own_cache(), prompt.ids.to(setup.device)
    for round_ in speculative_decode(target, drafter, ids, draft_length, settings):
        if n_new >= n_tokens:
            break
        n_new += len(round_.tokens)
        rounds.append(round_)
    return counted(rounds, n_tokens, draft_length)


def ended_rounds(setup: Setup, drafter: Drafter, prompt: Prompt, draft_length: int, n_tokens: int) -> OwnRounds:
    """Decode a prompt greedily to its end as the lab does, and as llama-server does: no draft is longer than what is
    left of the text."""
    settings = DecodeSettings(n_tokens)
    rounds = speculative_decode(setup.target.with_own_cache(), drafter, prompt.ids, draft_length, settings)
    return counted(list(rounds), n_tokens, draft_length)


def counted(rounds: Sequence[Round], n_tokens: int, draft_length: int) -> OwnRounds:
    """Return the counts of a text's rounds."""
    drafting = [round_ for round_ in rounds if round_.n_drafted]
    accepted = [round_.n_accepted for round_ in drafting]
    counts = EngineCounts(
        n_drafts=len(drafting),
        n_drafted=sum(round_.n_drafted for round_ in drafting),
        n_accepted=sum(accepted),
        accepted_at=[sum(n > place for n in accepted) for place in range(draft_length)],
    )
    last = rounds[-1]
    return OwnRounds(tokens_of(list(rounds))[:n_tokens], counts, last.n_drafted, last.n_accepted)


def judged(
    draft_length: int, engine: EngineCounts, own: OwnRounds, tokens: list[int]
) -> tuple[Literal["equal", "last round", "different"], str]:
    """Return the verdict on an engine's counts of a greedy text, and what is different. Why is not measured."""
    if tokens != own.tokens:
        place = next(i for i, pair in enumerate(zip(tokens, own.tokens, strict=True)) if pair[0] != pair[1])
        return "different", f"another text from token {place} on"
    counts = own.counts
    if engine == counts:
        return "equal", ""
    if _within_last_round(engine, own, draft_length):
        return "last round", "the last round keeps or drafts another number of tokens behind the end"
    if engine.n_drafts != counts.n_drafts:
        return "different", "the same text in another number of rounds that draft"
    if engine.n_drafted != counts.n_drafted:
        return "different", "as many rounds, but another number of drafted tokens"
    return "different", "as many rounds and drafted tokens, but others are accepted"


def _within_last_round(engine: EngineCounts, own: OwnRounds, draft_length: int) -> bool:
    """Whether the counts may be equal in all rounds but the very last one, which must have drafted something.

    Without the lab's last round, what is left of the engine's counts must be one round: some drafted tokens, at most k,
    of which the first so many were kept.
    """
    counts = own.counts
    if not own.last_drafted or engine.n_drafts != counts.n_drafts or len(engine.accepted_at) != draft_length:
        return False
    drafted = engine.n_drafted - (counts.n_drafted - own.last_drafted)
    accepted = engine.n_accepted - (counts.n_accepted - own.last_accepted)
    before = [kept - (place < own.last_accepted) for place, kept in enumerate(counts.accepted_at)]
    left = [kept - old for kept, old in zip(engine.accepted_at, before, strict=True)]
    one_round = [int(place < accepted) for place in range(draft_length)]
    return left == one_round and 0 <= accepted <= drafted and 1 <= drafted <= draft_length
