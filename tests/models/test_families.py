"""Families of models that differ in what decoding depends on: each writes the library's text."""

import itertools
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from draft_models import ModelDrafter
from speclab.core.rounds import tokens_of
from speclab.models import loading, setup
from speclab.models.cached import CachedModel
from speclab.models.checks import Reference, check_model
from speclab.models.family import family_of
from speclab.theory.losslessness import judge_divergence
from tests.decoding import plain_text, speculative_rounds
from tests.grids import and_in_full
from tests.tiny_families import VOCAB, tiny
from tests.tiny_models import perturbed

PROMPTS = (6, 12)  # lengths: shorter and longer than a tiny model's sliding window
N_NEW = 40
NOISES = (0.1, 0.03, 0.3, 0.01, 1.0)  # of the draft's weights, tried until drafts are both accepted and rejected
DECODED = {  # family -> why it is not on the engine c
    "llama": "",
    "gpt2": "",  # learned positions
    "falcon": "does not know",  # attention beside the MLP, one head of keys for all
    "mixtral": "does not know",  # a mixture of experts
    "deepseek_v3": "does not know",  # latent attention
    "gemma3_text": "",  # sliding windows among full layers
    "llama4_text": "does not know",
    "bloom": "does not know",  # ALiBi
}
OFTEN = ("gpt2", "bloom", "llama4_text")  # of each kind of cache the family that is examined fastest


def loaded(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model as the scripts load it. The text part of a larger model cannot be loaded from a folder of its own."""
    if model.config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        model.save_pretrained(folder)
        return loading.load_model(str(folder), torch.device("cpu"), torch.float32)
    check_model(model)
    return model


def prompt_of(length: int) -> torch.Tensor:
    """(1, length) ids; 0 is the special token of the tiny models."""
    return torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(0))


def library_text(model: PreTrainedModel, prompt: torch.Tensor) -> list[int]:
    """The text that the library's own greedy loop makes of the prompt, without ends and forced tokens."""
    model.generation_config = GenerationConfig(decoder_start_token_id=family_of(model).start_id(model))
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=N_NEW)
    return ids[0, family_of(model).room(model.config).length_after(prompt.shape[1]) :].tolist()


def check_decodes(model: PreTrainedModel, why_eager: str) -> None:
    """With and without drafts, on each engine that the family has, the text is the library's up to a near-tie."""
    fast, why = setup.build_engine(model)
    assert (fast is None) == bool(why_eager), why
    assert why_eager in why
    targets = [CachedModel(model, fast=one) for one in ((None, fast) if fast else (None,))]
    right, reference = {n: library_text(model, prompt_of(n)) for n in PROMPTS}, Reference(model)

    def check_text(target: CachedModel, n: int, text: list[int]) -> None:
        found = judge_divergence(reference, prompt_of(n)[0].tolist(), right[n], text, target.vocab_size)
        assert found is None or found.numerical, f"{target.engine} engine, prompt of {n} tokens: {found}"

    for target, n in itertools.product(targets, PROMPTS):
        check_text(target, n, plain_text(target, prompt_of(n), N_NEW))
    tested = [0, 0]  # accepted and rejected
    for noise in NOISES:
        drafter = ModelDrafter(CachedModel(perturbed(model, noise)))
        for target, n, k in itertools.product(targets, PROMPTS, (1, 4)):
            rounds = list(speculative_rounds(target, drafter, prompt_of(n), k, N_NEW))
            check_text(target, n, tokens_of(rounds))
            tested = [tested[0] + sum(r.n_accepted for r in rounds), tested[1] + sum(r.n_rejected for r in rounds)]
        if all(tested):
            return
    pytest.fail(f"accepted and rejected: {tested}")


@pytest.mark.parametrize("family", and_in_full(OFTEN, [one for one in DECODED if one not in OFTEN]))
def test_a_family_writes_the_librarys_text(family, tmp_path):
    check_decodes(loaded(tiny(family), tmp_path), DECODED[family])


def test_another_text_would_be_seen(monkeypatch):
    monkeypatch.setitem(globals(), "library_text", lambda model, prompt: [1] * N_NEW)
    with pytest.raises(AssertionError, match="eager engine, prompt of 6 tokens"):
        check_decodes(tiny("gpt2"), "")
