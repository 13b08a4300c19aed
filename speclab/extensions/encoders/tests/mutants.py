"""Bugs in the passes of encoder-decoder models: the encoder, the decoder's start, and what a rollback crops."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draft_models import ModelDrafter
from speclab.core.rounds import Target
from speclab.core.sampling import Sampling
from speclab.engines.eager import EagerBackend
from speclab.extensions.encoders import backend as encoders_backend
from speclab.extensions.encoders.backend import EncoderDecoderBackend
from speclab.extensions.encoders.family import EncoderRoom
from speclab.models.checking import rounding, uncached
from tests.mutants.bugs import mutant

FILE = "test_encoder_decoder"
BUGS = {43: "an encoder run again, or a decoder behind it begun or rolled back wrongly"}
TEXTS = "plain_text_is_the_librarys_greedy_text"


@mutant(43, "the_encoder_runs_once_for_a_text", file=FILE)
def runs_the_encoder_at_every_pass() -> None:
    """runs the encoder over the prompt in every pass of the decoder"""
    right = EncoderDecoderBackend.prefill

    def prefill(backend: EncoderDecoderBackend, prompt: Tensor) -> Tensor:
        backend.prompt = prompt
        return right(backend, prompt)

    def forward(backend: EncoderDecoderBackend, tokens: Tensor, length: int) -> Tensor:
        options = {"past_key_values": backend._both, "use_cache": True}
        return backend._model(input_ids=backend.prompt, decoder_input_ids=tokens, **options).logits

    EncoderDecoderBackend.prefill, EncoderDecoderBackend._read = prefill, forward


@mutant(43, TEXTS, file=FILE)
def begins_with_the_prompts_last_token() -> None:
    """begins the decoder's text with the last token of the prompt, as a decoder-only model would go on"""
    right = EncoderDecoderBackend.prefill

    def prefill(backend: EncoderDecoderBackend, prompt: Tensor) -> Tensor:
        encoders_backend.start_of = lambda model: prompt[:, -1:]
        return right(backend, prompt)

    EncoderDecoderBackend.prefill = prefill


@mutant(43, TEXTS, file=FILE)
def begins_with_padding() -> None:
    """begins the decoder's text with the padding token, which is the start token of T5 alone"""
    encoders_backend.start_of = lambda model: torch.tensor([[model.config.pad_token_id]])


@mutant(43, "a_rejected_draft_leaves_the_cross_attention_untouched", file=FILE)
def crops_the_cross_attention() -> None:
    """crops the keys and values of the prompt with those of the rejected tokens"""
    right = EagerBackend.crop

    def crop(backend: EagerBackend, n_tokens: int, length: int) -> None:
        right(backend, n_tokens, length)
        if isinstance(backend, EncoderDecoderBackend):
            backend._both.cross_attention_cache.crop(-n_tokens)

    EagerBackend.crop = crop


@mutant(43, "a_rejected_draft_leaves_the_cross_attention_untouched", file=FILE)
def makes_the_cross_attention_anew() -> None:
    """computes the keys and values of the prompt again after every rollback"""
    right = EagerBackend.crop

    def crop(backend: EagerBackend, n_tokens: int, length: int) -> None:
        right(backend, n_tokens, length)
        if n_tokens and isinstance(backend, EncoderDecoderBackend):
            backend._both.cross_attention_cache = encoders_backend.DynamicCache()
            backend._both.is_updated = {}

    EagerBackend.crop = crop


@mutant(10, "caches_equal_a_recomputation_after_every_round", file=FILE)
def crops_no_self_attention() -> None:
    """does not crop the decoder's self-attention"""
    EagerBackend.crop = lambda backend, n_tokens, length: None


@mutant(10, "caches_equal_a_recomputation_after_every_round", file=FILE)
def counts_the_prompt_in_the_decoder() -> None:
    """counts the encoder's tokens as tokens of the decoder's cache"""
    EncoderRoom.length_after = lambda room, n_prompt: n_prompt


@mutant(10, "caches_equal_a_recomputation_after_every_round", file=FILE)
def crops_a_draft_by_the_prompts_length() -> None:
    """takes the prompt's length for the number of tokens that a draft with an encoder has committed"""
    right = ModelDrafter.prefill

    def prefill(drafter: ModelDrafter, target: Target, prompt: Tensor, sampling: Sampling) -> None:
        right(drafter, target, prompt, sampling)
        drafter._n_committed = prompt.shape[1]

    ModelDrafter.prefill = prefill


@mutant(28, "a_difference_of_greedy_texts_is_judged_by_the_decoders_own_logits", file=FILE)
def judges_by_a_decoder_that_reads_the_prompt() -> None:
    """judges texts by logits of a decoder that has read the prompt itself, too"""
    right = uncached.logits_after

    def logits_after(model: PreTrainedModel, prompt: Tensor, text: Tensor, n_last: int | None = None) -> Tensor:
        logits = right(model, prompt, torch.cat([prompt, text], dim=1), n_last)
        return logits[:, -(text.shape[1] + 1) :]

    rounding.logits_after = logits_after
