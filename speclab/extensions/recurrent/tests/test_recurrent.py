"""Recurrent layers cannot be cropped: after a rejection their states are restored, and the accepted tokens replayed.

Where the library computes in float64, states must equal those of decoding token by token to 1e-9. In some families it
computes the recurrence in float32 whatever the model's dtype; a wrong state is off by more than 0.01 there.
"""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, Lfm2Config, Lfm2ForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedModel

from benchmarks.peers.library import PeerDecoding
from draft_models import ModelDrafter, NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core.counts import Counts
from speclab.core.drafter import Drafter
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.extensions.recurrent import model_family
from speclab.extensions.recurrent.model_family import RecurrentBackend, is_recurrent, pass_options, reads_several
from speclab.lab.instruments import LoopFunctions, with_phases
from speclab.models import checks, family, memory
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from speclab.records.rows import Arm
from speclab.system import extensions
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests import tiny_families
from tests.decoding import plain_text, speculative_rounds
from tests.grids import and_in_full
from tests.models.test_families import check_decodes
from tests.test_joint_laws import IDS, Law, check_law
from tests.tiny_families import VOCAB
from tests.tiny_models import perturbed
from training import heads

N_NEW = 24
EXACT, IN_FLOAT32 = 1e-9, 1e-3
# family -> how far states may lie apart
SEVERAL = {
    "lfm2": EXACT,  # short convolutions and attention
    "lfm3": EXACT,  # with sliding windows
    "zaya": EXACT,  # both in every layer
    "mamba2": IN_FLOAT32,  # no attention
    "qwen3_next": IN_FLOAT32,  # gated delta rule and attention
    "bamba": IN_FLOAT32,  # begins at position 0 where no positions are given
    "deepseek_v4": IN_FLOAT32,  # compressed keys beside a window
}
ONE_BY_ONE = {"mamba": IN_FLOAT32, "jamba": IN_FLOAT32}  # a pass over several tokens does not read its states
FAMILIES = SEVERAL | ONE_BY_ONE
OFTEN = ("mamba", "lfm2", "qwen3_next", "deepseek_v4", "zaya")  # of each kind of state one, for the longest test
NOISES = {"all": 0.0, "some": 0.1}


@functools.cache
def tiny(family: str) -> PreTrainedModel:
    """In float64; of its experts the plain code, which the fast kernels have no float64 for."""
    model = tiny_families.tiny(family).double()
    if memory.is_mixture_of_experts(model):
        model.set_experts_implementation("eager")
    return model


def prompt_of(length: int) -> Tensor:
    return torch.randint(1, VOCAB, (1, length), generator=torch.Generator().manual_seed(3))


@functools.cache
def text_of(family: str, length: int) -> list[int]:
    """Token by token; varied enough to prove something."""
    text = plain_text(CachedModel(tiny(family)), prompt_of(length), N_NEW)
    assert len(set(text)) > 4, text
    return text


class Wrong(ModelDrafter):
    """Proposes another token than its model says."""

    def propose(self, k, uniforms):
        made = super().propose(k, uniforms)
        return replace(made, tokens=(made.tokens + 1) % VOCAB)


def drafter_of(family: str, accepted: str) -> ModelDrafter:
    """Of its drafts all, some or none are accepted."""
    if accepted == "none":
        return Wrong(CachedModel(tiny(family)))
    return ModelDrafter(CachedModel(perturbed(tiny(family), NOISES[accepted])))


def states_of(cache: DynamicCache) -> list[Tensor]:
    """Every tensor that its layers hold: keys, values, and all named states."""
    held = [value for layer in cache.layers for value in vars(layer).values()]
    held += [part for value in held if isinstance(value, dict) for part in value.values()]
    return [value for value in held if isinstance(value, Tensor) and value.is_floating_point()]


def worst_difference(cached: CachedModel, ids: list[int]) -> float:
    """Largest difference between what a cache holds and what it would after these ids, read one by one."""
    fresh, model = DynamicCache(config=cached.model.config), cached.model
    n_prompt = cached.backend.n_prompt
    with torch.inference_mode():
        for start, end in [(0, n_prompt), *((i, i + 1) for i in range(n_prompt, len(ids)))]:
            options = pass_options(model, fresh, start, end - start)
            model(input_ids=torch.tensor([ids[start:end]]), **options)
    pairs = list(zip(states_of(cached.backend._cache), states_of(fresh), strict=True))
    assert all(mine.shape == theirs.shape for mine, theirs in pairs), "attention holds the committed tokens alone"
    return max((mine - theirs).abs().max().item() for mine, theirs in pairs if mine.numel())


