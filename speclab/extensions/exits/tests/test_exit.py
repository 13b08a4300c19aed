"""Early exit: the target's own first layers draft into its cache, and verification goes on from there."""

import pytest
import torch
from torch import Tensor

from speclab.core.rounds import AcceptResult, Draft, tokens_of
from speclab.core.sampling import Sampling
from speclab.engines.eager import decoder_layers
from speclab.extensions.exits import first_layers
from speclab.extensions.exits.early_exit import ExitAdapter, ExitDrafter
from speclab.extensions.exits.first_layers import FirstLayers, check_split
from speclab.extensions.exits.tests.adapters import trained_exit, trained_exit_in_float32
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.decoding import plain_text, poison, speculative_rounds
from tests.grids import pairs_often
from tests.heads import N_NEW, Keeping
from tests.tiny_models import FAMILIES, VOCAB, PlainTransformer, assert_close, on_engine, tiny

WARM = Sampling(temperature=0.8)
ENGINES = ["eager", "c"]
ON_C = [name for name in FAMILIES if name != "opt"]  # which it does not know
OFTEN = ["llama", "gpt2", "gemma3_window"]
TRIED = [*OFTEN, *(pytest.param(name, marks=pytest.mark.full) for name in FAMILIES if name not in OFTEN)]


def reading(model, adapter: ExitAdapter, engine: str = "eager", cached=CachedModel) -> CachedModel:
    target = cached(model, fast=on_engine(engine, model))
    target.hidden_layers = adapter.config.layers
    return target


def trained(family: str, engine: str) -> tuple:
    """In the number format of the engine."""
    return (trained_exit_in_float32 if engine == "c" else trained_exit)(family)


# --- the text is the target's ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "engine"),
    [
        *pairs_often(FAMILIES, ["eager"], lambda family, engine: family in ("gpt2", "gemma3_window")),
        *pairs_often(ON_C, ["c"], lambda family, engine: family in ("llama", "gemma3_window")),
    ],
)
def test_greedy_text_is_the_targets_in_every_family(family, engine):
    """Through rounds in which nothing, some and all of a draft is accepted."""
    model, adapter, texts = trained(family, engine)
    kinds = set()
    for k, text in zip((1, 4, 4, 6), texts, strict=True):
        target = reading(model, adapter, engine)
        rounds = list(speculative_rounds(target, ExitDrafter(adapter), text[None, :9], k, N_NEW))
        assert tokens_of(rounds) == text[9:].tolist()
        kinds |= {(r.n_accepted == r.n_drafted) for r in rounds if r.n_drafted > 1}
    assert kinds == {False, True}, "no rollback, or no full acceptance"


def test_caches_grow_in_the_middle_of_a_round(monkeypatch):
    """The first layers begin another page, and outgrow the adapter's own buffers, while the others wait."""
    monkeypatch.setattr("speclab.drafts.heads.drafter.SPARE", 8)
    model, adapter, texts = trained("llama", "c")
    prompt = texts.reshape(1, -1)[:, :57]
    expected = plain_text(CachedModel(model), prompt, N_NEW)
    for n in range(4):
        target = reading(model, adapter, "c")
        rounds = list(speculative_rounds(target, ExitDrafter(adapter), prompt, 3 + n, N_NEW))
        assert tokens_of(rounds) == expected
        assert len(target.backend.pages) == 2


# --- the two parts of the cache --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_accepted", "kept"), [(0, 0), (2, 2), (4, 4)])
def test_the_table_of_lengths_in_cached_py(n_accepted, kept):
    """With L committed tokens before a round of k = 4: lengths of each layer's cache less L, after each step."""
    model, adapter, texts = trained_exit()
    target, lengths, before = reading(model, adapter), [], 9 + 1

    def note() -> None:
        lengths.append([layer.get_seq_length() - before for layer in target._backend._cache.layers])

    class Watched(ExitDrafter):
        def propose(self, k: int, uniforms: Tensor) -> Draft:
            note()
            draft = super().propose(k, uniforms)
            note()
            return draft

        def observe(self, *args) -> None:
            note()
            super().observe(*args)

    def accept(draft, logits, sampling, uniforms):
        note()
        return AcceptResult(torch.tensor([n_accepted]), torch.tensor([0]))

    rounds = speculative_rounds(target, Watched(adapter), texts[:1, :9], 4, 20, accept=accept)
    next(rounds)
    next(rounds)
    assert lengths[1:] == [[-1] * 4, [3, 3, -1, -1], [4] * 4, [kept] * 4]


def test_no_layer_runs_twice_over_a_token():
    """Each layer computes as many positions as one pass over the last token and the drafts of every round would."""
    model, adapter, texts = trained_exit()
    fed = [0] * 4
    handles = [
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs, i=i: fed.__setitem__(i, fed[i] + kwargs["hidden_states"].shape[1]),
            with_kwargs=True,
        )
        for i, layer in enumerate(decoder_layers(model))
    ]
    target = reading(model, adapter)
    rounds = list(speculative_rounds(target, ExitDrafter(adapter), texts[:1, :9], 4, N_NEW, WARM))
    for handle in handles:
        handle.remove()
    assert fed == [9 + sum(r.n_drafted + 1 for r in rounds[1:])] * 4
    assert target.n_passes + target.n_replays == len(rounds)


