"""Every model proves itself at load: what is right passes in every dtype, each broken property is refused by name."""

from types import SimpleNamespace

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RobertaConfig,
    RobertaForCausalLM,
)
from transformers.cache_utils import DynamicSlidingWindowLayer

from speclab.engines import eager
from speclab.engines.c_pass import CModel
from speclab.models import engine_choice, family
from speclab.models.cached import CachedModel
from speclab.models.checking import rounding
from speclab.models.checking.checks import bound, check_model, gap, random_text, uncached_logits
from speclab.models.family import configured_room
from speclab.models.memory import is_mixture_of_experts
from speclab.system.errors import EnvironmentProblem
from tests.tiny_models import FAMILIES, VOCAB, tiny

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_right_models_pass_in_every_dtype(family, dtype):
    check_model(tiny(family, dtype=dtype))


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def encoder(n_ids: int = VOCAB):
    return BertLMHeadModel(BertConfig(**SIZES, vocab_size=n_ids, pad_token_id=None, initializer_range=0.3)).eval()


def without_a_cache():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    return OpenAIGPTLMHeadModel(OpenAIGPTConfig(**sizes, vocab_size=VOCAB)).eval()


def not_causal():
    """In bfloat16, where the bound is an eighth of the largest logit."""
    model = tiny("llama", dtype=torch.bfloat16)
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    model.config.is_causal = False
    return model


def with_norm(value: float):
    model = tiny("llama")
    with torch.no_grad():
        model.model.norm.weight[0] = value
    return model


def far_from_0():
    """In bfloat16 a constant of -400 makes rounding larger than what the tokens differ by."""
    model = tiny("gpt2", dtype=torch.bfloat16)
    shifted = torch.nn.Linear(32, VOCAB, dtype=torch.bfloat16)
    shifted.weight, shifted.bias.data[:] = model.lm_head.weight, -400.0
    model.lm_head = shifted
    return model