@pytest.fixture(autouse=True)
def lengths_of_prompts(monkeypatch):
    """A backend remembers how long its prompt was, which a recomputation must read in one pass, too; and its passes."""
    right, read = RecurrentBackend.prefill, RecurrentBackend._pass

    def prefill(backend: RecurrentBackend, prompt: Tensor) -> Tensor:
        backend.n_prompt, backend.n_read = prompt.shape[1], 0
        return right(backend, prompt)

    def count(backend: RecurrentBackend, *args) -> Tensor:
        backend.n_read += 1
        return read(backend, *args)

    monkeypatch.setattr(RecurrentBackend, "prefill", prefill)
    monkeypatch.setattr(RecurrentBackend, "_pass", count)


# --- texts, states and passes ----------------------------------------------------------------------------------------


LONG, SHORT = [(family, 4, 9) for family in FAMILIES], zip(FAMILIES, itertools.cycle([1, 4]), itertools.repeat(1))


@pytest.mark.parametrize(("family", "k", "length"), and_in_full(LONG, SHORT))
def test_texts_are_those_of_decoding_token_by_token(family, k, length):
    """All, some and none of the drafts accepted. A replay follows exactly the rounds with a rejection."""
    expected = text_of(family, length)
    for accepted in ("all", "some", "none"):
        target, drafter = CachedModel(tiny(family)), drafter_of(family, accepted)
        rounds = list(speculative_rounds(target, drafter, prompt_of(length), k, N_NEW))
        assert tokens_of(rounds) == expected, accepted
        n_rejected = sum(r.n_accepted < r.n_drafted for r in rounds)
        n_drafted, n_accepted = sum(r.n_drafted for r in rounds), sum(r.n_accepted for r in rounds)
        assert {"all": n_accepted == n_drafted, "some": 0 < n_accepted < n_drafted, "none": n_accepted == 0}[accepted]
        one_by_one = family in ONE_BY_ONE
        assert target.n_replays == (0 if one_by_one else n_rejected)
        assert target.backend.n_read == len(rounds) + (n_drafted if one_by_one else n_rejected)
        assert drafter.models[0].n_replays == 0, "a draft keeps its states before every token"


@pytest.mark.parametrize("family", and_in_full(OFTEN, [name for name in FAMILIES if name not in OFTEN]))
def test_states_equal_a_recomputation_after_every_round(family):
    """Of the target and the draft: every state, key and value, as after decoding token by token."""
    target, drafter, temperature = CachedModel(tiny(family)), drafter_of(family, "some"), 0.8 * (family != "mamba")
    ids, rounds = prompt_of(9)[0].tolist(), []
    for round_ in speculative_rounds(target, drafter, prompt_of(9), 3, N_NEW, Sampling(temperature)):
        ids += round_.tokens
        rounds.append(round_)
        assert target.length == len(ids) - 1, "the last committed token is never in the cache"
        assert worst_difference(target, ids[:-1]) < FAMILIES[family]
        assert worst_difference(drafter.models[0], ids[: drafter.models[0].length]) < FAMILIES[family]
    assert any(0 < r.n_accepted < r.n_drafted for r in rounds)
    assert any(r.n_accepted == 0 for r in rounds if r.n_drafted)


@pytest.mark.parametrize("family", ["lfm2", "mamba"])
def test_any_number_of_tokens_can_be_taken_back(family):
    """Over several passes, too; not to where no states are kept."""
    text, cached = prompt_of(20), CachedModel(tiny(family))
    cached.prefill(text[:, :4])
    for wrong, width in ((3, 2), (1, 1), (0, 3), (5, 1)):
        start = cached.length
        cached.forward(text[:, start : start + width])
        cached.forward(text[:, : wrong + 1])
        cached.crop(start + width)
        assert worst_difference(cached, text[0, : start + width].tolist()) < FAMILIES[family]
    with pytest.raises(RuntimeError, match="cannot go back to 3 tokens"):
        cached.crop(3)


def test_a_family_is_read_one_by_one_only_where_the_library_needs_it():
    assert {family for family in FAMILIES if not reads_several(tiny(family))} == set(ONE_BY_ONE)
    assert all(is_recurrent(tiny(family).config) for family in FAMILIES)
    assert not is_recurrent(tiny("gemma3_text").config)


