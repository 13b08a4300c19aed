"""Decodings at work on a prompt, step by step or as a whole, each with the seconds that it took."""

import time
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.models.family import family_of
from speclab.records.rows import LOOKUP, Arm, RoundCounts
from speclab.system.errors import EnvironmentProblem
from speclab.theory.costs import RoundTime, catch_ups


class Decoding:
    """An arm at work on one prompt. `advance` does one round (of the baseline: one chunk) and books its seconds."""

    def __init__(self, arm: Arm, rounds: Iterator[Round], n_prompt: int, budget: int):
        self.arm, self.budget, self.n_prompt = arm, budget, n_prompt
        self.tokens: list[int] = []
        self.counts = Counts()
        self.prefill_seconds = self.decode_seconds = 0.0
        self.log: list[tuple[int, float, Round]] = []  # of each: tokens in the target's cache before it, seconds, round
        self._rounds = rounds

    @property
    def progress(self) -> int:
        return len(self.tokens)

    @property
    def done(self) -> bool:
        return self.progress >= self.budget

    @property
    def rounds(self) -> list[RoundCounts]:
        return [RoundCounts(made.n_drafted, made.n_accepted, made.looked_up) for *_, made in self.log]

    def times(self, temperature: float) -> list[RoundTime]:
        """Return what each round took, and of the baseline the mean step of each chunk, at its middle."""
        found = []
        for (context, seconds, made), catch_up in zip(self.log, catch_ups(self.rounds), strict=True):
            if self.arm.speculative:
                phases, name = made.seconds or {}, self.arm.draft + LOOKUP * made.looked_up
                draft, verify = phases.get("draft", 0.0), phases.get("verify", 0.0)
                what = (name, temperature, context, made.n_drafted, catch_up)
                found.append(RoundTime(*what, draft, verify, seconds - draft - verify, made.n_replays))
            else:
                n = len(made.tokens)
                found.append(RoundTime("", temperature, context + n // 2, 0, 1, 0.0, seconds / n, 0.0))
        return found

    def advance(self) -> None:
        start = time.perf_counter()
        round_ = next(self._rounds)  # ends with tokens on the host, so the device has nothing left to do
        seconds = time.perf_counter() - start
        if round_.prefill:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds
            self.log.append((self.n_prompt + len(self.tokens) - 1, seconds, round_))
        self.counts.add(round_)
        self.tokens += round_.tokens
        if self.done:
            self._rounds = iter(())  # frees the caches, which the next decoding may take


class LibraryDecoding(Decoding):
    """`model.generate` at work on one prompt. options: further ones of `generate`.

    One `advance` decodes the whole text. Its seconds count as decoding and hold the prompt's own pass, too.
    """

    def __init__(self, arm: Arm, model: PreTrainedModel, ids: Tensor, budget: int, **options):
        super().__init__(arm, iter(()), ids.shape[1], budget)
        self.model, self.ids, self.options = model, ids, options

    def advance(self) -> None:
        self.decode_seconds, self.tokens = library_generate(self.model, self.ids, self.budget, **self.options)
        if len(self.tokens) != self.budget:
            raise EnvironmentProblem(f"model.generate gave {len(self.tokens)} tokens of {self.budget}; leave it out")


def library_generate(model: PreTrainedModel, ids: Tensor, max_new_tokens: int, **options) -> tuple[float, list[int]]:
    """Greedy `model.generate` with the lab's settings; `options` add an assistant or prompt lookup.

    ids: (rows, n), with an `attention_mask` in `options` where some are padded.
    -> seconds with prefill, new tokens of the first row
    """
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0} | options
    # No penalties, nothing forced, no end token: the library fills what is left out from the model's own settings.
    settings = GenerationConfig(pad_token_id=0, decoder_start_token_id=family_of(model).start_id(model))
    own, start = model.generation_config, time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.generation_config = settings
            output = model.generate(ids, max_new_tokens=max_new_tokens, **options)  # type: ignore[operator]
        finally:
            model.generation_config = own
    n_before = family_of(model).room(model.config).length_after(ids.shape[1])
    tokens = output[0, n_before:].tolist()  # waits for the device
    return time.perf_counter() - start, tokens
