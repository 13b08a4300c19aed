"""Encoder-decoder models: one pass of the encoder for a text, and drafts for the decoder over it.

The texts are those of the library's own greedy loop. The caches, the passes of the encoder and what the accept rule is
given are looked at besides: a text does not show an encoder that runs too often.
"""

import functools

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, LEDConfig, PreTrainedModel

from benchmarks.peers.library import counted_passes
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.hybrid import HybridDrafter
from speclab.extensions.encoders.model_family import FAMILY, EncoderDecoderBackend, EncoderRoom, start_id
from speclab.extensions.encoders.tests.tiny_encoders import BOS, FAMILIES, START, VOCAB, tiny, tiny_of
from speclab.lab.instruments import library_generate
from speclab.models import checks
from speclab.models.cached import CachedModel, check_prompt
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.theory.losslessness import judge_divergence
from tests.decoding import keys_and_values, plain_text, speculative_rounds
from tests.tiny_models import perturbed
from tests.tiny_models import tiny as tiny_decoder
from training import heads

N_NEW = 24
OTHERS = ["encoder-decoder", "led", "nllb-moe", "seamless_m4t", "t5gemma2"]  # of each kind of decoder one, and more
OTHERS += ["bigbird_pegasus", "blenderbot", "m2m_100", "marian", "mbart", "mvp", "t5gemma"]
PROMPT = torch.randint(4, VOCAB, (1, 9), generator=torch.Generator().manual_seed(5))
WARM = Sampling(temperature=0.8)


