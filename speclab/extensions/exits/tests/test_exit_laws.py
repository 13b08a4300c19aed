"""What every draft must do, done by early exit: its laws, one wait, overflows."""

import functools

import pytest
import torch

from benchmarks.peers import __main__ as peers
from speclab.core.sampling import Sampling
from speclab.extensions.exits.early_exit import ExitDrafter
from speclab.extensions.exits.tests.adapters import tiny_adapter
from speclab.models.cached import CachedModel
from tests import contract
from tests import test_filtered_laws as filtered_laws
from tests.benchmarks.test_benchmarks import bench, check_arms  # noqa: F401 - a fixture
from tests.core.test_one_wait import check_waits
from tests.drafts import test_overflows as overflows
from tests.heads import target_states
from tests.test_filtered_laws import Case, Text, models, of_head
from tests.tiny_models import tiny


@pytest.mark.parametrize(("engine", "sampling"), contract.WAYS, ids=str)
def test_the_contract_of_a_draft(engine, sampling):
    contract.check(lambda model, on_engine: ExitDrafter(tiny_adapter(model, 1)), engine, sampling, layers=(0,))


@functools.cache
def adapter():
    return tiny_adapter(models()[0], 1, seed=1, std=0.15)


@functools.cache
def exit_logits(committed: Text, drafted: Text) -> list[float]:
    text = [*committed, *drafted]
    with torch.inference_mode():
        return adapter().text_logits(target_states(models()[0], text, adapter().config.layers))[0, -1].tolist()


def test_a_round_leaves_the_targets_law(monkeypatch):
    made = Case(lambda: ExitDrafter(adapter()), 3, 3, of_head(exit_logits))
    monkeypatch.setitem(filtered_laws.CASES, "exit", made)
    filtered_laws.test_a_round_leaves_the_targets_law("exit", monkeypatch)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_round_of_early_exit_waits_once(temperature):
    """On the eager engine: CUDA graphs do not run a target in two parts."""
    target = CachedModel(tiny("llama"))
    target.hidden_layers = (0,)
    check_waits(target, ExitDrafter(tiny_adapter(target.model, 1)), Sampling(temperature), "token")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_not_finite_are_named(temperature):
    model = tiny("llama", num_hidden_layers=3)
    drafter = ExitDrafter(overflows.overflowing(tiny_adapter(model, 2)))
    overflows.check_it_is_said(model, drafter, temperature)


@pytest.mark.full
def test_all_arms_emit_the_same_text_and_count_their_passes(bench, prompt):  # noqa: F811
    """Beside the library's own early exit."""
    model = bench.setup.target.model
    bench.drafters["exit"] = ExitDrafter(tiny_adapter(model).to(model.dtype))
    bench.setup.target.hidden_layers = (0,)
    check_arms(bench, prompt, peers.arms_for([2], bench.drafters))
