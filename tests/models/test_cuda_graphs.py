"""The graphed backend without a GPU; a stand-in for the capture runs the step again at every replay.

So everything is tested but CUDA's own capture and replay: fixed inputs, positions, masks over buckets, padding,
graph caches.
What the stand-in gives back is overwritten by the next replay, as a graph's output is. tests/test_cuda.py has the rest.
"""

import copy

import pytest
import torch
from decoding import counted_kernels, plain_text, speculative_rounds
from tiny_models import CONTEXT, VOCAB, perturbed, tiny

from draft_models import DraftSteps, ModelDrafter
from speclab.core.sampling import Sampling
from speclab.drafts.oracle import OracleModelDrafter
from speclab.lab import harness as bench_module
from speclab.lab.harness import Bench, take_turns
from speclab.models.backends import cuda_graphs
from speclab.models.backends.exported import Buffers, ExportedModel
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.samples import BASELINE, Arm

PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
GARBAGE = 1e4


def spare(monkeypatch, n_tokens: int) -> None:
    """Room for so many tokens after a prompt, and graphs for them."""
    monkeypatch.setattr(Buffers, "SPARE", n_tokens)


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    """Short buckets, and a capture that a CPU can do; it counts captures and replays."""
    seen = {"captures": 0, "replays": 0}

    def capture(step, model):
        for _ in range(cuda_graphs.WARM_UPS):
            step()
        outputs = tuple(output.clone() for output in step())
        seen["captures"] += 1

        def replay():
            seen["replays"] += 1
            for output, new in zip(outputs, step(), strict=True):
                output.copy_(new)

        return replay, outputs

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(cuda_graphs, "BUCKET", 16)
    spare(monkeypatch, 16)
    return seen


def graphed(family: str = "llama", noise: float = 0.0, **changes) -> CachedModel:
    model = tiny(family, **changes)
    model = perturbed(model, noise) if noise else model
    return CachedModel(model, exported=ExportedModel(model, graphed=True))


def spoil_dead_rows(cached: CachedModel) -> None:
    """Rows behind the live length hold whatever was left there; finite, as buffers start as zeros."""
    for buffer in cached._backend._buffers.keys + cached._backend._buffers.values:
        with torch.inference_mode():
            buffer[:, :, cached.length :] = GARBAGE


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2", "gpt_neox", "opt", "gemma"])
def test_logits_are_the_models_own(family):
    """Every width, buckets crossed, graph caches outgrown, padding at the edge of the context, garbage in dead rows."""
    cached = graphed(family)
    room = CONTEXT - 2  # OPT counts its positions from two
    ids = torch.randint(0, VOCAB, (1, room), generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        right = cached.model(input_ids=ids, use_cache=False).logits
    assert torch.allclose(cached.prefill(ids[:, :9])[0, -1], right[0, 8], atol=1e-9)
    widths, place = [5, 1, 2, 3, 17, 1, 4], 9
    while place < room:
        width = min(widths[0], room - place)
        widths = widths[1:] + widths[:1]
        spoil_dead_rows(cached)
        found = cached.forward(ids[:, place : place + width])
        assert torch.allclose(found, right[:, place : place + width], atol=1e-9), f"width {width} at {place}"
        place += width
    assert cached.length == room


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9)], ids=["greedy", "sampled"])
def test_rounds_are_those_of_the_eager_engine(sampling, stand_in):
    rounds = []
    for fast in (False, True):
        target, draft = graphed(), graphed(noise=0.1)
        if not fast:
            target, draft = CachedModel(target.model), CachedModel(draft.model)
        generator = torch.Generator().manual_seed(3)
        rounds.append(list(speculative_rounds(target, ModelDrafter(draft), PROMPT, 4, 60, sampling, generator)))
    assert rounds[0] == rounds[1]
    assert sum(r.n_accepted for r in rounds[1]) > 5
    assert any(r.n_rejected for r in rounds[1])
    assert stand_in["captures"] < stand_in["replays"] / 3, "shapes must repeat"


def test_the_baseline_in_chunks():
    cached = graphed()
    text = plain_text(CachedModel(cached.model), PROMPT, 50)
    assert plain_text(cached, PROMPT, 50, chunk=16) == text


