"""Bugs in speclab/models: what a model is fed, and the checks before it decodes."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from speclab.engines.c_pass import CModel
from speclab.models import cached, engine_choice, family, loading, pieces, prompts, setup
from speclab.models.cached import CachedModel
from speclab.models.checking import checks, rounding
from speclab.models.padded import padding
from speclab.models.setup import Setup
from tests.mutants.bugs import mutant

# ---------------------------------------------------------------- the checks of a model


@mutant(24, "a_spread_model_runs_eagerly", file="models/test_placement")
def takes_weights_in_several_places_for_weights_in_one() -> None:
    """takes a model with weights in several places for one with all of them in one place"""
    engine_choice.placement.is_sharded = lambda model: False


@mutant(24, "an_encoder_attends_to_later_tokens", file="models/test_checks")
def does_not_look_at_later_tokens() -> None:
    """does not look whether a later token changes earlier logits"""
    right = checks._compare

    def compare(model: PreTrainedModel, parts: list, reason: str, *more: Any) -> None:
        if reason != "attends to later tokens":
            right(model, parts, reason, *more)

    checks._compare = compare


def change_cached_logits(instead: Callable[..., Tensor], eager: bool, rolled_back: bool) -> None:
    """In the checks of one engine, with or without a rollback: `instead(right function, cached, text)`."""
    right = checks.cached_logits

    def logits(
        cached: CachedModel, text: Tensor, widths: tuple[int, ...] = checks.WIDTHS, wrong: tuple[int, ...] = (), **more
    ) -> Tensor:
        if (cached.fast is None) == eager and bool(wrong) == rolled_back:
            return instead(right, cached, text)
        return right(cached, text, widths, wrong, **more)

    checks.cached_logits = logits


@mutant(24, "a_model_without_a_cache_is_refused", file="models/test_checks")
def feeds_the_check_of_the_cache_no_cache() -> None:
    """feeds the check of the cache no cache"""

    def uncached(right: Callable[..., Tensor], cached: CachedModel, text: Tensor) -> Tensor:
        return checks.uncached_logits(cached.model, text)[:, -sum(checks.WIDTHS) :]

    change_cached_logits(uncached, eager=True, rolled_back=False)


@mutant(24, "a_cache_that_keeps_rejected_tokens_is_refused", file="models/test_checks")
def rolls_nothing_back_in_the_check() -> None:
    """rolls nothing back when it checks the rollback"""
    change_cached_logits(lambda right, cached, text: right(cached, text), eager=True, rolled_back=True)


@mutant(24, "an_engine_that_loses_what_was_rolled_back_is_refused", file="engines/test_choice")
def rolls_nothing_back_in_the_engines_check() -> None:
    """rolls nothing back when it checks another engine"""
    change_cached_logits(lambda right, cached, text: right(cached, text), eager=False, rolled_back=True)


@mutant(24, "logits_that_change_from_pass_to_pass_are_refused", file="models/test_checks")
def believes_the_first_pass() -> None:
    """believes the first pass"""
    right, known = checks.uncached_logits, {}

    def logits(model: PreTrainedModel, text: Tensor) -> Tensor:
        key = (id(model), tuple(text[0].tolist()))
        if key not in known:
            known[key] = right(model, text)
        return known[key]

    checks.uncached_logits = logits


@mutant(24, "a_mixture_of_experts_is_compared_at_its_median_position", file="models/test_checks")
def compares_all_at_their_median() -> None:
    """compares every model at its median position"""
    checks.is_mixture_of_experts = lambda model: True


@mutant(28, "the_bound_counts_real_logits_only", file="models/test_checks")
def counts_masked_tokens() -> None:
    """lets a masked token's lowest number widen the bound"""

    def unit(logits: Tensor) -> float:
        size = logits.abs()
        return torch.finfo(logits.dtype).eps * size[size < torch.inf].max().item()

    rounding.rounding_unit = unit


@mutant(28, "wrong_logits_are_no_engine_however_noisy_the_eager_one", file="engines/test_choice")
def holds_an_engine_against_itself() -> None:
    """holds another engine against itself"""
    right, uncached = engine_choice.check, checks.uncached_logits

    def check(model: PreTrainedModel, fast: CModel) -> None:
        cached = CachedModel(model, fast=fast)

        def own(model: PreTrainedModel, text: Tensor) -> Tensor:
            return checks.cached_logits(cached, text, wrong=checks.WRONG)

        checks.uncached_logits = own
        try:
            right(model, fast)
        finally:
            checks.uncached_logits = uncached

    engine_choice.check = check


# ---------------------------------------------------------------- what is loaded


@mutant(24, "missing_weights_are_named", file="models/test_loading")
def lets_the_library_fill_missing_weights() -> None:
    """lets the library fill missing weights with random numbers"""
    right = loading.loaded

    def loaded(name: str, what: str, load: Callable[[], Any]) -> Any:
        result = right(name, what, load)
        if isinstance(result, tuple):
            result[1]["missing_keys"] = []
        return result

    loading.loaded = loaded


@mutant(24, "an_encoder_is_refused_at_load", file="models/test_loading")
def loads_without_a_proof() -> None:
    """loads a model without proving it"""
    loading.check_model = lambda model: None


@mutant(27, "code_of_a_model_folder_never_runs", file="models/test_loading", raises="AttributeError")
def trusts_the_code_of_a_folder() -> None:
    """trusts the code of a model folder"""
    loading.NO_CODE = {"trust_remote_code": True}