class Poisoned(CachedModel):
    """Writes NaN over what a rollback is about to drop, in the storage that the kept part shares."""

    n_poisoned = 0

    def crop(self, length: int) -> None:
        if (dropped := self.length - length) > 0:
            poison(self, dropped)
            self.n_poisoned += dropped
        super().crop(length)


@pytest.mark.parametrize("family", ["mistral_window", "c llama"])
def test_rejected_slots_are_never_read(family):
    """Neither by the first layers while they draft, nor by the others; the adapter's own are poisoned, too."""
    engine, _, name = family.rpartition(" ")
    model, adapter, texts = trained(name, engine)

    class Forgetful(ExitDrafter):
        def observe(self, n_accepted: int, committed: list[int]) -> None:
            super().observe(n_accepted, committed)
            for rows in (*self._keys, *self._values):
                rows[self._length :] = torch.nan

    found = []
    for cached, drafter in ((CachedModel, ExitDrafter), (Poisoned, Forgetful)):
        target = reading(model, adapter, engine, cached)
        how = (4, N_NEW, WARM, 1)
        found.append([list(speculative_rounds(target, drafter(adapter), text[None, :9], *how)) for text in texts[:2]])
    assert found[0] == found[1]
    assert target.n_poisoned > 0


def test_parts_that_are_out_of_step_are_refused():
    """The public bug: one group of layers ahead of the other."""
    model, adapter, texts = trained_exit()
    target = reading(model, adapter)
    target.prefill(texts[:1, :9])
    token = texts[:1, 9:10]
    first = FirstLayers(target, 2)
    states = first.forward(token)
    with pytest.raises(RuntimeError, match="1 tokens ahead, and states of 0 are given"):
        first.finish(token, states[:, :0])
    first.finish(token, states)
    with pytest.raises(RuntimeError, match="0 tokens ahead, and states of 1 are given"):
        first.finish(token, states)
    states = first.forward(token)
    target.crop(9)
    for go_on in (lambda: first.forward(token), lambda: first.finish(token, states)):
        with pytest.raises(RuntimeError, match="went ahead after 10 tokens, and the target holds 9"):
            go_on()
    with pytest.raises(RuntimeError, match="the cache of layer 0 holds 10 tokens, not 9"):
        FirstLayers(target, 2).forward(token)
    target.prefill(texts[:1, :9])
    first = FirstLayers(target, 2)
    states = first.forward(token)
    target.backend._cache.layers[3].crop(-1)
    with pytest.raises(RuntimeError, match="the cache of layer 3 holds 8 tokens, not 9"):
        first.finish(token, states)


# --- what is proposed ------------------------------------------------------------------------------------------------


class Kept(Keeping, ExitDrafter):
    """Keeps what it proposes."""


@pytest.mark.parametrize("engine", ENGINES)
def test_proposals_and_states_are_the_definitions(engine):
    """Computed anew from the library's own states of the whole text: the distribution of every token, and the state
    that it came from. Rounds of every kind came before."""
    model, adapter, texts = trained("llama", engine)
    drafter, sampling, kinds = Kept(adapter), Sampling(1.3), set()
    for text in texts[:2]:
        how = (4, N_NEW, sampling, 2)
        rounds = speculative_rounds(reading(model, adapter, engine), drafter, text[None, :9], *how)
        kinds |= {(r.n_accepted > 0) + (r.n_accepted == r.n_drafted) for r in rounds if r.n_drafted == 4}
        for so_far, draft in drafter.proposed:
            for i in range(draft.tokens.shape[1]):
                ids = torch.tensor([[*so_far, *draft.tokens[0, :i].tolist()]])
                with torch.inference_mode():
                    hidden = model(ids, output_hidden_states=True, use_cache=False).hidden_states[2]
                    probs = sampling.probs(adapter.text_logits(hidden)[:, -1])
                assert_close(draft.states[0, i], hidden[0, -1])
                assert_close(draft.probs[0, i], probs[0])
    assert kinds == {0, 1, 2}


# --- which targets can be split --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", TRIED)
def test_every_family_passes_the_check(family):
    model, _, _ = trained_exit(family)
    for n_layers in (1, 2, 3):
        check_split(CachedModel(model), n_layers)
    if family in OFTEN:
        model, _, _ = trained_exit_in_float32(family)
        check_split(CachedModel(model, fast=on_engine("c", model)), 1)


def test_a_target_that_cannot_be_split_is_refused(monkeypatch):
    model = tiny("llama", num_hidden_layers=4)
    right = first_layers.forward_rest
    monkeypatch.setattr(first_layers, "forward_rest", lambda one, states, *rest: right(one, states * 1.01, *rest))
    with pytest.raises(EnvironmentProblem, match=r"llama cannot be run in two parts.*logits differ.*choose another"):
        check_split(CachedModel(model), 2)
    with pytest.raises(EnvironmentProblem, match="cannot be run in two parts"):
        check_split(CachedModel(PlainTransformer(VOCAB, 0)), 1)
