"""The union of chosen experts and what it costs, against enumeration and by hand."""

import itertools

import pytest
import torch

from benchmarks import experts
from benchmarks.experts import Bytes, bytes_ratio, expected_union, pass_seconds
from speclab.records import files
from tests.benchmarks.test_benchmarks import call  # noqa: F401 - a fixture


@pytest.mark.parametrize(("n", "k", "m"), [(4, 1, 3), (4, 2, 2), (5, 2, 3), (3, 3, 2), (6, 2, 1)])
def test_the_expected_union_is_the_mean_over_all_choices(n, k, m):
    sets = list(itertools.combinations(range(n), k))
    sizes = [len(set().union(*chosen)) for chosen in itertools.product(sets, repeat=m)]
    assert expected_union(n, k, m) == pytest.approx(sum(sizes) / len(sizes), rel=1e-12)


def test_published_factors():
    """Mixtral, 8 experts of which 2: 3.05 times as many at 5 tokens; 256 of which 8: 4.7 times."""
    assert expected_union(8, 2, 5) / 2 == pytest.approx(3.05, abs=0.005)
    assert expected_union(256, 8, 5) / 8 == pytest.approx(4.7, abs=0.01)


def test_bytes_by_hand():
    read = Bytes(mlps=100, others=50, places=10)
    assert bytes_ratio(read, 2, 2) == 1
    assert bytes_ratio(read, 2, 6) == pytest.approx((60 + 600) / (60 + 200))
    assert bytes_ratio(Bytes(0, 50, 10), 2, 6) == 1, "without MLPs nothing grows"


def test_a_pass_is_made_of_passes_without_experts():
    read = Bytes(mlps=60, others=30, places=10)
    widths, dense = [1, 2, 4], [1.0, 1.0, 2.0]
    assert pass_seconds(widths, dense, read, 1, 1, 1) == pytest.approx(1.0)
    assert pass_seconds(widths, dense, read, 2, 2, 1) == pytest.approx(0.4 + 2 * 0.6)
    # 4 tokens, 2 experts each, all 4 of them: 2 tokens for each; the rest is a pass over 4
    assert pass_seconds(widths, dense, read, 2, 4, 4) == pytest.approx(0.4 * 2.0 + 4 * 0.6 * 1.0)
    # the same two experts for all: 4 tokens for each
    assert pass_seconds(widths, dense, read, 2, 2, 4) == pytest.approx(0.4 * 2.0 + 2 * 0.6 * 2.0)


@pytest.mark.full
def test_experts_end_to_end(call, tmp_path):  # noqa: F811
    """On the lab's own target, the smallest size there is."""
    words = ["--target", "lab:10.2m:e4k2", "--widths", "3", "--n-texts", "2", "--repeats", "2", "--context", "40"]
    code, out, _ = call(experts, *words)
    assert code == 0
    run = files.read(tmp_path / "results" / "local-experts.json", experts.ExpertsRun)
    assert [p.width for p in run.passes] == [1, 3]
    assert (run.n_experts, run.n_used, run.n_texts, run.n_same) == (4, 2, 2, 2)
    assert run.passes[0].union == run.passes[0].scattered == run.passes[0].expected == 2
    assert 2 < run.passes[1].union <= 4
    assert 2 < run.passes[1].scattered <= 4
    assert all(min(p.seconds, p.dense_seconds, p.predicted) > 0 for p in run.passes)
    assert "same with experts and without: 2 of 2" in out
    for target in ("lab:200m", "models/lab-pair/target"):
        code, _, err = call(experts, "--target", target)
        assert code == 2
        assert "give one such as lab:200m:e8k2" in err
    code, _, err = call(experts, "--target", "lab:10.2m:e4k2", "--context", "4090")
    assert code == 2
    assert err.startswith("error: --context 4090 and a pass over 9 do not fit")
    assert err.endswith("use --context 4087 or less\n")


def test_unions_of_experts_are_counted():
    """Two layers; side by side the tokens agree, and nowhere else."""
    chosen = [torch.tensor([[0, 1], [0, 1], [2, 3], [2, 3]]), torch.tensor([[4, 5], [5, 4], [6, 7], [6, 0]])]
    assert experts.counted_union(chosen, torch.arange(0, 2)) == 2
    assert experts.counted_union(chosen, torch.arange(2, 4)) == 2.5
    pairs = [2, 4, 4, 4, 4, 2, 2, 4, 4, 4, 4, 3]  # of the first layer, then of the second one
    assert experts.scattered_union(chosen, 2) == pytest.approx(sum(pairs) / 12, abs=0.15)
    assert experts.scattered_union(chosen, 4) == 4.5
