"""Heads with int8 weights: what is rounded, what reads it, and that the text stays the target's."""

import copy

import pytest
import torch
from heads import N_NEW, tiny_block_head, tiny_head, trained, trained_block
from tiny_models import tiny
from torch.nn.functional import linear

from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.parts import INT8_ROWS, Product, frozen, in_int8
from speclab.drafts.kinds import check_kind, drafter_name, grows
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text


def products(head) -> list[Product]:
    return [part for module in head.modules() for part in vars(module).values() if isinstance(part, Product)]


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_weights_are_rounded_to_a_byte_and_the_targets_are_not(kind):
    target = tiny("llama").float()
    before = copy.deepcopy(target.state_dict())
    head = (tiny_head() if kind == "feature" else tiny_block_head(target)).float()
    exact = [product._joined()[0].clone() for product in products(head)]
    frozen(in_int8(head))
    for product, old in zip(products(head), exact, strict=True):
        weights, steps = product.int8
        new, bias = product._joined()
        assert weights.dtype == torch.int8
        assert torch.equal(weights * steps.float()[:, None], new), "what wide passes read is what narrow ones read"
        assert (new - old).abs().max(1).values.le(steps.float() * 0.8).all(), "to the next step, its own one to 0.4 %"
        x = torch.randn(1, INT8_ROWS + 1, new.shape[1])
        wide, narrow = product(x), product(x[:, :INT8_ROWS])
        torch.testing.assert_close(wide, linear(x, new, bias))
        torch.testing.assert_close(narrow, wide[:, :INT8_ROWS], atol=0.02 * wide.abs().max().item(), rtol=0)
        assert not torch.equal(narrow, wide[:, :INT8_ROWS]), "another product"
    assert all(torch.equal(old, target.state_dict()[name]) for name, old in before.items())


def test_a_row_of_zeros_stays_zero():
    head = tiny_head().float()
    with torch.no_grad():
        head.lm_head.weight[3] = 0
    assert not in_int8(head).lm_head.weight[3].any()


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["feature", "block"])
def test_a_trained_head_keeps_its_acceptance_and_the_text_is_the_targets(kind, sampling):
    """In float32; what a draft proposes is no matter for a text that is chosen, and a sampled one repeats."""
    model, head, texts = trained() if kind == "feature" else trained_block()
    model, head = copy.deepcopy(model).float(), copy.deepcopy(head).float()
    accepted = []
    for one in (head, in_int8(copy.deepcopy(head))):
        found = []
        for _ in range(2):
            drafter = FeatureDrafter(one) if kind == "feature" else BlockDrafter(one)
            target = CachedModel(model)
            target.hidden_layers = head.config.layers
            settings = DecodeSettings(N_NEW, sampling, seed=5)
            rounds = list(speculative_decode(target, drafter, texts[:1, :9], 3, settings))
            found.append([token for round_ in rounds for token in round_.tokens])
            accepted.append(sum(round_.n_accepted for round_ in rounds))
        assert found[0] == found[1]
        if sampling.greedy:
            assert found[0] == plain_text(CachedModel(model), texts[:1, :9], N_NEW)
    assert accepted[2] >= 0.7 * accepted[0] > 0


def test_only_float32_on_a_cpu():
    with pytest.raises(UsageProblem, match="cpu, float64"):
        in_int8(tiny_head())


def test_names():
    assert drafter_name("int8:feature") == "int8:feature"
    assert drafter_name("hybrid:suffix+int8:feature") == "hybrid:suffix+int8:feature"
    assert drafter_name("int8:feature:some/head") == "int8:feature:some/head"
    assert grows("int8:feature")
    for kind in ("int8:feature", "int8:block", "hybrid:ngram+int8:feature", "tree:2x2:int8:block"):
        check_kind(kind)
    for kind in ("int8", "int8:", "int8:model", "int8:int8:feature", "int8:exit:2"):
        with pytest.raises(UsageProblem, match="int8:feature or int8:block"):
            check_kind(kind)
