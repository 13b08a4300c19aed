"""Every model proves itself at load: what is right passes in every dtype, each broken property is refused by name."""

import contextlib
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BartConfig, BartForConditionalGeneration, PreTrainedConfig

from speclab.engines import eager
from speclab.models import checks, family, loading
from speclab.models.cached import CachedModel
from speclab.models.checks import check_model, explained, random_text, uncached_logits, unexplained
from speclab.models.family import DECODER_ONLY, Family
from speclab.models.memory import is_mixture_of_experts
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests import tiny_families
from tests.tiny_models import FAMILIES, VOCAB, tiny

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_right_models_pass_in_every_dtype(family, dtype):
    check_model(tiny(family, dtype=dtype))


# --- what is refused: a function of monkeypatch that makes the model, and what is said -------------------------------


def made(kind: str, **entries):
    """A small model of a family that tests/tiny_models.py lacks."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = AutoConfig.for_model(kind, **(sizes | {"vocab_size": VOCAB, "initializer_range": 0.3} | entries))
    return AutoModelForCausalLM.from_config(config).eval()


def not_causal(_):
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


def far_from_0(_):
    """In bfloat16 a constant of -400 makes rounding larger than what the tokens differ by."""
    model = tiny("gpt2", dtype=torch.bfloat16)
    shifted = torch.nn.Linear(32, VOCAB, dtype=torch.bfloat16)
    shifted.weight, shifted.bias.data[:] = model.lm_head.weight, -400.0
    model.lm_head = shifted
    return model


def changing(_):
    model = tiny("gpt2", resid_pdrop=0.5)
    model.eval = lambda: model  # whoever wraps the model must not switch the dropout off
    return model.train()


def keeping(patch):
    """Its cached logits are right as long as nothing is rolled back."""
    patch.setattr(eager.EagerBackend, "crop", lambda self, n_tokens, length: None)
    return tiny("llama")


def wrong_in_steps(patch):
    """Only where nothing is kept for a roll-back: no pass of a draft or of a round shows it."""
    patch.setattr(eager.EagerBackend, "step", lambda self, *given: self.forward(*given).flip(-1))
    return tiny("llama")


def raising(patch):
    model = tiny("llama")

    def trouble(*args, **kwargs):
        raise RuntimeError("layer\nsecond line")

    patch.setattr(model, "forward", trouble)
    return model


REFUSED = {
    "an encoder": (
        lambda _: made("bert", pad_token_id=None),
        r"bert attends to later tokens: logits differ by .* where rounding explains",
    ),
    "a state of its own": (lambda _: tiny_families.tiny("rwkv"), "rwkv ignores its cache"),
    "no causal mask": (not_causal, "attends to later tokens"),
    "no cache": (lambda _: made("openai-gpt", n_embd=32, n_layer=2, n_head=2), "openai-gpt ignores its cache"),
    "NaN": (lambda _: with_norm(torch.nan), "not finite"),
    "infinity": (lambda _: with_norm(torch.inf), "not finite"),
    "one id": (lambda _: tiny("llama", vocab_size=1), "too few tokens or positions to decode with"),
    "12 positions": (lambda _: tiny("llama", max_position_embeddings=12), "too few tokens or positions to decode with"),
    "far from 0": (far_from_0, "nothing could be proved; use --dtype float32"),
    "changing logits": (changing, "other logits for the same text"),
    "kept tokens": (keeping, "llama keeps a state that cannot be rolled back"),
    "steps": (wrong_in_steps, "computes other logits with it"),
    "raises": (raising, r"no plain forward pass \(RuntimeError: layer\)"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_decoded_is_refused(make, said, monkeypatch):
    model = make(monkeypatch)
    with pytest.raises(EnvironmentProblem, match=said) as refused:
        check_model(model)
    assert "\n" not in str(refused.value)


def test_the_text_is_within_the_context_and_has_no_special_ids():
    model = tiny("gpt2", n_positions=20, bos_token_id=3, eos_token_id=7)
    text = random_text(model)
    assert text.shape == (1, 16), "the context of 20 less the 4 rejected tokens that may be fed behind it"
    assert len(set(text[0].tolist()) - {3, 7}) == 16


def test_a_mixture_of_experts_is_compared_at_its_median_position():
    check_model(model := made("mixtral", num_key_value_heads=2))
    assert not is_mixture_of_experts(tiny("llama"))
    right = torch.zeros(1, 10, VOCAB)
    rerouted = right.clone()
    rerouted[0, [1, 4, 5, 9]] = 3.0  # four of ten went to another expert
    assert unexplained(model, rerouted, right) is None
    assert unexplained(tiny("llama"), rerouted, right)
    rerouted[0, 2] = 3.0
    assert unexplained(model, rerouted, right), "half of them are no accident"


def deep():
    """24 narrow layers with large weights; its logits spread as a trained model's do."""
    sizes = {"num_hidden_layers": 24, "num_attention_heads": 4, "head_dim": 16, "hidden_size": 64, "vocab_size": 300}
    model = made("llama", **sizes, initializer_range=0.15)
    with torch.no_grad():
        model.lm_head.weight *= 25 / checks.spread(uncached_logits(model, random_text(model)))
    return model


