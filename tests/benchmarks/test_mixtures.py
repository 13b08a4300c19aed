"""Mixtures of experts that say what one MLP says, and that a pass over several tokens pays for."""

import pytest
import torch

from benchmarks.experts import chosen_experts, counted_union, read_bytes
from benchmarks.mixtures import Experts, count_added, with_experts
from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import check_model
from speclab.models.padded import padding
from speclab.system.errors import EnvironmentProblem
from tests.decoding import plain_text
from tests.llamas import VOCAB, tiny_llama


def text(n: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (1, n), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("experts", "tied"), [(Experts(2, 1), True), (Experts(4, 2), False), (Experts(3, 3), True)])
def test_logits_stay_and_every_copy_is_there(experts, tied):
    model = tiny_llama(0, n_layers=2, dtype=torch.float32)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone() * 1.1)
    ids = text(12)
    with torch.inference_mode():
        expected = model(ids).logits
    n_before, added = sum(p.numel() for p in model.parameters()), count_added(model, experts)
    mixed = with_experts(model, experts)
    check_model(mixed)
    assert sum(p.numel() for p in mixed.parameters()) == n_before + added
    with torch.inference_mode():
        assert (mixed(ids).logits - expected).abs().max() < 1e-4
    for layer in mixed.model.layers:
        copies = layer.mlp.experts.down_proj
        assert copies.is_contiguous(), "the copies would be one and the same memory"
        assert (copies == copies[:1]).all()


def test_a_router_that_chooses_counts():
    """With other copies the logits change: what stands in them is used."""
    mixed = with_experts(tiny_llama(0, n_layers=2, dtype=torch.float32), Experts(4, 2))
    ids = text(12)
    with torch.inference_mode():
        before = mixed(ids).logits
        for number in range(4):
            mixed.model.layers[0].mlp.experts.down_proj[number].mul_(1 + number)
        assert (mixed(ids).logits - before).abs().max() > 1e-3


def test_speculation_keeps_the_text():
    target = CachedModel(with_experts(tiny_llama(0, n_layers=2, dtype=torch.float32), Experts(4, 2)))
    drafter = ModelDrafter(CachedModel(tiny_llama(0, n_layers=2, dtype=torch.float32)))
    rounds = list(speculative_decode(target, drafter, text(9), 3, DecodeSettings(20)))
    assert tokens_of(rounds) == plain_text(target, text(9), 20)
    assert sum(r.n_accepted for r in rounds) > 10, "its own text without experts was refused"


def test_unions_are_counted_behind_the_context():
    """Against a count by hand, from the router's own products."""
    model = CachedModel(with_experts(tiny_llama(0, n_layers=2, dtype=torch.float32), Experts(8, 2)))
    ids, context = text(15), 6
    inputs = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda module, given, result: inputs.append((module, given[0])))
        for layer in model.model.model.layers
    ]
    with torch.inference_mode():
        model.model(ids)
        chosen = chosen_experts(model, ids)
    for hook in hooks:
        hook.remove()
    for width in (1, 3, 9):
        expected = []
        for gate, given in inputs[:2]:
            scores = given.reshape(-1, given.shape[-1]) @ gate.weight.T
            expected.append(len({int(i) for row in scores[context : context + width] for i in row.topk(2).indices}))
        assert counted_union(chosen, torch.arange(context, context + width)) == sum(expected) / 2
    assert counted_union(chosen, torch.tensor([context])) == 2


def test_bytes_are_the_weights():
    model = tiny_llama(0, n_layers=2, dtype=torch.float32)
    read = read_bytes(CachedModel(model), context=10)
    table = 0 if model.config.tie_word_embeddings else model.model.embed_tokens.weight.numel()
    assert read.mlps + read.others == 4 * (sum(p.numel() for p in model.parameters()) - table)
    config = model.config
    assert read.places == 10 * 2 * 2 * config.num_key_value_heads * config.head_dim * 4


def test_memory_is_asked_first(monkeypatch):
    monkeypatch.setattr(padding, "free_memory", lambda device: 10)
    model = tiny_llama(0, n_layers=2)
    with pytest.raises(EnvironmentProblem, match=r"e4k2 needs .* GB in .*; use a smaller one"):
        with_experts(model, Experts(4, 2))
