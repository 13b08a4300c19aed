"""What every draft must do, done by early exit: its laws, overflows."""

import functools

import pytest
import torch

from speclab.core.sampling import Sampling
from speclab.extensions.exits.early_exit import ExitDrafter
from speclab.extensions.exits.tests.adapters import tiny_adapter
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem
from tests import contract
from tests import test_filtered_laws as filtered_laws
from tests.decoding import speculative_rounds
from tests.drafts import test_overflows as overflows
from tests.heads import in_format, prompts, target_states
from tests.test_filtered_laws import Case, Text, models, of_head
from tests.tiny_models import on_engine, tiny


@pytest.mark.parametrize("sampling", contract.SAMPLINGS, ids=str)
def test_the_contract_of_a_draft(sampling):
    make = lambda model, on_engine: ExitDrafter(tiny_adapter(model, 1))  # noqa: E731
    contract.check(make, "c", sampling, layers=(0,), of_text=False)


@functools.cache
def adapter():
    return tiny_adapter(models()[0], 1, seed=1, std=0.15)


@functools.cache
def exit_logits(committed: Text, drafted: Text) -> list[float]:
    text = [*committed, *drafted]
    with torch.inference_mode():
        return adapter().text_logits(target_states(models()[0], text, adapter().config.layers))[0, -1].tolist()


def test_a_round_leaves_the_targets_law(monkeypatch):
    in_float32 = lambda: ExitDrafter(in_format(adapter(), torch.float32))  # noqa: E731
    monkeypatch.setitem(filtered_laws.CASES, "exit", Case(in_float32, 3, 3, of_head(exit_logits)))
    filtered_laws.test_a_round_leaves_the_targets_law("exit on c", monkeypatch)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logits_that_are_not_finite_are_named(temperature):
    model = tiny("llama", dtype=torch.float32)
    adapter = tiny_adapter(model)
    torch.nn.init.constant_(adapter.norm.weight, 3e38)
    target = CachedModel(model, fast=on_engine("c", model))
    target.hidden_layers = (0,)
    with pytest.raises(EnvironmentProblem, match=overflows.NOT_FINITE):
        list(speculative_rounds(target, ExitDrafter(adapter), prompts(1), 3, 30, Sampling(temperature), seed=1))
