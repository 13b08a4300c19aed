"""The library's own ways to decode beside the lab's: with a draft model and with prompt lookup."""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from speclab.core.counts import Counts
from speclab.lab.instruments import LibraryDecoding
from speclab.models.family import family_of
from speclab.records.rows import Arm
from speclab.system.errors import EnvironmentProblem

PEER = {
    "baseline": "generate",
    "model": "assisted",
    "model auto": "dynamic",
    "ngram": "lookup",
    "exit": "early exit",
}  # the lab's method -> the library's
CONSTANT = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}


class PeerDecoding(LibraryDecoding):
    """The library at work on one prompt, by the method of the arm. drafter: the lab's, whose model or layers draft."""

    def __init__(self, arm: Arm, model: PreTrainedModel, ids: Tensor, budget: int, drafter: Any = None):
        drafts = [one.model for one in drafter.models] if drafter else []
        if arm.method != "generate" and not all(family_of(one).crops for one in (model, *drafts)):
            what = "the library's own speculative decoding takes no model whose states cannot be cropped"
            raise EnvironmentProblem(f"{what}; use compare.py")
        options: dict[str, Any] = {}
        if arm.method == "lookup":
            options["prompt_lookup_num_tokens"] = arm.draft_length
        if arm.method == "early exit":
            how = {"assistant_early_exit": drafter.head.config.exit_layer, "num_assistant_tokens": arm.draft_length}
            options = how | CONSTANT
        super().__init__(arm, model, ids, budget, **options)
        self._drafts = drafts

    def advance(self) -> None:
        with contextlib.ExitStack() as stack:
            if self.arm.method in ("assisted", "dynamic"):
                k = self.arm.draft_length if self.arm.method == "assisted" else None
                self.options["assistant_model"] = stack.enter_context(drafting(self._drafts[0], k))
            widths = stack.enter_context(counted_passes(self.model))
            super().advance()
        self.counts = Counts(n_rounds=len(widths) - 1, n_emitted=len(self.tokens) - 1)


@contextlib.contextmanager
def drafting(draft: PreTrainedModel, k: int | None) -> Iterator[PreTrainedModel]:
    """Inside, the library drafts k tokens in every round, or with None as its own defaults say: 20 tokens at most, and
    none after one that the draft gave a probability below 0.4."""
    own, how = draft.generation_config, CONSTANT | ({"assistant_confidence_threshold": 0.4} if k is None else {})
    draft.generation_config = GenerationConfig(pad_token_id=0, num_assistant_tokens=20 if k is None else k, **how)
    try:
        yield draft
    finally:
        draft.generation_config = own


@contextlib.contextmanager
def counted_passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """Widths of the passes of all layers of `model` while this is open. It costs a microsecond a pass."""
    widths: list[int] = []
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
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