@pytest.mark.full
def test_joint_law_of_recurrent_layers():
    """A state that has read a rejected token, or an accepted one twice, gives the next tokens another law."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    layers = {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "initializer_range": 0.5}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Lfm2ForCausalLM(Lfm2Config(vocab_size=IDS, **sizes, **layers)).double().eval()
    check_law(Law(1.0, 2), model, ModelDrafter(CachedModel(perturbed(model, 0.2))), 1000)


# --- counts and prices -----------------------------------------------------------------------------------------------


def test_replays_are_counted_and_timed_with_the_rollback():
    """By what runs the loop in compare.py; the counts of a text are those of its rounds."""
    target, drafter = CachedModel(tiny("lfm2")), drafter_of("lfm2", "some")
    functions, settings = LoopFunctions(speculative_decode), DecodeSettings(N_NEW)
    counts = Counts()
    for round_ in functions.rounds(target, drafter, prompt_of(9), 4, settings):
        assert round_.n_replays == int(round_.n_accepted < round_.n_drafted)
        counts.add(round_)
    assert counts.n_replays == target.n_replays > 0
    timed = list(with_phases(functions, target, drafter, prompt_of(9), 4, settings))
    assert [r.n_replays for r in timed] == [int(r.n_accepted < r.n_drafted) for r in timed]


# --- the checks, and what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_recurrent_models_pass_the_checks_in_float32(family):
    checks.check_model(tiny_families.tiny(family))


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("zamba2", "computes other logits with it"),  # its passes over one token are not its others
        ("recurrent_gemma", "keeps a state that cannot be rolled back"),  # in its modules, not in the cache
        ("minimax", "uses cache of its own"),
    ],
)
def test_what_cannot_be_restored_is_refused(family, reason):
    with pytest.raises(EnvironmentProblem, match=reason):
        checks.check_model(tiny_families.tiny(family))


def test_without_the_extension_such_a_model_is_refused_at_load(monkeypatch):
    monkeypatch.setattr(extensions, "modules", lambda name: [])
    with pytest.raises(EnvironmentProblem, match="lfm2 keeps a state that cannot be rolled back"):
        checks.check_model(tiny_families.tiny("lfm2"))


def test_a_state_that_is_not_restored_is_refused_at_load(monkeypatch):
    """It has no crop: speculation would go on from a state that has read rejected tokens."""
    sizes = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "vocab_size": VOCAB, "initializer_range": 0.5}
    model = MambaForCausalLM(MambaConfig(**sizes)).eval()
    checks.check_model(model)
    monkeypatch.setattr(model_family, "put_back", lambda cache, states: None)
    with pytest.raises(EnvironmentProblem, match="mamba keeps a state that cannot be rolled back"):
        checks.check_model(model)


# "mamba" and "jamba" are read token by token, the others restored and replayed.
@pytest.mark.parametrize("name", and_in_full(["lfm2"], ["mamba", "jamba", "qwen3_next"]))
def test_its_text_is_the_librarys(name):
    check_decodes(tiny_families.tiny(name), "recurrent layers")


def made() -> Setup:
    model = tiny("lfm2")
    return Setup(CachedModel(model), None, "tiny", Sampling(), model.device, model.dtype)


def test_the_head_of_a_run_says_what_is_different():
    assert "\nstates  recurrent layers: after a rejected draft" in made().describe()


def peer(arm: Arm, family: str = "lfm2", drafter: Drafter | None = None) -> PeerDecoding:
    return PeerDecoding(arm, tiny(family), prompt_of(4), 4, drafter)


UNKNOWN = "does not know models with recurrent layers, and lfm2 is one"
NO_CROP = "no model whose states cannot be cropped; use compare"
# The library's own speculation would crop their cache, or refuse with an error of its own in the middle of a run.
REFUSED = {
    "lookup": (lambda: peer(Arm("lookup", "ngram", 4)), NO_CROP),
    "assisted": (lambda: peer(Arm("assisted", "model", 4), "llama", ModelDrafter(CachedModel(tiny("lfm2")))), NO_CROP),
    "training": (lambda: heads.check_target(tiny("lfm2")), UNKNOWN),
    "feature": (lambda: registry.read("feature").make(made()), UNKNOWN),
    "block": (lambda: registry.read("block").make(made()), UNKNOWN),
    "hybrid": (lambda: registry.read("hybrid:ngram+feature").make(made()), UNKNOWN),
    "rows": (lambda: checks.text_for_rows(tiny("lfm2"), "is no row"), "lfm2 is no row: it has recurrent layers"),
    "a family": (lambda: family.check_family(tiny("lfm2"), "that", "leave it out"), UNKNOWN),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_something_of_each_token_refuses_recurrent_models(name):
    """The pages and buffers of engines, branches, drafts that read the states of the target's tokens, heads that learn
    from them, and other decoders."""
    call, said = REFUSED[name]
    with pytest.raises((EnvironmentProblem, UsageProblem), match=said):
        call()


def test_a_lookup_drafts_for_a_recurrent_target():
    """Drafts of no model, often empty."""
    rounds: list[Round] = []
    for length in (1, 9):
        target = CachedModel(tiny("lfm2"))
        made = list(speculative_rounds(target, NgramDrafter(3, 1), prompt_of(length), 4, N_NEW))
        assert tokens_of(made) == text_of("lfm2", length)
        rounds += made
    assert {r.n_drafted > 0 for r in itertools.islice(rounds, 1, None)} == {True, False}
