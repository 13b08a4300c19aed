"""What holds of every draft holds of blocks: contract, laws, one wait in a round, lengths, overflows, scripts."""

import functools

import pytest
import torch

from speclab import load
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts.lengths import LONGEST, AutoLength
from speclab.extensions.blocks import recipe
from speclab.extensions.blocks.block_drafter import BlockDrafter
from speclab.extensions.blocks.files import read_block
from speclab.extensions.blocks.head import BlockHead
from speclab.extensions.blocks.recipe import write_block
from speclab.extensions.blocks.tests.block_heads import block_rows, tiny_block_head, trained_block
from speclab.lab.bench import SPECULATIVE
from speclab.lab.round_costs import measure_costs
from speclab.models.cached import CachedModel
from tests import contract, test_filtered_laws
from tests.core.test_one_wait import PROMPT, check_waits
from tests.drafts.test_overflows import WAYS, check_it_is_said, overflowing
from tests.heads import in_format, target_states
from tests.recorder import graphed, stand_in
from tests.rules import RULES
from tests.test_filtered_laws import Case, assert_lossless, models, of_head
from tests.tiny_models import DTYPE_ON, tiny
from tests.training.test_heads import check_training, target  # noqa: F401 - a fixture


@pytest.mark.parametrize(("engine", "sampling"), contract.WAYS, ids=contract.id_of)
def test_the_draft_keeps_the_contract(engine, sampling):
    def make(model, _):
        return BlockDrafter(in_format(trained_block(markov_rank=3)[1], model.dtype))

    contract.check(make, engine, sampling, layers=(0, 1))


@functools.cache
def lawful() -> BlockHead:
    return tiny_block_head(models()[0], markov_rank=4, std=0.4)


@functools.cache
def block_logits(committed, drafted):
    states = target_states(models()[0], list(committed), (0, 1))
    with torch.inference_mode():
        return block_rows(lawful(), states, list(committed), [*drafted, 0])[-1].tolist()


@pytest.mark.parametrize("engine", DTYPE_ON)
def test_a_round_leaves_the_targets_law(engine, monkeypatch):
    monkeypatch.setattr(test_filtered_laws, "ENGINE", engine)
    case = Case(lambda: BlockDrafter(in_format(lawful(), DTYPE_ON[engine])), 2, 2, of_head(block_logits))
    assert_lossless(case, "token", monkeypatch)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_round_waits_once(temperature, rule, monkeypatch):
    stand_in(monkeypatch)
    cached = graphed()
    cached.hidden_layers = (0, 1)
    drafter = BlockDrafter(tiny_block_head(cached.model, markov_rank=5))
    check_waits(cached, drafter, Sampling(temperature), rule)


def test_costs_of_drafts_end_with_the_slots():
    """Those of everything else do not: a lookup beside it may be longer."""
    model = tiny("llama", dtype=torch.float64)
    cached = CachedModel(model)
    cached.hidden_layers = (0, 1)
    auto = AutoLength(BlockDrafter(tiny_block_head(model, slots=4)))
    measure_costs(SPECULATIVE, cached, auto, [PROMPT], DecodeSettings(40))
    costs = auto.costs[0.0]
    assert costs.longest == auto.drafter.longest_draft == len(costs.draft) - 1
    assert len(costs.rest) == LONGEST + 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_drafting_says_that_logits_are_not_finite(way, temperature):
    model = tiny("llama", num_hidden_layers=3)
    drafter = BlockDrafter(overflowing(tiny_block_head(model, markov_rank=3)))
    check_it_is_said(model, WAYS[way](drafter), temperature)


@pytest.mark.parametrize("slots", [1, 12])
def test_a_head_is_trained_written_and_goes_on(target, tmp_path, slots, monkeypatch):  # noqa: F811
    monkeypatch.setattr(recipe, "SLOTS", slots)
    check_training("block", read_block, target, tmp_path)


def test_the_scripts_decode_with_it(pair_folder, tmp_path, monkeypatch, capsys):
    model = load(str(pair_folder / "target"), str(pair_folder / "draft"), engine="eager").setup.target.model
    write_block(tmp_path / "block", tiny_block_head(model, markov_rank=3).float(), "tiny", ["LlamaForCausalLM"])
    draft = f"block:{tmp_path / 'block'}"
    run = contract.check_scripts(pair_folder, tmp_path / "out", draft, "block:block", monkeypatch, capsys)
    assert run.models["block:block"].startswith("block:block: 2 layers over the target's states")
