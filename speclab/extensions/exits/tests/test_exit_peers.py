"""Early exit beside the library's own, in the benchmark against it."""

import pytest

from benchmarks.peers import __main__ as peers
from speclab.extensions.exits.early_exit import ExitDrafter
from speclab.extensions.exits.tests.adapters import tiny_adapter
from tests.benchmarks.test_benchmarks import bench, check_arms  # noqa: F401 - a fixture


@pytest.mark.full
def test_all_arms_emit_the_same_text_and_count_their_passes(bench, prompt):  # noqa: F811
    model = bench.setup.target.model
    bench.drafters["exit"] = ExitDrafter(tiny_adapter(model).to(model.dtype))
    bench.setup.target.hidden_layers = (0,)
    check_arms(bench, prompt, peers.arms_for([2], bench.drafters))
