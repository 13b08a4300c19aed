"""Decodings at work on a prompt, step by step or as a whole, each with the seconds that it took.

A decoding of the lab advances by a round. One of the library's own decoders is finished in one advance.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from speclab.core.counts import Counts
from speclab.core.rounds import Round
from speclab.models.family import family_of
from speclab.records.arms import BEAM, Arm
from speclab.records.log import End, RoundCounts
from speclab.records.rows import as_written
from speclab.system.errors import EnvironmentProblem


class Decoding:
    """An arm at work on one prompt. `advance` does one round (of the baseline: one chunk) and books its seconds.

    own_verify: the draft runs a part of the target, so verification costs something else than with other drafts.
    """

    def __init__(self, arm: Arm, rounds: Iterator[Round], n_prompt: int, budget: int, own_verify: bool = False):
        self.arm, self.budget, self.n_prompt, self.own_verify = arm, budget, n_prompt, own_verify
        self.tokens: list[int] = []
        self.counts = Counts()
        self.prefill_seconds = self.decode_seconds = 0.0
        self.rounds: list[RoundCounts] = []
        self.log: list[tuple[int, float, Round]] = []  # of each: tokens in the target's cache before it, seconds, round
        self._rounds = rounds

    @property
    def done(self) -> bool:
        """Whether its budget is used up."""
        return len(self.tokens) >= self.budget

    @property
    def progress(self) -> int:
        """The number of tokens that it has committed."""
        return len(self.tokens)

    def advance(self) -> None:
        """Do the next round."""
        start = time.perf_counter()
        round_ = next(self._rounds)  # ends with tokens on the host, so the device has nothing left to do
        seconds = time.perf_counter() - start
        if round_.prefill:
            self.prefill_seconds += seconds
        else:
            self.decode_seconds += seconds
            self.rounds.append(RoundCounts(round_.n_drafted, round_.n_accepted, round_.looked_up))
            self.log.append((self.n_prompt + len(self.tokens) - 1, seconds, round_))
        self.counts.add(round_)
        self.tokens += round_.tokens
        if self.done:
            self._rounds = iter(())  # frees the caches, which the next decoding may take

    def end(self, eos: frozenset[int]) -> End | None:
        """Return where the answer ends at the first of these ids. Whole rounds count: the loop makes no half ones.

        None where the rounds are not known.
        """
        if not self.log and len(self.tokens) > 1:
            return None
        n = next((i for i, token in enumerate(self.tokens, 1) if token in eos), len(self.tokens))
        seconds, n_made = 0.0, 1
        for _, its_seconds, round_ in self.log:
            if n_made >= n:
                break
            seconds, n_made = seconds + its_seconds, n_made + len(round_.tokens)
        return End(n, as_written(seconds))


# --- the library's own decoders ---------------------------------------------------------------------------------------


class LibraryDecoding(Decoding):
    """The library at work on one prompt: `model.generate`, alone, with an assistant, with prompt lookup, or with
    beams. options: further ones of `generate`.

    One `advance` decodes the whole text. Its seconds count as decoding and hold the prompt's own pass, too.
    """

    def __init__(
        self,
        arm: Arm,
        model: PreTrainedModel,
        ids: Tensor,
        budget: int,
        draft: PreTrainedModel | None,
        options: Mapping[str, Any] = MappingProxyType({}),
    ):
        super().__init__(arm, iter(()), ids.shape[1], budget)
        if arm.method != "generate" and not all(family_of(one).crops for one in (model, draft) if one is not None):
            raise EnvironmentProblem(
                "the library's own speculative decoding takes no model whose states cannot be cropped; use compare.py"
            )
        self._model, self._ids, self._draft, self._options = model, ids, draft, options

    def advance(self) -> None:
        """Decode the whole text."""
        options = dict(self._options)
        with contextlib.ExitStack() as stack:
            if self.arm.method in ("assisted", "dynamic") and self._draft is not None:
                k = self.arm.draft_length if self.arm.method == "assisted" else None
                options["assistant_model"] = stack.enter_context(drafting(self._draft, k))
            elif self.arm.method == "lookup":
                options["prompt_lookup_num_tokens"] = self.arm.draft_length
            elif self.arm.method == BEAM:
                options["num_beams"] = self.arm.draft_length
            widths = stack.enter_context(counted_passes(self._model))
            self.decode_seconds, self.tokens = library_generate(self._model, self._ids, self.budget, **options)
        if len(self.tokens) != self.budget:
            raise EnvironmentProblem(f"model.generate gave {len(self.tokens)} tokens of {self.budget}; leave it out")
        self.counts = Counts(n_rounds=len(widths) - 1, n_emitted=len(self.tokens) - 1)


def library_generate(model: PreTrainedModel, ids: Tensor, max_new_tokens: int, **options) -> tuple[float, list[int]]:
    """Greedy `model.generate` with the lab's settings; `options` add an assistant or prompt lookup.

    ids: (rows, n), with an `attention_mask` in `options` where some are padded.
    -> seconds with prefill, new tokens of the first row
    """
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0} | options
    start = time.perf_counter()
    with warnings.catch_warnings(), settings_of_the_lab(model):
        warnings.simplefilter("ignore")
        output = model.generate(ids, max_new_tokens=max_new_tokens, **options)  # type: ignore[operator]
    tokens = output[0, family_of(model).room(model).length_after(ids.shape[1]) :].tolist()  # waits for the device
    return time.perf_counter() - start, tokens


@contextlib.contextmanager
def settings_of_the_lab(model: PreTrainedModel) -> Iterator[None]:
    """Let `model.generate` use the lab's settings: no penalties, nothing forced, no end token. The library fills what a
    call leaves out from the model's own settings, so those are replaced for a while."""
    own = model.generation_config
    start = family_of(model).start_id(model)
    model.generation_config = GenerationConfig(pad_token_id=0, decoder_start_token_id=start)
    try:
        yield
    finally:
        model.generation_config = own


@contextlib.contextmanager
def drafting(draft: PreTrainedModel, k: int | None) -> Iterator[PreTrainedModel]:
    """Inside, the library drafts k tokens in every round, or with None as its own defaults say: 20 tokens at most, and
    none after one that the draft gave a probability below 0.4."""
    own = draft.generation_config
    draft.generation_config = GenerationConfig(
        pad_token_id=0,
        num_assistant_tokens=20 if k is None else k,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.4 if k is None else 0.0,
    )
    try:
        yield draft
    finally:
        draft.generation_config = own


@contextlib.contextmanager
def counted_passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """Widths of the passes of all layers of `model` while this is open. It costs a microsecond a pass."""
    widths: list[int] = []
    name = family_of(model).input_name
    n_layers = model.config.get_text_config().num_hidden_layers

    def count(module, args: tuple, kwargs: dict) -> None:
        if module.config.get_text_config().num_hidden_layers < n_layers:
            return  # the first layers alone, which the library drafts with: it has changed the number meanwhile
        widths.append((args[0] if args else kwargs[name]).shape[1])

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield widths
    finally:
        handle.remove()