def test_a_deep_model_is_proved_and_its_mistakes_are_seen(monkeypatch):
    """Rounding moves its logits further, and the bound of rounding stays far from what a mistake moves them by."""
    model, crop = deep(), eager.EagerBackend.crop
    right = uncached_logits(model, random_text(model))
    assert explained(model, right) < 1e-3 * checks.spread(right)
    check_model(model)
    monkeypatch.setattr(eager.EagerBackend, "crop", lambda self, n, length: crop(self, max(n - 1, 0), length))
    with pytest.raises(EnvironmentProblem, match="cannot be rolled back"):
        check_model(model)


def test_the_bound_counts_real_logits_only():
    """A model may mask tokens with its dtype's lowest number: that must not make the bound infinite."""
    logits = torch.tensor([[1.0, -4.0, torch.finfo(torch.float32).min, -torch.inf]])
    unit = checks.UNITS[torch.float32] * torch.finfo(torch.float32).eps
    assert checks.bound(logits) == 4 * unit
    assert checks.bound(logits, 30) == 30 * 4 * unit, "each layer adds rounding"
    moved = logits.clone()
    moved[0, 0] = 1.5
    assert unexplained(tiny("llama"), moved[None], logits[None]).startswith("5.0e-01 where")
    assert checks.bound(torch.full((1, 2), -torch.inf)) == 0


LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic"}
NAMED = [
    ({"max_position_embeddings": 40}, 40),
    ({"max_target_positions": 30}, 30),
    ({"max_position_embeddings": 0, "max_seq_len": 20}, 20),
    ({"max_position_embeddings": "many"}, None),
    ({"max_seq_len": 90, "rope_parameters": {"full": {"rope_type": "longrope"}}}, 90),
    *(({"max_seq_len": 90, "rope_parameters": dict(parts)}, 64) for parts in ([*LONG.items()], [("a", LONG)])),
    *(({"max_seq_len": 90, "rope_parameters": {"a": one, "b": two}}, 64) for one, two in permutations([LONG, DYNAMIC])),
    ({}, None),
]


@pytest.mark.parametrize(("entries", "length"), NAMED)
def test_the_context_is_found_under_the_names_that_families_use(entries, length):
    config = SimpleNamespace(**entries)
    assert DECODER_ONLY.room(SimpleNamespace(get_text_config=lambda: config)).text == length


def test_positions_after_a_padding_index_are_fewer_than_the_table_has_rows():
    """The last position that is counted can be decoded; one more would be an IndexError."""
    model = CachedModel(made("roberta", max_position_embeddings=42, is_decoder=True, pad_token_id=1))
    assert model.room.text == 40
    model.prefill(torch.full((1, 39), 5))
    model.forward(torch.tensor([[6]]))


class Marked(Family):
    plural = "marked models"

    def claims(self, config: PreTrainedConfig) -> bool:
        return hasattr(config, "marked")


MARKED = Marked()


@pytest.fixture
def marked(monkeypatch):
    """A llama that belongs to a family of its own, the only one that there is."""
    monkeypatch.setattr(extensions, "modules", lambda name: [SimpleNamespace(FAMILY=MARKED)])
    monkeypatch.setattr(family, "is_usual", lambda config: False)
    model = tiny("llama")
    model.config.marked = True
    return model


def test_no_family_is_asked_of_a_usual_model(monkeypatch):
    monkeypatch.setattr(extensions, "modules", lambda name: 1 / 0)
    assert family.family_of(tiny("llama")) is DECODER_ONLY


def test_a_family_claims_its_models(marked):
    assert CachedModel(marked).family is MARKED
    assert CachedModel(tiny("gpt2")).family is DECODER_ONLY


@pytest.mark.parametrize(
    ("differs", "refused"), [({}, []), ({"crops": False}, [True]), ({"one_text": False}, [True, False])]
)
def test_what_a_draft_needs_decides_who_is_refused(marked, monkeypatch, differs, refused):
    for name, value in differs.items():
        monkeypatch.setattr(Marked, name, value)
    said = "a does not know marked models, and llama is one; choose b"
    for crops in (True, False):
        with pytest.raises(UsageProblem, match=said) if crops in refused else contextlib.nullcontext():
            family.check_family(marked, "a", "choose b", crops)


def test_an_encoder_decoder_without_its_extension_is_refused_at_load(tmp_path, monkeypatch):
    """The library would load the decoder alone, which is another model."""
    monkeypatch.setattr(extensions, "modules", lambda name: [])
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    BartForConditionalGeneration(BartConfig(vocab_size=32, **sizes)).save_pretrained(tmp_path)
    for load in (loading.family_named, lambda name: loading.load_model(name, "cpu", "float32")):
        with pytest.raises(EnvironmentProblem, match="bart is an encoder-decoder, and no extension here decodes those"):
            load(str(tmp_path))
