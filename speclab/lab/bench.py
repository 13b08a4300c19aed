"""What turns an arm and a prompt into a decoding: one target, its drafts, and the parts of the loop."""

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Draft
from speclab.core.sampling import GREEDY, ON_GRAPHS, Sampling
from speclab.lab.instruments import Decoding, LibraryDecoding, LoopFunctions, VariedLength, reference_text, with_phases
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.rows import GENERATE, Arm

SPECULATIVE = LoopFunctions(speculative_decode)
PERIOD, REPEATED = 48, 32  # tokens: the longest period that counts as repetition, and how many tokens must repeat


def n_before_repetition(tokens: Sequence[int]) -> int:
    """Return how many tokens of a text come before the repetition in which it ends; all of them where it ends in none.

    It does where its last REPEATED tokens equal those a period before, which has at most PERIOD tokens. The repetition
    begins with the first token from which on all equal those a period before.
    """
    begins = [len(tokens)]
    for period in range(1, min(PERIOD, len(tokens) - REPEATED) + 1):
        n = len(tokens)
        while n > period and tokens[n - 1] == tokens[n - 1 - period]:
            n -= 1
        begins += [n] * (len(tokens) - n >= REPEATED)
    return min(begins)


@dataclass
class Bench:
    """One target, its drafts, and how long to decode. `functions`: the parts of the speculative arms."""

    setup: Setup
    drafters: dict[str, Drafter]
    max_new_tokens: int
    seed: int
    functions: LoopFunctions = SPECULATIVE
    _texts: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # draft length and prompt -> greedy text
    taught: dict[Arm, Drafter] = field(default_factory=dict)  # drafts learn, and no arm teaches another one

    def decoding(
        self,
        arm: Arm,
        sampling: Sampling,
        prompt: Prompt,
        stream: int = 0,
        budget: int | None = None,
        lengths: list[int] | None = None,
    ) -> Decoding:
        """Return an arm ready to work on a prompt. Decodings of one `stream` draw the same random numbers.

        An arm that can only decode greedily does so. lengths: makes it an instrument; every phase is timed, each round
        drafts one of these lengths, and it decodes all of the text: its rounds give the cost of each length.
        """
        target, ids = self.setup.target.with_own_cache(), prompt.ids.to(self.setup.device)
        budget = self.max_new_tokens if lengths else budget or self.max_new_tokens
        if arm == GENERATE:
            return LibraryDecoding(arm, target.model, ids, budget)
        sampling = GREEDY if self.greedy_only(arm) else sampling
        settings = DecodeSettings(budget, sampling, seed=self.seed * 1009 + stream)
        if not arm.speculative:
            return Decoding(arm, autoregressive_decode(target, ids, settings, self.setup.chunk), ids.shape[1], budget)
        own = self.drafter(arm, prompt)
        drafter, how = self.functions.adapt(own, None), (ids, arm.draft_length, settings)
        if lengths:
            rounds = with_phases(self.functions, target, VariedLength(drafter, lengths, stream), *how)
        else:
            rounds = self.functions.rounds(target, drafter, *how)
        return Decoding(arm, map(own.described, rounds), ids.shape[1], budget)

    def budget(self, prompt: Prompt, sampling: Sampling) -> int:
        """Return how many tokens every arm decodes of this prompt, in every repeat.

        A greedy text that ends in repetition is decoded only up to where that begins in the target's text, which is
        made once more for this, untimed: repeated tokens are easy to draft and would raise every speedup, most of all
        those of lookups. Two tokens are the least, since the first one comes with the prompt's own pass. Sampled texts
        differ from draw to draw and are not cut.
        """
        if not sampling.greedy or self.max_new_tokens <= REPEATED:
            return self.max_new_tokens
        return max(2, n_before_repetition(self.whole_text(prompt)))

    def whole_text(self, prompt: Prompt, draft_length: int = 0) -> list[int]:
        """Return the target's greedy text of `max_new_tokens` tokens, made once by passes over draft_length + 1."""
        key = (draft_length, *prompt.id_list)
        if key not in self._texts:
            target, ids = self.setup.target.with_own_cache(), prompt.ids.to(self.setup.device)
            settings = DecodeSettings(self.max_new_tokens)
            self._texts[key] = reference_text(speculative_decode, target, ids, draft_length, settings)
        return self._texts[key]

    def greedy_only(self, arm: Arm) -> bool:
        return arm == GENERATE or (arm.draft in self.drafters and self.drafters[arm.draft].needs_text)

    def lossy_rule(self, arm: Arm) -> str | None:
        rule = self.functions.rule
        return rule.name if rule.law and arm.speculative and arm.draft_length > 0 else None

    def prepare(self, draft_lengths: Iterable[int], samplings: Iterable[Sampling], longest: int) -> bool:
        """Return whether anything is recorded and replayed: with the eager engine, too, a GPU replays the accept rule.
        If so, say which passes will come, and record the accept rule for every number of drafted tokens, for a chain
        and every other kind of draft that is made here, without and with the probabilities of a draft.

        Verification runs at k + 1 tokens for every draft length k; a drafter says how many its own models read.
        longest: tokens of a text, its prompt and what is drafted behind its end included.
        """
        if self.setup.device.type not in ON_GRAPHS:
            return False
        setup, drafters, most = self.setup, list(self.drafters.values()), max(draft_lengths, default=0)
        device, n_ids = setup.device, setup.target.vocab_size
        setup.target.prepare({k + 1 for k in draft_lengths}, longest)
        for drafter in drafters:
            for model in drafter.models:
                model.prepare(drafter.pass_widths(most), longest)
        is_drawn = any(part.draws for drafter in drafters for part in drafter.parts)
        wide = torch.float64 if setup.dtype == torch.float64 else torch.float32
        for sampling, n in itertools.product(samplings, range(most + 1)):
            ids, size = torch.zeros(1, n, dtype=torch.long, device=device), torch.full((1,), n, device=device)
            logits = torch.zeros(1, n + 1, n_ids, dtype=setup.dtype, device=device)
            uniforms = torch.zeros(1, n + 1, dtype=torch.float64, device=device)
            has_probs = is_drawn and n > 0 and not sampling.greedy
            for probs in [None, torch.ones(1, n, n_ids, dtype=wide, device=device)][: 1 + has_probs]:
                chain = Draft(ids, size, probs)
                kinds = {type(draft): draft for draft in (one.as_drafted(chain) for one in drafters if n)}
                for draft in (kinds | {Draft: chain}).values():
                    self.functions.accept(draft, logits, sampling, uniforms)
        return True

    def drafter(self, arm: Arm, prompt: Prompt) -> Drafter:
        """Return a drafter for a prompt, which shares what this arm has learned from the prompts before."""
        if arm not in self.taught:
            self.taught[arm] = copy.deepcopy(self.drafters[arm.draft])
            self.taught[arm].forget()
        drafter = copy.deepcopy(self.taught[arm])
        if drafter.needs_text:
            drafter.take_text(self.whole_text(prompt, arm.draft_length))
        return drafter