@functools.cache
def target_of(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny(family, dtype=dtype)


@functools.cache
def text_of(family: str, dtype: torch.dtype = torch.float64) -> list[int]:
    """The library's greedy text; varied enough to prove something, and the prompt's."""
    _, text = library_generate(target_of(family, dtype), PROMPT, N_NEW)
    assert len(set(text)) > 5, text
    return text


def drafter_of(kind: str, family: str):
    if kind == "ngram":
        return NgramDrafter(3, 1)
    if kind == "hybrid":
        return HybridDrafter(NgramDrafter(3, 1), drafter_of("some", family))
    if kind == "decoder only":
        return ModelDrafter(CachedModel(tiny_decoder("llama", dtype=torch.float64)))
    return ModelDrafter(CachedModel(perturbed(target_of(family), {"all": 0.0, "some": 0.06}[kind])))


def test_widths_of_passes_are_those_of_the_decoder():
    model = tiny_of("encoder-decoder")
    with counted_passes(model) as widths:
        model(input_ids=PROMPT, decoder_input_ids=PROMPT[:, :3])
    assert widths == [3]


# --- Texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("family", FAMILIES)
def test_plain_text_is_the_librarys_greedy_text(family, dtype):
    target = CachedModel(target_of(family, dtype))
    assert plain_text(target, PROMPT, N_NEW) == text_of(family, dtype)
    assert target.length == N_NEW, "the start token and all new ones but the last"
    other = PROMPT.flip(1)
    assert plain_text(target, other, N_NEW) == library_generate(target.model, other, N_NEW)[1]
    assert plain_text(target, other, N_NEW) != text_of(family, dtype), "the text depends on the prompt"


@pytest.mark.parametrize("kind", ["all", "some", "ngram", "hybrid", "decoder only"])
@pytest.mark.parametrize("family", FAMILIES)
def test_speculative_text_is_the_librarys_greedy_text(family, kind):
    for k in (0, 1, 5):
        target, drafter = CachedModel(target_of(family)), drafter_of(kind, family)
        rounds = list(speculative_rounds(target, drafter, PROMPT, k, N_NEW))
        assert tokens_of(rounds) == text_of(family), k
        assert target.n_passes + target.n_replays == len(rounds), "one pass of the target for every round"
        n_drafted, n_accepted = sum(r.n_drafted for r in rounds), sum(r.n_accepted for r in rounds)
        if kind == "all":
            assert n_accepted == n_drafted
        elif kind == "some" and k:
            assert 0 < n_accepted < n_drafted


@pytest.mark.parametrize("family", OTHERS)
def test_texts_of_other_families_are_the_librarys(family):
    model = tiny_of(family)
    if family == "t5gemma":  # its softmax is in float32, whatever the model is in
        model = model.float()
    checks.check_model(model)
    _, text = library_generate(model, PROMPT, N_NEW)
    assert len(set(text)) > 5, text
    target, drafter = CachedModel(model), ModelDrafter(CachedModel(perturbed(model, 0.2)))
    assert plain_text(target, PROMPT, N_NEW) == text
    rounds = list(speculative_rounds(target, drafter, PROMPT, 4, N_NEW))
    assert tokens_of(rounds) == text
    assert any(r.n_accepted < r.n_drafted for r in rounds)


def test_a_decoder_only_target_takes_drafts_of_an_encoder_decoder():
    target = CachedModel(tiny_decoder("llama"))
    expected = plain_text(target, PROMPT, N_NEW)
    assert tokens_of(speculative_rounds(target, drafter_of("some", "t5"), PROMPT, 3, N_NEW)) == expected


# --- The encoder, and what the caches hold ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_runs_once_for_a_text(family):
    """Of the target once, and of a draft with an encoder of its own once, whatever is rejected."""
    target, drafter = CachedModel(target_of(family)), drafter_of("some", family)
    widths = []

    def count(module, args, kwargs) -> None:
        widths.append((args[0] if args else kwargs["input_ids"]).shape[1])

    models = target.model, drafter.models[0].model
    handles = [one.get_encoder().register_forward_pre_hook(count, with_kwargs=True) for one in models]
    plain_text(target, PROMPT, N_NEW)
    assert widths == [PROMPT.shape[1]]
    rounds = list(speculative_rounds(target, drafter, PROMPT, 4, N_NEW))
    for handle in handles:
        handle.remove()
    assert any(r.n_accepted < r.n_drafted for r in rounds)
    assert widths == [PROMPT.shape[1]] * 3


def worst_difference(cached: CachedModel, text: list[int]) -> float:
    """Largest difference of any key or value from those of a new cache that has read `text` in one pass."""
    own = cached.backend._cache
    fresh = EncoderDecoderCache(DynamicCache(config=cached.model.get_decoder().config), DynamicCache())
    with torch.inference_mode():
        ids = torch.tensor([[START, *text]])
        cached.model(input_ids=PROMPT, decoder_input_ids=ids, past_key_values=fresh, use_cache=True)
    held = [*own.layers, *cached.backend._both.cross_attention_cache.layers]
    right = [*fresh.self_attention_cache.layers, *fresh.cross_attention_cache.layers]
    parts = [[part for layer in layers for part in (layer.keys, layer.values)] for layers in (held, right)]
    assert [part.shape for part in parts[0]] == [part.shape for part in parts[1]]
    return max((mine - theirs).abs().max().item() for mine, theirs in zip(*parts, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_caches_equal_a_recomputation_after_every_round(family):
    """The decoder's start stands in the place of a prompt; the last committed token is never in a cache."""
    rejected = 0
    for how in (Sampling(), WARM):
        target, drafter = CachedModel(target_of(family)), drafter_of("some", family)
        text, places = [], set()
        for round_ in speculative_rounds(target, drafter, PROMPT, 4, N_NEW, how):
            text += round_.tokens
            assert target.length == len(text), "the start token and all committed ones but the last"
            assert worst_difference(target, text[:-1]) < 1e-11
            assert worst_difference(drafter.models[0], text[: drafter.models[0].length - 1]) < 1e-11
            assert keys_and_values(target)[0][0].shape[-2] == target.length
            layers = target.backend._both.cross_attention_cache.layers
            places.add(tuple(part.data_ptr() for layer in layers for part in (layer.keys, layer.values)))
            rejected += round_.n_accepted < round_.n_drafted
        assert len(places) == 1, "the cross-attention is neither cropped nor made anew"
    assert rejected


# --- Sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_the_accept_rule_gets_the_uncached_distributions_of_both_models(family):
    """With the rule's own law (tests/test_exact.py) this is the whole proof for sampled texts."""
    target, drafter = CachedModel(target_of(family)), drafter_of("some", family)
    text: list[int] = []
    seen: list[tuple] = []

    def accept(draft, logits, sampling, uniforms):
        seen.append((draft, logits))
        return accept_from_logits(draft, logits, sampling, uniforms)

    for round_ in speculative_rounds(target, drafter, PROMPT, 3, N_NEW, WARM, accept=accept):
        if not round_.prefill:
            [(draft, logits)], seen = seen, []
            tokens = draft.tokens[0].tolist()
            rows = uncached_rows(target.model, text, tokens)
            assert (logits[0] - rows).abs().max() < 1e-10
            own = WARM.probs(uncached_rows(drafter.models[0].model, text, tokens)[:-1])
            if tokens:
                assert (draft.probs[0] - own).abs().max() < 1e-10
        text += round_.tokens


def uncached_rows(model: PreTrainedModel, text: list[int], drafted: list[int]) -> Tensor:
    """Logits after the text and after each drafted token, (n + 1, vocab), by the library alone."""
    with torch.inference_mode():
        ids = torch.tensor([[START, *text, *drafted]])
        return model(input_ids=PROMPT, decoder_input_ids=ids, use_cache=False).logits[0, len(text) :]


# --- Checks, references, limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sound_model_passes_the_checks_and_a_broken_decoder_is_refused(family, monkeypatch):
    """One that is not rolled back, and one that does not read its encoder again: later passes over another prompt's
    states give other logits than an uncached pass."""
    for dtype in (torch.float64, torch.float32):
        checks.check_model(target_of(family, dtype))
    with monkeypatch.context() as broken:
        broken.setattr(EncoderDecoderBackend, "crop", lambda self, n_tokens, length: None)
        with pytest.raises(EnvironmentProblem, match="cannot be rolled back"):
            checks.check_model(target_of(family))
    right = EncoderDecoderBackend.prefill

    def prefill(backend, prompt):
        logits = right(backend, prompt)
        for layer in backend._both.cross_attention_cache.layers:
            layer.values = layer.values.flip(-2)
        return logits

    monkeypatch.setattr(EncoderDecoderBackend, "prefill", prefill)
    with pytest.raises(EnvironmentProblem, match="computes other logits"):
        checks.check_model(target_of(family))


def test_a_decoder_that_reads_ahead_is_refused():
    model = tiny("t5")
    model.decoder.config.is_decoder = False  # its mask is the encoder's
    for module in model.decoder.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    with pytest.raises(EnvironmentProblem, match="attends to later tokens"):
        checks.check_model(model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_difference_of_greedy_texts_is_judged_by_the_decoders_own_logits(family):
    model, text = target_of(family), text_of(family)
    reference, prompt = checks.Reference(model), PROMPT[0].tolist()
    assert judge_divergence(reference, prompt, text, text, VOCAB) is None
    wrong = [*text[:6], (text[6] + 1) % VOCAB, *text[7:]]
    divergence = judge_divergence(reference, prompt, text, wrong, VOCAB)
    rows = uncached_rows(model, text[:6], [])
    assert (divergence.position, divergence.numerical) == (6, False)
    assert divergence.gap == pytest.approx((rows[0, text[6]] - rows[0, wrong[6]]).item(), abs=1e-9)


def test_the_positions_of_encoder_and_decoder_are_limits_of_their_own():
    assert FAMILY.room(target_of("t5").config) == EncoderRoom(None)
    bart = CachedModel(target_of("bart"))
    assert bart.room == EncoderRoom(64, encoder=64)
    long = PROMPT.repeat(1, 7)  # 63 tokens
    check_prompt(bart, long, 63)
    assert len(plain_text(bart, long, 63)) == 63
    with pytest.raises(UsageProblem, match="64 new tokens do not fit the 64 positions of the model's decoder"):
        check_prompt(bart, long, 64)
    with pytest.raises(UsageProblem, match="prompt of 65 tokens does not fit the 64 positions of the model's encoder"):
        check_prompt(bart, torch.cat([long, PROMPT[:, :2]], dim=1), 4)
    assert FAMILY.room(tiny_of("encoder-decoder").config) == EncoderRoom(64, encoder=64), "of two configs"
    led = LEDConfig(max_encoder_position_embeddings=100, max_decoder_position_embeddings=20)
    assert FAMILY.room(led) == EncoderRoom(20, encoder=100)


def test_a_draft_with_fewer_positions_drafts_fewer_tokens_near_its_end():
    target = CachedModel(target_of("bart"))
    short = tiny("bart", max_position_embeddings=16)
    rounds = list(speculative_rounds(target, ModelDrafter(CachedModel(short)), PROMPT, 3, N_NEW))
    assert tokens_of(rounds) == text_of("bart")
    assert rounds[-1].n_drafted == 0


def test_the_decoders_start_is_found_as_generate_finds_it():
    model = tiny("t5")
    assert start_id(model) == START
    model.generation_config = GenerationConfig(decoder_start_token_id=7)
    assert start_id(model) == 7
    model.generation_config = GenerationConfig()
    assert start_id(model) == START, "from the config"
    model.config.decoder_start_token_id = None
    assert start_id(model) == BOS
    model.config.bos_token_id = None
    with pytest.raises(EnvironmentProblem, match="names no decoder_start_token_id"):
        checks.check_model(model)


def test_no_head_is_trained_for_it():
    with pytest.raises(UsageProblem, match=r"training\.heads does not know encoder-decoder models, and t5 is one"):
        heads.check_target(target_of("t5"))
