"""Passes of a head that are compiled: padded, masked, over whole blocks of rows. Nothing is compiled here."""

import copy

import pytest
import torch

from speclab.core.sampling import Sampling
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads import passes
from speclab.models.backends import packages
from speclab.models.backends.compile_functions import BLOCK
from speclab.models.cached import CachedModel
from tests.decoding import speculative_rounds
from tests.heads import in_fixed_widths, prompts, tiny_block_head, tiny_head
from tests.tiny_models import tiny, uncompiled

DRAFTS = {
    "feature": (FeatureDrafter, lambda model: tiny_head()),
    "block": (BlockDrafter, lambda model: tiny_block_head(model, markov_rank=3)),
    "causal block": (BlockDrafter, lambda model: tiny_block_head(model, causal=True)),
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_they_serve_every_length_of_a_text(kind):
    """Also one that ends where a block of rows ends, and a text that outgrows the first buffers."""
    model = tiny("llama")
    drafter_class, make = DRAFTS[kind]
    found = []
    for compiled in (False, True):
        drafter = drafter_class(copy.deepcopy(make(model)))
        if compiled:
            in_fixed_widths(drafter)
        target = CachedModel(model)
        target.hidden_layers = drafter.head.config.layers
        for temperature in (0.0, 0.8):  # one drafter: its passes take a second to be exported
            how = (Sampling(temperature, top_k=20), torch.Generator().manual_seed(1))
            rounds = speculative_rounds(target, drafter, prompts(1), 4, 5 * BLOCK // 2, *how)
            found.append([(r.tokens, r.n_accepted) for r in rounds])
    assert found[:2] == found[2:]


def test_a_head_whose_compiled_function_is_wrong_keeps_its_own(monkeypatch):
    monkeypatch.setattr(packages, "load", lambda name: None)
    kept = {}

    def build(missing):
        wrong = lambda module: lambda inputs: [x + 0.01 for x in module(*inputs)]  # noqa: E731
        kept.update({name: wrong(source[0]) for name, source in missing.items()})

    monkeypatch.setattr(passes, "build_missing", build)
    monkeypatch.setattr(packages, "in_folder", lambda name, source: kept[name])
    drafter = FeatureDrafter(tiny_head().float())
    assert "other numbers" in passes.use_compiled(drafter.head, drafter.compiled_widths)
    assert not drafter.head.compiled


def test_a_function_that_is_no_faster_is_not_used(monkeypatch):
    drafter = FeatureDrafter(tiny_head().float())
    monkeypatch.setattr(passes, "compile_steps", lambda head, widths, find: slow(head, widths))
    ticks = iter(range(10**6))
    monkeypatch.setattr(passes.time, "perf_counter", lambda: next(ticks) ** 2)  # whatever comes later takes longer
    assert "as fast" in passes.use_compiled(drafter.head, drafter.compiled_widths)
    assert not drafter.head.compiled


def slow(head, widths):
    made = {(step, width): getattr(head, step) for step, numbers in widths.items() for width in numbers}
    return {key: lambda *inputs, run=run: run(*inputs) for key, run in made.items()}


def test_what_follows_from_a_heads_own_sizes_is_not_taken_for_rows():
    """A head as wide as the usual example has rows is exported with other ones."""
    head = tiny_head()
    head.register_buffer("as_many", torch.zeros(2 * BLOCK))
    seen = []

    def find(name, source):
        seen.append([tensor.shape for tensor in source()[1]])
        return uncompiled(name, source)

    assert passes.compile_steps(head, {"step": (1,)}, find)
    assert any(3 * BLOCK in shape for shape in seen[0])


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_the_example_of_a_padded_targets_head_is_as_wide_as_its_weights(kind):
    """Padding replaces the weights of `fc`, not what the layer says of itself."""
    head = DRAFTS[kind][1](tiny("llama"))
    weight = head.fc.weight.detach()
    head.fc.weight = torch.nn.Parameter(torch.cat([weight, 0 * weight], dim=1))
    assert head.example({"feature": "first_step", "block": "draft"}[kind], 1, BLOCK)[0].shape[2] == 2 * weight.shape[1]