REFUSED = {
    "an encoder": (encoder, r"bert attends to later tokens: logits differ by .* where rounding explains"),
    "two ids": (lambda: encoder(2), "attends to later tokens"),
    "no causal mask": (not_causal, "attends to later tokens"),
    "no cache": (without_a_cache, "openai-gpt ignores its cache"),
    "NaN": (lambda: with_norm(torch.nan), "not finite"),
    "infinity": (lambda: with_norm(torch.inf), "not finite"),
    "one id": (lambda: tiny("llama", vocab_size=1), "too few to decode with"),
    "12 positions": (lambda: tiny("llama", max_position_embeddings=12), "too few to decode with"),
    "far from 0": (far_from_0, "nothing could be proved; use --dtype float32"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_decoded_is_refused(make, said):
    with pytest.raises(EnvironmentProblem, match=said):
        check_model(make())


def test_a_cache_that_keeps_rejected_tokens_is_refused(monkeypatch):
    """Its cached logits are right as long as nothing is rolled back."""
    monkeypatch.setattr(eager.EagerBackend, "crop", lambda self, n_tokens, length: None)
    with pytest.raises(EnvironmentProblem, match="llama keeps a state that cannot be rolled back"):
        check_model(tiny("llama"))


@pytest.mark.parametrize(
    ("when", "reason"), [("cached", "ignores its cache, or computes other logits"), ("uncached", "no plain forward")]
)
def test_what_a_models_code_raises_is_one_refusal(monkeypatch, when, reason):
    model = tiny("llama")
    honest = model.forward

    def trouble(*args, **kwargs):
        if kwargs.get("use_cache") == (when == "cached"):
            raise RuntimeError("layer\nsecond line")
        return honest(*args, **kwargs)

    monkeypatch.setattr(model, "forward", trouble)
    with pytest.raises(EnvironmentProblem, match=reason) as refused:
        check_model(model)
    assert "RuntimeError" in str(refused.value)
    assert "second line" not in str(refused.value)


def test_logits_that_change_from_pass_to_pass_are_refused():
    model = tiny("gpt2", resid_pdrop=0.5)
    model.eval = lambda: model  # whoever wraps the model must not switch the dropout off
    with pytest.raises(EnvironmentProblem, match="other logits for the same text"):
        check_model(model.train())


def test_the_text_is_within_the_context_and_has_no_special_ids():
    model = tiny("gpt2", n_positions=20, bos_token_id=3, eos_token_id=7)
    text = random_text(model)
    assert text.shape == (1, 16), "the context of 20 less the 4 rejected tokens that may be fed behind it"
    assert not {3, 7} & set(text[0].tolist())
    assert len(set(text[0].tolist())) == 16


def test_a_mixture_of_experts_is_compared_at_its_median_position():
    model = MixtralForCausalLM(MixtralConfig(**SIZES, num_key_value_heads=2, vocab_size=VOCAB, initializer_range=0.3))
    model.eval()
    assert is_mixture_of_experts(model)
    assert not is_mixture_of_experts(tiny("llama"))
    check_model(model)
    right = torch.zeros(1, 10, VOCAB)
    rerouted = right.clone()
    rerouted[0, 1] = rerouted[0, 4] = rerouted[0, 5] = rerouted[0, 9] = 3.0  # four of ten went to another expert
    assert gap(model, rerouted, right) == 0
    assert gap(tiny("llama"), rerouted, right) == 3
    rerouted[0, 2] = 3.0
    assert gap(model, rerouted, right) == 3, "half of them are no accident"


def deep():
    """24 narrow layers with large weights; its logits spread as a trained model's do."""
    sizes = SIZES | {"num_hidden_layers": 24, "num_attention_heads": 4, "head_dim": 16, "hidden_size": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=300, initializer_range=0.15)).eval()
    with torch.no_grad():
        model.lm_head.weight *= 25 / rounding.spread(uncached_logits(model, random_text(model)))
    return model


def test_a_deep_model_is_proved_and_its_mistakes_are_seen(monkeypatch):
    """Rounding moves its logits further, and the bound of rounding stays far from what a mistake moves them by."""
    model, crop = deep(), eager.EagerBackend.crop
    right = uncached_logits(model, random_text(model))
    assert bound(model, right)[0] < 1e-3 * rounding.spread(right)
    check_model(model)
    assert engine_choice.build(model)[0] is not None
    right_pass = CModel.run

    def earlier(fast: CModel, given, *more):
        given.position -= 4 * (given.position > fast.tables(1)[1])  # bytes; the text's first token stays
        return right_pass(fast, given, *more)

    with monkeypatch.context() as patch:
        patch.setattr(CModel, "run", earlier)
        assert "off by" in engine_choice.build(model)[1]
    for wrong in (lambda self, n, length: None, lambda self, n, length: crop(self, max(n - 1, 0), length)):
        monkeypatch.setattr(eager.EagerBackend, "crop", wrong)
        with pytest.raises(EnvironmentProblem, match="cannot be rolled back"):
            check_model(model)


def test_the_bound_counts_real_logits_only():
    """A model may mask tokens with its dtype's lowest number: that must not make the bound infinite."""
    logits = torch.tensor([[1.0, -4.0, torch.finfo(torch.float32).min, -torch.inf]])
    assert rounding.rounding_unit(logits) == 4 * torch.finfo(torch.float32).eps
    assert rounding.bound(logits) == 64 * rounding.rounding_unit(logits)
    assert rounding.bound(logits, 30) == 30 * rounding.bound(logits), "each layer adds rounding"
    assert "16 * eps(bfloat16)" in rounding.bound_in_words(torch.bfloat16, 30)
    moved = logits.clone()
    moved[0, 0] = 1.5
    assert rounding.differences(moved, logits).tolist() == [[0.5, 0, 0, 0]]
    assert rounding.rounding_unit(torch.full((1, 2), -torch.inf)) == 0


def test_a_config_that_the_librarys_cache_cannot_read_is_refused(monkeypatch):
    """Some families have no number of layers where the cache looks for it."""

    def trouble(*args, **kwargs):
        raise AttributeError("no attribute 'num_hidden_layers'")

    monkeypatch.setattr(family, "DynamicCache", trouble)
    with pytest.raises(EnvironmentProblem, match=r"llama has no cache that the library can make.*num_hidden_layers"):
        check_model(tiny("llama"))


@pytest.mark.parametrize(
    ("entries", "length"),
    [
        ({"max_position_embeddings": 40}, 40),
        ({"max_target_positions": 30}, 30),
        ({"max_seq_len": 20}, 20),
        ({"max_position_embeddings": -1}, None),
        ({"max_position_embeddings": 0, "max_seq_len": 20}, 20),
        ({"max_position_embeddings": "many"}, None),
        ({"max_seq_len": 90, "rope_parameters": {"rope_type": "default"}}, 90),
        ({"max_seq_len": 90, "rope_parameters": {"full": {"rope_type": "longrope"}}}, 90),
        ({"max_seq_len": 90, "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 64}}, 64),
        ({}, None),
    ],
)
def test_the_context_is_found_under_the_names_that_families_use(entries, length):
    config = SimpleNamespace(**entries)
    assert configured_room(SimpleNamespace(get_text_config=lambda: config)).text == length


def test_positions_after_a_padding_index_are_fewer_than_the_table_has_rows():
    """The last position that is counted can be decoded; one more would be an IndexError."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = RobertaConfig(**sizes, vocab_size=VOCAB, max_position_embeddings=42, is_decoder=True, pad_token_id=1)
    model = CachedModel(RobertaForCausalLM(config).eval())
    assert model.max_length == 40
    model.prefill(torch.full((1, 39), 5))
    model.forward(torch.tensor([[6]]))


def test_experts_in_a_part_of_the_config_count():
    entries = {"num_experts_per_tok": 2, "ffn_config": {"moe_num_experts": 4}}
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(to_dict=lambda: entries))
    assert is_mixture_of_experts(SimpleNamespace(config=config))
    entries["ffn_config"]["moe_num_experts"] = 1
    assert not is_mixture_of_experts(SimpleNamespace(config=config))


def test_the_steps_of_plain_decoding_are_checked_too(monkeypatch):
    """A window that is wrong only where nothing is kept for a roll-back: no pass of a draft or of a round shows it."""
    right = DynamicSlidingWindowLayer.update

    def update(layer, keys, values, *args, **options):
        found = right(layer, keys, values, *args, **options)
        plain = keys.shape[2] == 1 and not layer.record_past
        return (1.5 * found[0], found[1]) if plain else found

    model = tiny("mistral_window")
    check_model(model)
    monkeypatch.setattr(DynamicSlidingWindowLayer, "update", update)
    with pytest.raises(EnvironmentProblem, match="computes other logits with it"):
        check_model(model)


def test_what_a_step_has_read_stays():
    """Behind a window its rows are gone: to go back there is an error, not a wrong text."""
    cached = CachedModel(tiny("mistral_window"))
    text = torch.randint(0, VOCAB, (1, 30), generator=torch.Generator().manual_seed(0))
    cached.prefill(text[:, :20])
    for i in range(20, 30):
        cached.step(text[0, i : i + 1])
    with pytest.raises(RuntimeError):
        cached.crop(26)
