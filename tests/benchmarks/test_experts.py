"""Mixtures of experts that say what one MLP says; the union of chosen experts and what it costs, against enumeration
and by hand."""

import itertools

import pytest
import torch

from benchmarks import experts
from benchmarks.experts import Bytes, bytes_ratio, count_added, expected_union, pass_seconds, with_experts
from speclab.models.cached import CachedModel
from speclab.models.checking.checks import check_model
from speclab.records import files
from tests.benchmarks.test_benchmarks import call  # noqa: F401 - a fixture
from tests.llamas import VOCAB, tiny_llama


def text(n: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (1, n), generator=torch.Generator().manual_seed(5))


def mixed_llama(n: int, n_used: int):
    return with_experts(tiny_llama(0, n_layers=2, dtype=torch.float32), n, n_used)


@pytest.mark.parametrize(("n", "n_used", "tied"), [(2, 1, True), (4, 2, False), (3, 3, True)])
def test_logits_stay_and_every_copy_is_there(n, n_used, tied):
    model = tiny_llama(0, n_layers=2, dtype=torch.float32)
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone() * 1.1)
    with torch.inference_mode():
        expected = model(text(12)).logits
    n_before, added = sum(p.numel() for p in model.parameters()), count_added(model, n)
    mixed = with_experts(model, n, n_used)
    check_model(mixed)
    assert sum(p.numel() for p in mixed.parameters()) == n_before + added
    with torch.inference_mode():
        assert (mixed(text(12)).logits - expected).abs().max() < 1e-4
        for layer in mixed.model.layers:
            copies = layer.mlp.experts.down_proj
            assert copies.is_contiguous(), "the copies would be one and the same memory"
            assert (copies == copies[:1]).all()
            copies.mul_(torch.arange(1.0, n + 1)[:, None, None])
        assert n == n_used or (mixed(text(12)).logits - expected).abs().max() > 1e-3, "what stands in them is used"


def test_unions_are_counted_behind_the_context():
    """Against a count by hand, from the router's own products."""
    model, ids, context = CachedModel(mixed_llama(8, 2)), text(15), 6
    inputs = []
    gates = [layer.mlp.gate for layer in model.model.model.layers]
    hooks = [g.register_forward_hook(lambda module, given, result: inputs.append((module, given[0]))) for g in gates]
    with torch.inference_mode():
        model.model(ids)
        chosen = experts.chosen_experts(model, ids, 2)
    for hook in hooks:
        hook.remove()
    for width in (1, 3, 9):
        expected = []
        for gate, given in inputs[:2]:
            scores = given.reshape(-1, given.shape[-1]) @ gate.weight.T
            expected.append(len({int(i) for row in scores[context : context + width] for i in row.topk(2).indices}))
        assert experts.counted_union(chosen, torch.arange(context, context + width)) == sum(expected) / 2


@pytest.mark.parametrize(("n", "k", "m"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2), (6, 2, 1)])
def test_the_expected_union_is_the_mean_over_all_choices(n, k, m):
    sets = list(itertools.combinations(range(n), k))
    sizes = [len(set().union(*chosen)) for chosen in itertools.product(sets, repeat=m)]
    assert expected_union(n, k, m) == pytest.approx(sum(sizes) / len(sizes), rel=1e-12)


def test_bytes_are_the_weights_and_their_ratio_is_that_of_the_union():
    model = tiny_llama(0, n_layers=2, dtype=torch.float32)
    read, config = experts.read_bytes(CachedModel(model), context=10), model.config
    table = 0 if config.tie_word_embeddings else model.model.embed_tokens.weight.numel()
    assert read.mlps + read.others == 4 * (sum(p.numel() for p in model.parameters()) - table)
    assert read.places == 10 * 2 * 2 * config.num_key_value_heads * config.head_dim * 4
    read = Bytes(mlps=100, others=50, places=10)
    assert bytes_ratio(read, 2, 2) == 1
    assert bytes_ratio(read, 2, 6) == pytest.approx((60 + 600) / (60 + 200))


def test_a_pass_is_made_of_passes_without_experts():
    read = Bytes(mlps=60, others=30, places=10)
    widths, dense = [1, 2, 4], [1.0, 1.0, 2.0]
    assert pass_seconds(widths, dense, read, 1, 1, 1) == pytest.approx(1.0)
    assert pass_seconds(widths, dense, read, 2, 2, 1) == pytest.approx(0.4 + 2 * 0.6)
    # 4 tokens, 2 experts each, all 4 of them: 2 tokens for each; the rest is a pass over 4
    assert pass_seconds(widths, dense, read, 2, 4, 4) == pytest.approx(0.4 * 2.0 + 4 * 0.6 * 1.0)


@pytest.mark.full
def test_experts_end_to_end(call, tmp_path):  # noqa: F811
    """On the lab's own target, the smallest size there is."""
    words = ["--target", "lab:20m:e4k2", "--widths", "3", "--n-texts", "2", "--repeats", "2", "--context", "40"]
    code, out, _ = call(experts, *words)
    assert code == 0
    run = files.read(tmp_path / "results" / "local-experts.json", experts.ExpertsRun)
    assert [p.width for p in run.passes] == [1, 3]
    assert (run.n_experts, run.n_used, run.n_texts, run.n_same) == (4, 2, 2, 2)
    assert run.passes[0].union == run.passes[0].expected == 2
    assert 2 < run.passes[1].union <= 4
    assert all(min(p.seconds, p.dense_seconds, p.predicted) > 0 for p in run.passes)
    assert "same with experts and without: 2 of 2" in out
    for target, more, says in (
        ("lab:200m", [], "give one such as lab:200m:e8k2"),
        ("lab:20m:e4k2", ["--context", "4090"], "--context 4090 and a pass over 9 do not fit"),
    ):
        code, _, err = call(experts, "--target", target, *more)
        assert (code, says in err) == (2, True)