def test_short_last_blocks_are_padded_to_what_this_decoding_used():
    """And to nothing that another decoding used: its widths must not decide what is timed here."""
    one = graphed()
    two = copy.deepcopy(one)
    for cached in (one, two):
        cached.prefill(PROMPT)
    for n in (5, 2, 1, 3):
        one.forward(PROMPT[:, :n])
    two.forward(PROMPT[:, :3])
    assert one._backend._widths == {5, 1}
    assert two._backend._widths == {3}
    assert {recipe.n_tokens for recipe in one.exported.graph_keys} == {5, 1, 3}


def test_captures_are_done_before_the_first_timed_step(stand_in):
    """After a warm-up that met every width, a new decoding captures with its prompt's pass and never later."""
    cached = graphed()
    cached.prefill(PROMPT)
    for n in (5, 1):
        cached.forward(PROMPT[:, :n])
    other = copy.deepcopy(cached)
    other.prefill(PROMPT)
    captures = stand_in["captures"]
    for n in (5, 1, 1, 5, 1):
        other.forward(PROMPT[:, :n])
    assert stand_in["captures"] == captures


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.9)], ids=["greedy", "sampled"])
def test_a_chain_of_draft_steps_is_one_replay(sampling, stand_in):
    """Pass by pass when its shapes are new, one graph from then on; proposals, cache and counts are the same."""
    draft = graphed(noise=0.1)
    eager = CachedModel(draft.model)
    chances = torch.rand(1, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    for first in (True, False):
        found = []
        for cached in (draft, eager):
            cached.prefill(PROMPT, rolls_back=True)
            for length in (9, 20):  # the second one reads another bucket
                while cached.length < length:
                    cached.forward(PROMPT[:, :1])
                if cached is draft:
                    spoil_dead_rows(cached)
                replays = stand_in["replays"]
                found.append(cached.run(DraftSteps(sampling), PROMPT[:, :2], chances))
                assert cached.length == length + 5, "two tokens of catch-up, and three of its own"
                if cached is draft:
                    assert stand_in["replays"] - replays == (4 if first else 1)
                cached.crop(length)
        for ours, right in zip(found[:2], found[2:], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, right, strict=True))
        assert draft.n_passes == eager.n_passes


@pytest.mark.parametrize("kind", ["model", "dial"])
def test_a_drafter_runs_its_chain_in_one_replay_per_round(kind, stand_in, monkeypatch):
    """The dial as well, or it would not cost what a draft costs. Near the end shorter chains run pass by pass."""
    spare(monkeypatch, 64)
    target, draft = graphed(), graphed(noise=0.1)
    drafter = ModelDrafter(draft)
    if kind == "dial":
        drafter = OracleModelDrafter(draft, 0.7)
        drafter.replay(plain_text(CachedModel(target.model), PROMPT, 33))
    replays = []
    for _ in range(2):
        stand_in["replays"] = 0
        rounds = list(speculative_rounds(target, drafter, PROMPT, 4, 33))
        replays.append(stand_in["replays"])
    assert sum(r.n_drafted == 4 for r in rounds) > 4 > rounds[-1].n_drafted
    assert replays[0] == sum(1 + r.n_drafted for r in rounds[1:]), "new shapes: one for each pass"
    assert replays[1] == sum(2 if r.n_drafted == 4 else 1 + r.n_drafted for r in rounds[1:])
    chains = [key.inputs for key in draft.exported.graph_keys if isinstance(key.program, DraftSteps)]
    assert {shape[1] for _, (shape, _) in chains} == {4}, "uniforms: no shorter chain is captured"


def test_after_the_warm_up_nothing_is_left_to_capture(stand_in, monkeypatch):
    """Every arm, temperature and catch-up, whatever the prompt's length; a capture stops the whole device."""
    spare(monkeypatch, 64)
    target, draft = graphed(), graphed(noise=0.1)
    setup = Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    bench = Bench(setup, {"model": ModelDrafter(draft)}, 24, seed=0)
    arms = [BASELINE, *(Arm("model", "model", k) for k in (2, 4))]
    lengths = (9, 20, 40)
    prompts = [Prompt("code", "", torch.randint(0, VOCAB, (1, n))) for n in lengths]
    samplings = [Sampling(), Sampling(0.9)]
    bench_module._warm_up(bench, arms, samplings, prompts, {})
    before = stand_in["captures"]
    for sampling in samplings:
        for prompt in prompts:
            decodings = [bench.decoding(arm, sampling, prompt) for arm in arms]
            take_turns(decodings)
    assert stand_in["captures"] == before > 0


