"""What the lab itself does with the same prompts, and its counts beside an engine's, prompt by prompt.

The engine does not know in its last round that the text is about to end: it drafts k tokens there as everywhere, and
counts what it kept of them, also behind the end. So the lab decodes past the end here, and counts the rounds that begin
before it. The seconds of these rounds are kept, too: the lab's own price of a round, beside the engine's.
"""

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from baseline_autoregressive import autoregressive_decode
from draft_models import NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core.clock import old_objects_frozen
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.extensions.servers.server_record import EngineCounts, Reconciled
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.arms import Arm
from speclab.system.terminal import progress


class FirstMatch(NgramDrafter):
    """Prompt lookup as vLLM does it: among matches of equal length the first one, not the most recent."""

    def _append(self, tokens: list[int]) -> None:
        for token in tokens:
            end = len(self._tokens)
            for n in range(self.shortest, min(self.longest, end) + 1):
                self._after.setdefault(tuple(self._tokens[end - n : end]), end)
            self._tokens.append(token)


class OwnText(NamedTuple):
    """The baseline's text of a prompt, and its seconds for a token after the prompt's own pass."""

    tokens: list[int]
    token_seconds: float


@dataclass(frozen=True)
class OwnRounds:
    """The lab's rounds of one text that begin before its end. counts: those that drafted something."""

    tokens: list[int]
    counts: EngineCounts
    last_drafted: int  # of the very last round; 0 where that drafted nothing
    last_accepted: int
    n_rounds: int = 0  # all of them, the prompt's own pass apart
    seconds: float = 0.0  # of these


@old_objects_frozen()
def greedy_texts(setup: Setup, prompts: list[Prompt], n_tokens: int) -> list[OwnText]:
    """The baseline's text of every prompt."""
    texts = []
    with progress(len(prompts), "text", "the lab's own texts") as bar:
        for prompt in prompts:
            target, ids = setup.target.with_own_cache(), prompt.ids.to(setup.device)
            rounds = list(_timed(autoregressive_decode(target, ids, DecodeSettings(n_tokens), setup.chunk)))
            n_decoded = sum(len(round_.tokens) for round_, _ in rounds[1:])
            seconds = sum(seconds for _, seconds in rounds[1:])
            texts.append(OwnText(tokens_of([round_ for round_, _ in rounds]), seconds / max(1, n_decoded)))
            bar.update()
    return texts


@old_objects_frozen()
def own_rounds(
    setup: Setup, drafters: dict[str, Drafter], arms: list[Arm], prompts: list[Prompt], n_tokens: int
) -> dict[tuple[Arm, int], OwnRounds]:
    """Greedy speculative decoding of every prompt by every arm, on the lab's own loop.  -> by arm and prompt's index"""
    found = {}
    with progress(len(arms) * len(prompts), "text", "the lab's own rounds") as bar:
        for arm in arms:
            for index, prompt in enumerate(prompts):
                # Anew for every prompt: what a draft has learned from others is not asked of the engine either.
                drafter = FirstMatch() if arm.draft == "ngram" else copy.deepcopy(drafters[arm.draft])
                settings = DecodeSettings(n_tokens + 2 * arm.draft_length)
                rounds, n_new = [], 0
                target, ids = setup.target.with_own_cache(), prompt.ids.to(setup.device)
                for timed in _timed(speculative_decode(target, drafter, ids, arm.draft_length, settings)):
                    if n_new >= n_tokens:
                        break
                    n_new += len(timed[0].tokens)
                    rounds.append(timed)
                found[arm, index] = _counted(rounds, n_tokens, arm.draft_length)
                bar.update()
    return found


def _timed(rounds: Iterator[Round]) -> Iterator[tuple[Round, float]]:
    """Every round with its seconds; a round ends when its tokens are on the host."""
    begin = time.perf_counter()
    for round_ in rounds:
        yield round_, time.perf_counter() - begin
        begin = time.perf_counter()


def _counted(timed: list[tuple[Round, float]], n_tokens: int, draft_length: int) -> OwnRounds:
    rounds = [round_ for round_, _ in timed]
    drafting = [round_ for round_ in rounds if round_.n_drafted]
    accepted = [round_.n_accepted for round_ in drafting]
    counts = EngineCounts(
        n_drafts=len(drafting),
        n_drafted=sum(round_.n_drafted for round_ in drafting),
        n_accepted=sum(accepted),
        accepted_at=[sum(n > place for n in accepted) for place in range(draft_length)],
    )
    return OwnRounds(
        tokens=tokens_of(rounds)[:n_tokens],
        counts=counts,
        last_drafted=rounds[-1].n_drafted,
        last_accepted=rounds[-1].n_accepted,
        n_rounds=len(rounds) - 1,
        seconds=sum(seconds for _, seconds in timed[1:]),
    )


def reconcile(
    arm: Arm,
    index: int,
    prompt: Prompt,
    engine: EngineCounts,
    own: OwnRounds,
    tokens: list[int],
    near_tie: bool = False,
) -> Reconciled:
    """An engine's counts of one greedy text, `tokens`, beside the lab's. near_tie: it differs by rounding."""
    verdict, reason = _judged(arm, engine, own, tokens, near_tie)
    return Reconciled(
        method=arm.method,
        draft=arm.draft,
        draft_length=arm.draft_length,
        prompt_index=index,
        prompt_kind=prompt.kind,
        engine=engine,
        own=own.counts,
        last_drafted=own.last_drafted,
        last_accepted=own.last_accepted,
        verdict=verdict,
        reason=reason,
    )


def _judged(
    arm: Arm, engine: EngineCounts, own: OwnRounds, tokens: list[int], near_tie: bool
) -> tuple[Literal["equal", "last round", "different"], str]:
    """The verdict, and what is different. Nothing is said about why: that is not measured."""
    if tokens != own.tokens:
        place = next(i for i, pair in enumerate(zip(tokens, own.tokens, strict=True)) if pair[0] != pair[1])
        return "different", f"another text from token {place} on" + ", a near-tie" * near_tie
    counts = own.counts
    if engine == counts:
        return "equal", ""
    if _within_last_round(engine, own, arm.draft_length):
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


def looks_up(drafter: Drafter) -> bool:
    """Whether a draft is a lookup, without a model."""
    return not drafter.draws
