"""Early exit: the target's own first layers draft into its cache, and verification goes on from there."""

import pytest
import torch

from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.engines.c_pass import CBackend, CModel
from speclab.extensions.exits.early_exit import ExitAdapter, ExitDrafter
from speclab.extensions.exits.first_layers import FirstLayers, check_split
from speclab.extensions.exits.tests.adapters import trained_exit
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests.decoding import plain_text, speculative_rounds
from tests.heads import N_NEW, keeping
from tests.tiny_models import FAMILIES, assert_close, on_engine

WARM = Sampling(temperature=0.8)
TRIED = [name for name in FAMILIES if name != "opt"]  # the engine c does not know OPT


def reading(model, adapter: ExitAdapter, cached=CachedModel) -> CachedModel:
    target = cached(model, fast=on_engine("c", model))
    target.hidden_layers = adapter.config.layers
    return target


@pytest.mark.parametrize("family", TRIED)
def test_greedy_text_is_the_targets_in_every_family(family):
    """Through rounds in which nothing, some and all of a draft is accepted."""
    model, adapter, texts = trained_exit(family)
    kinds = set()
    for k, text in zip((1, 4, 4, 6), texts, strict=True):
        rounds = list(speculative_rounds(reading(model, adapter), ExitDrafter(adapter), text[None, :9], k, N_NEW))
        assert tokens_of(rounds) == text[9:].tolist()
        kinds |= {(r.n_accepted == r.n_drafted) for r in rounds if r.n_drafted > 1}
    assert kinds == {False, True}, "no rollback, or no full acceptance"


def test_caches_grow_in_the_middle_of_a_round(monkeypatch):
    """The first layers begin another page, and outgrow the adapter's own buffers, while the others wait."""
    monkeypatch.setattr("speclab.drafts.feature.SPARE", 8)
    model, adapter, texts = trained_exit()
    prompt = texts.reshape(1, -1)[:, :57]
    expected = plain_text(CachedModel(model), prompt, N_NEW)
    for n in range(4):
        target = reading(model, adapter)
        rounds = list(speculative_rounds(target, ExitDrafter(adapter), prompt, 3 + n, N_NEW))
        assert tokens_of(rounds) == expected
        assert len(target.backend.pages) == 2


def test_no_layer_runs_twice_over_a_token(monkeypatch):
    """Each layer computes as many positions as one pass over the last token and the drafts of every round would."""
    model, adapter, texts = trained_exit()
    fed, right = [0] * 4, CModel.run

    def counted(self, texts, token, ids=None, states=None, layers=None, **given):
        for layer in layers or range(4):
            fed[layer] += (states if ids is None else ids).shape[1]
        return right(self, texts, token, ids, states, layers=layers, **given)

    monkeypatch.setattr(CModel, "run", counted)
    target = reading(model, adapter)
    rounds = list(speculative_rounds(target, ExitDrafter(adapter), texts[:1, :9], 4, N_NEW, WARM))
    assert fed == [9 + sum(r.n_drafted + 1 for r in rounds[1:])] * 4
    assert target.n_passes + target.n_replays == len(rounds)


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


def test_proposals_and_states_are_the_definitions():
    """Computed anew from the library's own states of the whole text: the distribution of every token, and the state
    that it came from. Rounds of every kind came before."""
    model, adapter, texts = trained_exit()
    drafter, sampling, kinds = keeping(ExitDrafter)(adapter), Sampling(1.3), set()
    for text in texts[:2]:
        how = (4, N_NEW, sampling, 2)
        rounds = speculative_rounds(reading(model, adapter), drafter, text[None, :9], *how)
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


@pytest.mark.parametrize("family", TRIED)
def test_every_family_passes_the_check(family):
    model, _, _ = trained_exit(family)
    for n_layers in (1, 2, 3):
        check_split(CachedModel(model, fast=on_engine("c", model)), n_layers)


def test_a_target_that_cannot_be_split_is_refused(monkeypatch):
    model, _, _ = trained_exit()
    right = CBackend.run
    wrong = lambda self, *args, **given: right(self, *args, **given) * (1.01 if "layers" in given else 1)  # noqa: E731
    monkeypatch.setattr(CBackend, "run", wrong)
    with pytest.raises(EnvironmentProblem, match=r"llama cannot be run in two parts.*logits differ.*choose another"):
        check_split(CachedModel(model, fast=on_engine("c", model)), 2)
