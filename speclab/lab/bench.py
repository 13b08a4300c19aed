"""What turns an arm and a prompt into a decoding: one target, its drafts, and the parts of the loop."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from baseline_autoregressive import autoregressive_decode
from optimized_speculative import speculative_decode
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Draft, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.oracle import reference_text
from speclab.engines.cuda import graphs
from speclab.lab.decodings import Decoding, LibraryDecoding
from speclab.lab.instruments import LoopFunctions, VariedLength, with_phases
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.rows import GENERATE, Arm

SPECULATIVE = LoopFunctions(speculative_decode)
PERIOD, REPEATED = 48, 32  # tokens: the longest period that counts as repetition, and how many tokens must repeat


def n_before_repetition(tokens: Sequence[int]) -> int:
    """Return how many tokens of a text come before it begins to repeat: all of them where it does not end in
    repetition.

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


class Bench:
    """One target, its drafts, and how long to decode. `functions`: the parts of the speculative arms."""

    def __init__(
        self,
        setup: Setup,
        drafters: dict[str, Drafter],
        max_new_tokens: int,
        seed: int,
        functions: LoopFunctions = SPECULATIVE,
    ):
        self.setup, self.drafters, self.max_new_tokens, self.seed = setup, drafters, max_new_tokens, seed
        self.functions = functions
        self._references: dict[tuple[int, ...], list[int]] = {}  # draft length and prompt -> greedy text
        self._whole_texts: dict[tuple[int, ...], list[int]] = {}  # prompt -> greedy text of the baseline
        self._own: dict[Arm, Drafter] = {}  # of each arm: drafts learn, and one arm teaches no other

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
        drafts one of these lengths, and it decodes all of the text: its rounds say what they cost, whatever the text.
        """
        target, ids = self.setup.target.with_own_cache(), prompt.ids.to(self.setup.device)
        budget = None if lengths else budget
        budget = budget or self.max_new_tokens
        if arm == GENERATE:
            return LibraryDecoding(arm, target.model, ids, budget)
        sampling = GREEDY if self.greedy_only(arm) else sampling
        settings = DecodeSettings(budget, sampling, seed=self.seed * 1009 + stream)
        if not arm.speculative:
            return Decoding(arm, autoregressive_decode(target, ids, settings, self.setup.chunk), ids.shape[1], budget)
        own = self._drafter(arm, ids, budget)
        drafter = self.functions.adapt(own, None)
        if lengths:
            drafter = VariedLength(drafter, lengths, stream)
            rounds = with_phases(self.functions, target, drafter, ids, arm.draft_length, settings)
        else:
            rounds = self.functions.rounds(target, drafter, ids, arm.draft_length, settings)
        own_verify = any(part.pass_share < 1 for part in own.parts)
        return Decoding(arm, map(own.described, rounds), ids.shape[1], budget, own_verify)

    def budget(self, prompt: Prompt, sampling: Sampling) -> int:
        """Return how many tokens every arm decodes of this prompt, in every repeat.

        A greedy text that ends in repetition is decoded only up to where that begins in the baseline's text: repeated
        tokens are easy to draft and would raise every speedup, most of all those of lookups. Two tokens are the least,
        since the first one comes with the prompt's own pass. Sampled texts differ from draw to draw and are not cut.
        """
        if not sampling.greedy or self.max_new_tokens <= REPEATED:
            return self.max_new_tokens
        return max(2, n_before_repetition(self.whole_text(prompt)))

    def whole_text(self, prompt: Prompt) -> list[int]:
        """Return the baseline's greedy text of `max_new_tokens` tokens. It is decoded once; no clock runs."""
        key = tuple(prompt.id_list)
        if key not in self._whole_texts:
            target, settings = self.setup.target.with_own_cache(), DecodeSettings(self.max_new_tokens)
            rounds = autoregressive_decode(target, prompt.ids.to(self.setup.device), settings, self.setup.chunk)
            self._whole_texts[key] = tokens_of(rounds)
        return self._whole_texts[key]

    def greedy_only(self, arm: Arm) -> bool:
        return arm == GENERATE or (arm.draft in self.drafters and self.drafters[arm.draft].needs_text)

    def lossy_rule(self, arm: Arm) -> str | None:
        rule = self.functions.rule
        return rule.name if rule.law and arm.speculative and arm.draft_length > 0 else None

    @property
    def on_graphs(self) -> bool:
        """Tell whether anything is recorded and replayed here: with the eager engine, too, a GPU replays the accept
        rule."""
        return graphs.on_graphs(torch.empty(0, device=self.setup.device))

    def prepare(self, draft_lengths: Iterable[int], samplings: Iterable[Sampling], longest: int) -> None:
        """On CUDA graphs: say which passes will come, and record the accept rule for every number of drafted tokens.

        Verification runs at k + 1 tokens for every draft length k; a drafter says how many its own models read.
        longest: tokens of a text, its prompt and what is drafted behind its end included.
        """
        if not self.on_graphs:
            return
        most = max(draft_lengths, default=0)
        self.setup.target.prepare({k + 1 for k in draft_lengths}, longest)
        for drafter in self.drafters.values():
            for model in drafter.models:
                model.prepare(drafter.pass_widths(most), longest)
        is_drawn = any(part.draws for drafter in self.drafters.values() for part in drafter.parts)
        for sampling, n in itertools.product(samplings, range(most + 1)):
            for draft, logits, uniforms in self._rounds_to_judge(n, is_drawn and not sampling.greedy):
                self.functions.accept(draft, logits, sampling, uniforms)

    def _rounds_to_judge(self, n: int, sampled: bool) -> Iterator[tuple[Draft, Tensor, Tensor]]:
        """Yield what the accept rule gets in a round with `n` drafted tokens: without and with a draft's probabilities,
        of a chain and of every other kind of draft that is made here."""
        device, n_ids = self.setup.device, self.setup.target.vocab_size
        ids, size = torch.zeros(1, n, dtype=torch.long, device=device), torch.full((1,), n, device=device)
        logits = torch.zeros(1, n + 1, n_ids, dtype=self.setup.dtype, device=device)
        uniforms = torch.zeros(1, n + 1, dtype=torch.float64, device=device)
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        for law in [None, torch.ones(1, n, n_ids, dtype=wide, device=device)] if sampled and n else [None]:
            chain = Draft(ids, size, law)
            kinds = {type(draft): draft for draft in (one.as_drafted(chain) for one in self.drafters.values() if n)}
            for draft in (kinds | {Draft: chain}).values():
                yield draft, logits, uniforms

    def forget(self) -> None:
        """Drop what drafts have learned."""
        self._own.clear()

    def _drafter(self, arm: Arm, ids: Tensor, budget: int) -> Drafter:
        if arm not in self._own:
            self._own[arm] = copy.deepcopy(self.drafters[arm.draft])
            self._own[arm].forget()
        drafter = copy.deepcopy(self._own[arm])  # keeps what this arm has learned from the prompts before
        if drafter.needs_text:
            key = (arm.draft_length, *ids[0].tolist())
            if len(self._references.get(key, [])) < budget:
                target, settings = self.setup.target.with_own_cache(), DecodeSettings(budget)
                self._references[key] = reference_text(speculative_decode, target, ids, arm.draft_length, settings)
            drafter.take_text(self._references[key])
        return drafter
