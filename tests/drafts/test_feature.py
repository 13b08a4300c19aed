"""A draft that reads the target's hidden states: what it reads, what it proposes, and that it learns."""

import pytest
import torch

from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.feature import FeatureHead
from speclab.engines.eager import layer_outputs
from speclab.lab.bench import Bench
from speclab.lab.known_texts.acceptance_probs import accept_probs
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.theory.forecast import forecast
from tests.decoding import plain_text, speculative_rounds
from tests.heads import LEARNT, N_NEW, Keeping, feature_row, prompts, tiny_head, trained
from tests.tiny_models import DTYPE_ON, VOCAB, on_engine, tiny


def reading(model, drafter, fast=None) -> CachedModel:
    target = CachedModel(model, fast=fast)
    target.hidden_layers = drafter.head.config.layers
    return target


class Kept(Keeping, FeatureDrafter):
    """Keeps what it proposes."""


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


def test_ids_that_the_head_lacks_are_never_proposed():
    """Its own ids are others than the target's."""
    model = tiny("llama")
    ids = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(0))[:12].sort().values
    for sampling in (Sampling(), Sampling(1.0)):
        drafter = Kept(tiny_head(draft_vocab=12), ids)
        generator = torch.Generator().manual_seed(1)
        rounds = list(speculative_rounds(reading(model, drafter), drafter, prompts(1), 3, 30, sampling, generator))
        proposed = {token for _, draft in drafter.proposed for token in draft.tokens[0].tolist()}
        assert proposed <= set(ids.tolist())
        assert len(proposed) > 1
        if sampling.greedy:
            assert [t for r in rounds for t in r.tokens] == plain_text(CachedModel(model), prompts(1), 30)


def test_ids_beyond_the_heads_vocabulary_are_never_proposed_and_do_no_harm():
    """A target may know more ids than the head it was given."""
    model = tiny("llama", vocab_size=VOCAB + 5)
    for sampling in (Sampling(), Sampling(1.5)):
        drafter = Kept(tiny_head())
        generator = torch.Generator().manual_seed(1)
        rounds = list(speculative_rounds(reading(model, drafter), drafter, prompts(1), 3, 40, sampling, generator))
        assert all(token < VOCAB for _, draft in drafter.proposed for token in draft.tokens[0].tolist())
        text = [t for r in rounds for t in r.tokens]
        assert max(text) >= VOCAB, "nothing was beyond it"
        if sampling.greedy:
            assert text == plain_text(CachedModel(model), prompts(1), 40)


def test_a_prompt_of_one_token_has_a_forecast_too():
    model, head, _ = trained()
    drafter, prompt = FeatureDrafter(head), torch.tensor([[7]])
    target = reading(model, drafter)
    setup = Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    bench = Bench(setup, {"feature": drafter}, 12, seed=0)
    rounds = list(speculative_rounds(target, drafter, prompt, 3, 12))
    text = [token for r in rounds for token in r.tokens]
    probs = accept_probs(bench, "feature", Prompt("code", "", prompt), text, Sampling(), 3)
    assert forecast(probs, 12, 3).n_rounds == pytest.approx(len(rounds) - 1)
    rows = list(drafter.chain_probs(model, [7], text[:1], Sampling(), 2, VOCAB))
    assert [row.shape for row in rows] == [(1, VOCAB)] * 2


def test_a_target_that_keeps_no_states_is_a_fault():
    model, head, texts = trained()
    with pytest.raises(RuntimeError, match="no pass keeps the output of layer 0"):
        list(speculative_rounds(CachedModel(model), FeatureDrafter(head), texts[:1, :9], 3, 5))


def test_the_forecast_of_a_greedy_decoding_is_exact():
    """What a round accepts depends on where it began, so the table holds every start; the rounds follow from it."""
    model, head, texts = trained()
    drafter = FeatureDrafter(head)
    target = reading(model, drafter)
    setup = Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    bench = Bench(setup, {"feature": drafter}, N_NEW, seed=0)
    seen = set()
    for text in texts:
        prompt, new = Prompt("code", "", text[None, :9]), text[9:].tolist()
        probs = accept_probs(bench, "feature", prompt, new, Sampling(), 5)
        assert [len(row) for row in probs] == [min(5, N_NEW - t) for t in range(N_NEW)]
        for k in (1, 3, 5):
            rounds = list(speculative_rounds(target, drafter, text[None, :9], k, N_NEW))
            expected = forecast(probs, N_NEW, k)
            assert expected.n_rounds == pytest.approx(len(rounds) - 1)
            assert expected.n_accepted == pytest.approx(sum(r.n_accepted for r in rounds))
            seen |= {(r.n_drafted, r.n_accepted) for r in rounds}
    assert len(seen) > 8, "rounds of many kinds"


def test_the_forecast_of_sampling_is_the_share_that_is_accepted():
    """Over many decodings, each judged by its own text. The two sums differ by noise: 5 of its standard deviations."""
    model, head, texts = trained()
    drafter = FeatureDrafter(head)
    target = reading(model, drafter)
    setup = Setup(target, None, "tiny", Sampling(1.0), torch.device("cpu"), torch.float64)
    bench, sampling = Bench(setup, {"feature": drafter}, N_NEW, seed=0), Sampling(1.0)
    differences = []
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        rounds = list(speculative_rounds(target, drafter, texts[:1, :9], 3, N_NEW, sampling, generator))
        text = [token for r in rounds for token in r.tokens]
        probs = accept_probs(bench, "feature", Prompt("code", "", texts[:1, :9]), text, sampling, 3)
        differences.append(sum(r.n_accepted for r in rounds) - forecast(probs, N_NEW, 3).n_accepted)
    differences = torch.tensor(differences)
    assert differences.std() > 0.1
    assert differences.mean().abs() < 5 * differences.std() / len(differences) ** 0.5


def test_what_the_sampled_check_reads_is_what_the_first_token_is_drawn_from():
    model, head, texts = trained()
    drafter = FeatureDrafter(head)
    text = texts[2]
    ids = text[9:].tolist()
    rows = next(drafter.chain_probs(model, text[:9].tolist(), ids, Sampling(1.0), 1, VOCAB))
    target = reading(model, drafter)
    generator = torch.Generator().manual_seed(5)
    drafts = []
    honest = FeatureDrafter.propose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FeatureDrafter, "propose", lambda *args: drafts.append(honest(*args)) or drafts[-1])
        rounds = list(speculative_rounds(target, drafter, text[None, :9], 2, N_NEW, Sampling(1e-9), generator))
    at = 1
    for draft, round_ in zip(drafts, rounds[1:], strict=True):
        if draft.tokens.shape[1]:
            assert draft.probs[0, 0].argmax() == rows[at].argmax()
        at += len(round_.tokens)
    assert rows.shape == (N_NEW, VOCAB)
    assert torch.allclose(rows.sum(-1), torch.ones(N_NEW, dtype=rows.dtype))