def test_chains_are_captured_before_the_first_timed_step(stand_in):
    draft = graphed(noise=0.1)
    chances = torch.zeros(1, 4, dtype=torch.float64)
    draft.prefill(PROMPT)
    draft.run(DraftSteps(Sampling()), PROMPT[:, :1], chances)
    other = copy.deepcopy(draft)
    other.prefill(PROMPT)
    captures = stand_in["captures"]
    other.run(DraftSteps(Sampling()), PROMPT[:, :1], chances)
    assert stand_in["captures"] == captures


def test_what_was_handed_out_is_not_overwritten():
    cached = graphed()
    cached.prefill(PROMPT)
    first = cached.forward(PROMPT[:, :2])
    kept = first.clone()
    cached.forward(PROMPT[:, 2:4])
    assert torch.equal(first, kept)


def test_graph_caches_outlive_decodings_and_are_never_shared(stand_in):
    one = graphed()
    two = copy.deepcopy(one)
    one.prefill(PROMPT)
    two.prefill(PROMPT)
    assert one._backend._buffers is not two._backend._buffers
    a, b = one.forward(PROMPT[:, :1]), two.forward(PROMPT[:, :1])
    assert torch.equal(a, b)
    graph_caches, captures = {id(one._backend._buffers), id(two._backend._buffers)}, []
    for _ in range(2):
        for cached in (one, two):
            cached.prefill(PROMPT[:, :4])
            cached.forward(PROMPT[:, :1])
        assert {id(one._backend._buffers), id(two._backend._buffers)} == graph_caches, "free ones are taken again"
        captures.append(stand_in["captures"])
    assert captures[0] == captures[1], "and with them their graphs"


def test_a_graph_cache_comes_back_when_its_decoding_is_gone():
    cached = graphed()
    model = cached.exported
    cached.prefill(PROMPT)
    assert model.graph_caches == []
    del cached
    assert len(model.graph_caches) == 1


def test_a_graph_cache_that_is_too_short_is_left_for_a_longer_one():
    cached = graphed()
    long = torch.randint(0, VOCAB, (1, 120), generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        right = cached.model(input_ids=long, use_cache=False).logits
    cached.prefill(long[:, :9])
    for place in range(9, 117, 3):
        assert torch.allclose(cached.forward(long[:, place : place + 3]), right[:, place : place + 3], atol=1e-9)
    assert cached._backend._buffers.capacity >= 117
    assert cached.exported.graph_caches, "the short ones are free again"


def test_joined_weights_are_the_models_own():
    """No second copy on a GPU: the model's matrices become views, and it still computes what it did."""
    model = tiny("qwen2")  # with biases; float64 is never packed
    with torch.inference_mode():
        before = model(PROMPT, use_cache=False).logits
    with counted_kernels() as kernels:
        ExportedModel(model, graphed=True)
    with torch.inference_mode():
        assert torch.equal(model(PROMPT, use_cache=False).logits, before)
    attention = model.model.layers[0].self_attn
    storages = {getattr(attention, f"{name}_proj").weight.untyped_storage().data_ptr() for name in "qkv"}
    assert len(storages) == 1
    assert len({getattr(attention, f"{name}_proj").bias.untyped_storage().data_ptr() for name in "qkv"}) == 1
    assert kernels["aten.linear.default"] == 9, "two layers of four products, and the head"


def test_a_mask_that_is_off_by_one_would_be_seen(monkeypatch):
    """The tests above can fail."""
    honest = ExportedModel.forward

    def leaky(self, ids, positions, mask, keys, values):
        return honest(self, ids, positions, mask.roll(1, -1), keys, values)

    cached = graphed()
    cached.prefill(PROMPT)
    with torch.inference_mode():
        right = cached.model(torch.cat([PROMPT, PROMPT[:, :3]], 1), use_cache=False).logits[:, 9:]
    monkeypatch.setattr(ExportedModel, "forward", leaky)
    assert not torch.allclose(cached.forward(PROMPT[:, :3]), right, atol=1e-9)
