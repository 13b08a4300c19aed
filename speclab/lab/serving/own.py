"""What the lab itself does with the same prompts, and its counts beside an engine's, prompt by prompt.

The engine does not know in its last round that the text is about to end: it drafts k tokens there as everywhere, and
counts what it kept of them, also behind the end. So the lab decodes past the end here, and counts the rounds that begin
before it.
"""

import copy
from dataclasses import dataclass
from typing import Literal

from baseline_autoregressive import autoregressive_decode
from draft_models import NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, Drafter, Round, tokens_of
from speclab.drafts.hybrid import LookupDrafter
from speclab.lab.serving.counters import whole
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.samples import Arm
from speclab.records.serving import EngineCounts, Reconciled
from speclab.system.terminal import progress


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
    """The lab's rounds of one text that begin before its end, those that drafted something."""

    tokens: list[int]
    counts: EngineCounts
    last_drafted: int
    last_accepted: int


def greedy_texts(setup: Setup, prompts: list[Prompt], n_tokens: int) -> list[list[int]]:
    """The baseline's text of every prompt."""
    texts = []
    with progress(len(prompts), "text", "the lab's own texts") as bar:
        for prompt in prompts:
            rounds = autoregressive_decode(
                setup.target.with_own_cache(), prompt.ids.to(setup.device), DecodeSettings(n_tokens), setup.chunk
            )
            texts.append(tokens_of(rounds))
            bar.update()
    return texts


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
                ids = prompt.ids.to(setup.device)
                for round_ in speculative_decode(
                    setup.target.with_own_cache(), drafter, ids, arm.draft_length, settings
                ):
                    if n_new >= n_tokens:
                        break
                    n_new += len(round_.tokens)
                    rounds.append(round_)
                found[arm, index] = _counted(rounds, n_tokens, arm.draft_length)
                bar.update()
    return found


def _counted(rounds: list[Round], n_tokens: int, draft_length: int) -> OwnRounds:
    drafting = [round_ for round_ in rounds if round_.n_drafted]
    accepted = [round_.n_accepted for round_ in drafting]
    counts = EngineCounts(
        n_drafts=len(drafting),
        n_drafted=sum(round_.n_drafted for round_ in drafting),
        n_accepted=sum(accepted),
        accepted_at=[sum(n > place for n in accepted) for place in range(draft_length)],
    )
    last = drafting[-1] if drafting else Round([])
    return OwnRounds(tokens_of(rounds)[:n_tokens], counts, last.n_drafted, last.n_accepted)


def reconcile(
    arm: Arm, index: int, prompt: Prompt, engine: EngineCounts, own: OwnRounds, tokens: list[int], looks_up: bool
) -> Reconciled:
    """An engine's counts of one greedy text, `tokens`, beside the lab's. looks_up: the draft is no model."""
    verdict, reason = _judged(arm, engine, own, tokens, looks_up)
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
    arm: Arm, engine: EngineCounts, own: OwnRounds, tokens: list[int], looks_up: bool
) -> tuple[Literal["equal", "last round", "different"], str]:
    if tokens != own.tokens:
        place = next(i for i, pair in enumerate(zip(tokens, own.tokens, strict=True)) if pair[0] != pair[1])
        return "different", f"another text from token {place} on"
    if engine == own.counts:
        return "equal", ""
    if engine.n_drafts == own.counts.n_drafts and _within_last_round(engine, own, arm.draft_length):
        return "last round", "the last round keeps or drafts another number of tokens behind the end"
    if looks_up:
        return "different", "its lookup proposes other tokens"
    if not whole(engine, arm.draft_length):
        return "different", "some of its drafts are shorter"
    return "different", "its draft proposes other tokens: another precision, or another state of its cache"


def _within_last_round(engine: EngineCounts, own: OwnRounds, draft_length: int) -> bool:
    """Whether the counts may be equal in all rounds but the last one."""
    drafted = engine.n_drafted - (own.counts.n_drafted - own.last_drafted)
    accepted = engine.n_accepted - (own.counts.n_accepted - own.last_accepted)
    return 0 <= accepted <= drafted <= draft_length


def looks_up(drafter: Drafter) -> bool:
    """Whether a draft is a lookup, without a model."""
    return isinstance(drafter, LookupDrafter)
