"""The union of chosen experts and what it costs, against enumeration and by hand."""

import itertools
from collections import Counter

import pytest
import torch

from benchmarks import experts
from speclab.present.tables import show
from speclab.records import files


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(experts, "WIDTH", 32)
    monkeypatch.setattr(experts, "UNITS", 16)


def test_experts_are_counted_as_a_pass_reads_them():
    model, ids, read = experts.mixtral(8, 2, 3, 50, 20), torch.arange(20)[None] % 7, []
    chosen = experts.chosen_experts(model, ids)
    for layer in model.model.layers:
        layer.mlp.experts.register_forward_pre_hook(lambda module, given: read.append(given[1]))
    with torch.inference_mode():
        model(ids)
    for m in (1, 3, 9):
        by_hand = [Counter(int(i) for token in layer[-m:] for i in token) for layer in read]
        assert list(map(sorted, experts.loads_of(chosen[:, -m:]))) == [sorted(load.values()) for load in by_hand]


@pytest.mark.parametrize(("n", "k", "m"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2), (6, 2, 1)])
def test_the_expected_union_is_the_mean_over_all_choices(n, k, m):
    sets = list(itertools.combinations(range(n), k))
    sizes = [len(set().union(*chosen)) for chosen in itertools.product(sets, repeat=m)]
    assert experts.expected_union(n, k, m) == pytest.approx(sum(sizes) / len(sizes), rel=1e-12)


# All tokens use one expert, then two; then 4 tokens use 2 each, in one layer 4 experts, in another one 5.
LOADS = [([[2]], 2, 2.0), ([[2, 2]], 2, 3.5), ([[2, 2, 2, 2], [1, 1, 1, 1, 4]], 4, 1.0 + (4 * 1.5 + 4 * 1.0 + 2.0) / 2)]


@pytest.mark.parametrize(("loads", "m", "seconds"), LOADS)
def test_a_pass_is_made_of_passes_with_one_expert_and_with_two(loads, m, seconds):
    assert experts.predict([1, 2, 4], [1.0, 2.0, 3.0], [2.0, 3.5, 5.0], loads, m) == pytest.approx(seconds)


def test_experts_end_to_end(tmp_path, capsys):
    code = experts.main(["--quick", "--experts", "4", "--widths", "3", "--threads", "1", "--out-dir", str(tmp_path)])
    run = files.read(tmp_path / "results" / "local-experts.json", experts.ExpertsRun)
    assert (code, capsys.readouterr().out) == (0, show(experts.page(run)))
    one, three = run.passes
    assert (one.width, three.width, one.union, one.expected) == (1, 3, 2, 2)
    assert run.expert_bytes == 4 * 2 * 3 * 32 * 16, "3 matrices in 2 layers"
    table = run.parameters * 4 - run.other_bytes - 4 * run.expert_bytes  # embeddings, which are looked up
    assert run.other_bytes == 4 * (2 * (4 * 32 + 4 * 32 * 32 + 2 * 32) + 32) + table, (
        "routers, attention, norms, output"
    )
    cache = (128 + 3) * 4 * 2 * 2 * 32
    assert three.bytes == pytest.approx(three.union * run.expert_bytes + run.other_bytes + cache, rel=1e-6)
