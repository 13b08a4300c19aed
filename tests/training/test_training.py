"""The training of a small model: what it reads, that it learns, and the target of the lab's pair."""

import functools
import json
import subprocess

import pytest
import torch

from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.files import ROOT
from tests.conftest import tiny_llama
from tests.tiny_models import tiny
from training import corpus, heads, pair, steps, texts
from training.corpus import Document


def test_corpus_is_the_standard_library_without_tests():
    found = list(corpus.standard_library())
    names = {d.name for d in found}
    assert {"json/decoder.py", "textwrap.py", "asyncio/base_events.py"} <= names
    assert not any("site-packages" in n or n.startswith(("test/", "encodings/")) or "/tests/" in n for n in names)
    assert 0.01 < sum(d.held_out for d in found) / len(found) < 0.10


def test_tokenizer_round_trip_and_end_token():
    tokenizer = pair.train_tokenizer(iter(["def f():\n    return 'é東'\n"]))
    text = "class Ω:\n\tpass  # \x00 anything at all 🙂\n"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.eos_token_id == 0
    stream = texts.encode(tokenizer, ["a", "b"])
    assert (stream == 0).sum() == 2


def test_crops_are_a_function_of_seed_and_step():
    stream = torch.arange(10_000)
    first = steps.crops(stream, 3, 0, 4096)
    assert all(torch.equal(a, b) for a, b in zip(first, steps.crops(stream, 3, 0, 4096), strict=True))
    lengths = {steps.crops(stream, step, 0, 4096)[0].shape[1] for step in range(60)}
    assert lengths == set(steps.LENGTHS)
    for rows in first:
        assert torch.equal(rows[:, 1:], rows[:, :-1] + 1), "a crop must be contiguous text"


def test_a_training_learns_and_says_how_far_it_is(monkeypatch):
    """By a clock that ticks when it is read. A loss that is not finite ends it."""
    monkeypatch.setattr(steps.time, "monotonic", iter(range(10_000)).__next__)
    model, told = tiny_llama(0, dtype=torch.float32), []
    tokens = torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(0))
    loss = functools.partial(steps.next_token_loss, model)
    how = {"seconds": 20, "rate": 1e-2, "name": "test", "after": lambda facts: told.append(facts.steps)}
    facts = steps.train(model, lambda step: [(tokens,)], loss, **how)
    assert told == list(range(1, facts.steps + 1))
    assert facts.tokens == 64 * facts.steps
    assert facts.last_loss < facts.first_loss
    with pytest.raises(EnvironmentProblem, match="the loss is not finite at step 0"):
        steps.train(model, lambda step: [(tokens,)], lambda tokens: loss(tokens) * float("nan"), **how)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_tables_with_a_row_for_each_id_have_no_muon(family):
    model = tiny(family)
    muon, adam = ({id(w) for part in one.param_groups for w in part["params"]} for one in steps.optimizers(model, 1e-3))
    tables = {id(part.weight) for part in model.modules() if isinstance(part, torch.nn.Embedding)}
    assert tables <= adam
    assert {id(w) for w in model.parameters()} == muon | adam
    assert not muon & adam


@pytest.mark.parametrize("shape", [(8, 8), (12, 6), (6, 12)])
def test_matrices_take_the_steps_of_pytorchs_muon(shape):
    """Up to the rounding of its products, which are in bfloat16."""
    start, grads = torch.randn(shape), torch.randn(3, *shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    usual = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    for stepper, weight in ((steps.Muon([ours], 0.01), ours), (usual, theirs)):
        for grad in grads:
            weight.grad = grad.clone()
            stepper.step()
    assert (ours - theirs).norm() < 0.02 * (ours - start).norm()


def test_a_target_that_no_head_is_trained_for_is_refused():
    """Before it has written for ten minutes."""
    reason = "rows of 256 tokens are learned from, and the target's context is 128"
    with pytest.raises(UsageProblem, match=reason):
        heads.check_target(tiny("gpt2", n_positions=128))


def test_models_and_the_tracked_tree_stay_small():
    """Every version of a weight stays in the history for ever."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("no git clone")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    sizes = {path: path.stat().st_size for path in paths if path.is_file()}
    assert sum(size for path, size in sizes.items() if (ROOT / "models") in path.parents) <= 45e6
    assert sum(sizes.values()) <= 58e6


def test_a_target_is_trained_and_written(tmp_path, monkeypatch, capsys):
    """Its facts stand in training.json, also where they cannot be printed."""
    text = "def f(x):\n    return x + 1\n" * 400
    monkeypatch.setattr(corpus, "standard_library", lambda: [Document(f"{i}.py", text) for i in range(40)])
    monkeypatch.setattr(pair, "SHAPE", {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64})

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heads, "say", full)
    assert heads.main(["target", "--minutes", "0.0001", "--out", str(tmp_path)]) == 3
    assert "No space left on device" in capsys.readouterr().err
    about = json.loads((tmp_path / "training.json").read_text())
    assert about["steps"] == 1
    assert 0 < about["held_out_loss"] < 8
    assert {"model.safetensors", "tokenizer.json"} <= {file.name for file in tmp_path.iterdir()}
