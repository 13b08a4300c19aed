"""A draft that reads the target's hidden states: what it reads, what it proposes, and that it learns."""

import pytest
import torch

from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.feature import FeatureHead
from speclab.engines.eager import layer_outputs
from speclab.lab.bench import Bench
from speclab.lab.known_texts import probs_along
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.theory.formulas import forecast
from tests.decoding import plain_text, speculative_rounds
from tests.heads import LEARNT, N_NEW, feature_row, keeping, prompts, tiny_head, trained
from tests.tiny_models import DTYPE_ON, VOCAB, on_engine, tiny

Kept = keeping(FeatureDrafter)


def reading(model, drafter, fast=None) -> CachedModel:
    target = CachedModel(model, fast=fast)
    target.hidden_layers = drafter.head.config.layers
    return target


def chain(head: FeatureHead, hidden: torch.Tensor, text: list[int], k: int) -> list[int]:
    """k greedy proposals after `text`, by definition. hidden (1, length, width)"""
    drawn: list[int] = []
    for _ in range(k):
        drawn.append(int(feature_row(head, hidden, text, drawn).argmax()))
    return drawn


@pytest.mark.parametrize("flags", [{}, {"norm_before_fc": True, "norm_before_residual": True}, {"fc_norm": True}])
@pytest.mark.parametrize("qwen3", [False, True])
@pytest.mark.parametrize("engine", DTYPE_ON)
def test_proposals_are_the_definitions(flags, qwen3, engine):
    """After prefill, whole, partly and fully rejected rounds: what was read, at which position, next to which token."""
    texts, model = trained()[2], tiny("llama", dtype=DTYPE_ON[engine])
    head = tiny_head(qwen3=qwen3, norm_output=bool(flags), **flags).to(model.dtype)
    drafter = Kept(head)
    if engine == "c":
        drafter.use_c()
    target = reading(model, drafter, on_engine(engine, model))
    rounds = list(speculative_rounds(target, drafter, texts[:1, :9], 4, N_NEW))
    assert [t for r in rounds for t in r.tokens] == texts[0, 9 : 9 + N_NEW].tolist()
    check(model, head, drafter)


def check(model, head, drafter):
    """All proposals of a decoding, from hidden states that the library computes for the whole text."""
    with torch.inference_mode(), layer_outputs(model, (0, 1)) as outputs:
        ids = torch.tensor([drafter.text])
        first = model(ids, output_hidden_states=True, use_cache=False).hidden_states[1]
        assert torch.equal(outputs[0], first)
        hidden = torch.cat([outputs[0], outputs[1]], dim=-1)  # the library has the last one after the final norm only
        for so_far, draft in drafter.proposed:
            proposed = draft.tokens[0].tolist()
            assert proposed == chain(head, hidden, so_far, len(proposed))


def test_a_trained_head_is_often_right_and_stays_in_step():
    """Rounds of every kind: none accepted, some, all. What it learnt by heart is drafted through the cached loop."""
    model, head, texts = trained()
    accepted = drafted = 0
    kinds = set()
    for learnt, text in zip(LEARNT, texts, strict=True):
        drafter = Kept(head)
        rounds = list(speculative_rounds(reading(model, drafter), drafter, text[None, :9], 3, N_NEW))
        assert [t for r in rounds for t in r.tokens] == text[9:].tolist()
        check(model, head, drafter)
        if learnt:
            accepted += sum(r.n_accepted for r in rounds)
            drafted += sum(r.n_drafted for r in rounds)
        kinds |= {(r.n_accepted > 0) + (r.n_accepted == r.n_drafted) for r in rounds if not r.prefill}
    assert accepted / drafted > 0.8, "a shift of one position in training or in the loop costs most of this"
    assert kinds >= {0, 2}


IDS = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))[:12].sort().values


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.5)])
@pytest.mark.parametrize(("n_ids", "ids"), [(VOCAB, IDS), (VOCAB + 5, torch.arange(VOCAB))])
def test_ids_that_the_head_lacks_are_never_proposed_and_do_no_harm(n_ids, ids, sampling):
    """Its own ids are others than the target's, or the target knows more than the head."""
    model = tiny("llama", vocab_size=n_ids)
    drafter = Kept(tiny_head(draft_vocab=len(ids)), ids if len(ids) < VOCAB else None)
    text = tokens_of(speculative_rounds(reading(model, drafter), drafter, prompts(1), 3, 40, sampling, seed=1))
    proposed = {token for _, draft in drafter.proposed for token in draft.tokens[0].tolist()}
    assert proposed <= set(ids.tolist())
    assert len(proposed) > 1
    assert not set(text) <= set(ids.tolist()), "nothing was beyond it"
    (before, draft), n = drafter.proposed[-2], prompts(1).shape[1]
    law = drafter.law(reading(model, drafter), before[:n], text, sampling, 1).drawn_from([(len(before) - n, 0, 1)])
    assert torch.allclose(law, draft.probs[0, :1]) if draft.probs is not None else law.argmax() == draft.tokens[0, 0]
    if sampling.greedy:
        assert text == plain_text(CachedModel(model), prompts(1), 40)


def test_the_forecast_of_a_greedy_decoding_is_exact():
    """What a round accepts depends on where it began, so the table holds every start; the rounds follow from it."""
    model, head, texts = trained()
    drafter, seen = FeatureDrafter(head), set()
    target = reading(model, drafter)
    setup = Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    bench = Bench(setup, {"feature": drafter}, N_NEW, seed=0)
    for prompt in [*(text[None, :9] for text in texts), torch.tensor([[7]])]:
        new = plain_text(CachedModel(model), prompt, N_NEW)
        probs = probs_along(bench, 5, "feature", Sampling(), Prompt("code", "", prompt), new)
        assert [len(row) for row in probs] == [min(5, N_NEW - t) for t in range(N_NEW)]
        for k in (1, 3, 5):
            rounds = list(speculative_rounds(target, drafter, prompt, k, N_NEW))
            expected = forecast(probs, k)
            assert expected.n_rounds == pytest.approx(len(rounds) - 1)
            assert expected.n_accepted == pytest.approx(sum(r.n_accepted for r in rounds))
            seen |= {(r.n_drafted, r.n_accepted) for r in rounds}
    assert len(seen) > 8, "rounds of many kinds"