@mutant(27, "a_hub_kernel_in_a_config_is_refused_by_name", file="models/test_loading")
def lets_a_config_name_kernels() -> None:
    """lets a config name kernels of the hub"""
    loading._refuse_kernels = lambda name, config: None


# ---------------------------------------------------------------- ids and settings


@mutant(25, "a_narrow_draft_leaves_the_target_its_text", file="models/test_loading")
def cuts_the_target_to_its_draft() -> None:
    """cuts the target to the ids of its draft"""
    right = Setup.cached

    def narrow(setup: Setup, model: PreTrainedModel, vocab_size: int) -> CachedModel:
        setup.target.vocab_size = min(vocab_size, model.config.vocab_size)
        return right(setup, model, setup.target.vocab_size)

    Setup.cached = narrow


@mutant(
    25,
    "ids_that_the_draft_lacks_have_probability_0_and_can_be_committed",
    file="drafts/test_drafts",
    raises="IndexError",
)
def feeds_the_draft_ids_it_lacks() -> None:
    """feeds the draft ids that it lacks"""
    CachedModel.replace_unknown = lambda model, ids: ids


@mutant(
    25,
    "ids_that_only_the_targets_tokenizer_has_are_never_drafted_and_come_all_the_same",
    "what_is_drawn_is_what_the_forecast_computes",
    file="models/test_same_tokenizer",
)
def drafts_with_all_rows_of_a_drafts_model() -> None:
    """drafts ids for which the draft's model has rows and its tokenizer has no words"""
    loading.check_same_tokenizer = lambda target, draft, *names: len(target.get_vocab())


@mutant(
    24,
    "the_limit_is_where_the_factors_change",
    "texts_up_to_the_limit_are_those_of_uncached_passes",
    file="models/test_rope",
)
def decodes_across_the_border_of_longrope() -> None:
    """decodes on where longrope gives all positions other factors"""
    family._up_to_borders = lambda config, room: room


@mutant(25, "a_tokenizer_with_more_ids_than_the_model_is_refused", file="models/test_loading", raises="IndexError")
def takes_a_prompt_with_unknown_ids() -> None:
    """takes a prompt with ids that the model lacks"""
    right = cached.check_prompt

    def check(model: CachedModel, prompt: Tensor, max_new_tokens: int) -> None:
        right(model, model.replace_unknown(prompt), max_new_tokens)

    cached.check_prompt = check


@mutant(26, "settings_that_the_lab_leaves_out_are_named_once", file="models/test_loading")
def names_no_settings() -> None:
    """does not name the settings that are left out"""
    Setup.unapplied = property(lambda setup: "")


# ---------------------------------------------------------------- texts


@mutant(31, "a_chat_begins_with_one_special_token_and_ends_where_the_model_answers", file="models/test_chat")
def adds_the_tokenizers_special_tokens_to_a_chat() -> None:
    """lets the tokenizer add its special tokens to those of the chat template"""
    right = prompts._ids
    prompts._ids = lambda tokenizer, text, special: right(tokenizer, text, True)


@mutant(31, "the_first_new_word_keeps_its_space", file="models/test_pieces")
def decodes_the_new_tokens_alone() -> None:
    """decodes the new tokens without those before them"""
    right = pieces.pieces
    setup.pieces = pieces.pieces = lambda tokenizer, before=(), special=False: right(tokenizer, (), special)


@mutant(31, "joined_pieces_are_the_tokenizers_text", file="models/test_pieces")
def shows_bytes_that_may_become_other_signs() -> None:
    """shows the text of byte tokens before the token that ends their run, after which it may be no character"""
    pieces.BYTE_TOKEN = re.compile("nothing")


@mutant(31, "whole_tokens_are_shown_at_once", file="models/test_pieces")
def holds_back_every_text_until_its_end() -> None:
    """shows nothing before the end"""
    pieces.Pieces.add = lambda self, ids: self._ids.extend(ids) or ""


# ---------------------------------------------------------------- padded models


@mutant(25, "added_rows_of_the_output_layer_are_computed_and_never_win", file="models/test_padding")
def lets_added_ids_win() -> None:
    """gives the ids that a padded output layer adds random logits, in place of the mean of the others"""
    right = padding.pad_to

    def pad_to(small: PreTrainedModel, *more: Any) -> PreTrainedModel:
        large = right(small, *more)
        with torch.no_grad():
            large.lm_head.weight[small.config.vocab_size :].normal_(0.0, 1.0)
        return large

    padding.pad_to = pad_to


@mutant(24, "the_steps_of_plain_decoding_are_checked_too", file="models/test_checks")
def checks_no_step_of_plain_decoding() -> None:
    """checks the passes of rounds alone, and not the steps of plain decoding"""
    checks.one_step = CachedModel.forward


@mutant(24, "an_encoder_decoder_without_its_extension_is_refused_at_load", file="models/test_family")
def loads_the_decoder_of_an_encoder_decoder() -> None:
    """takes an encoder-decoder for a decoder alone, which the library loads without its encoder"""
    family.Family.check_config = lambda self, config: None


@mutant(24, "what_a_draft_needs_decides_who_is_refused", file="models/test_family")
def takes_layers_that_cannot_be_cropped() -> None:
    """gives a draft that needs something of each token a model that keeps nothing of it"""
    right = family.check_family
    family.check_family = lambda model, what, way_out, crops=True: right(model, what, way_out, False)
