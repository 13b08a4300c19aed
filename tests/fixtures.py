"""What the tests share: tiny random-weight models and a seeded prompt. No network, one thread."""

import math
import os
from dataclasses import replace
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
import pytest
import torch
from hypothesis import settings

from speclab.models import memory
from speclab.present import pictures
from speclab.system import startup
from speclab.theory import attribution
from tests.llamas import VOCAB, tiny_llama
from training.pair import train_tokenizer

CACHE = Path(__file__).parents[1] / "build" / "test-cache"  # pass.c is compiled once for all runs of the tests
CACHE.mkdir(mode=0o700, parents=True, exist_ok=True)
os.environ["SPECLAB_CACHE"] = str(CACHE)
# The same examples in every run, and no deadline: a slow machine must not fail a test.
settings.register_profile("lab", deadline=None, derandomize=True, database=None)
settings.load_profile("lab")
torch.set_num_threads(1)  # the models are tiny: more threads only add noise and time


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """A test that makes a model without a seed of its own gets the same weights in every run and every order."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch) -> None:
    """No test depends on what else runs here; none waits for large blocks or fine pictures."""
    monkeypatch.setattr(attribution, "FURTHEST", math.inf)
    monkeypatch.setattr(memory, "LARGE", 2**20)
    monkeypatch.setattr(pictures, "DPI", 40)
    monkeypatch.setattr(startup, "LOAD", 0.0)


@pytest.fixture
def prompt() -> torch.Tensor:
    """(1, 7) ids"""
    return torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory) -> Path:
    """A folder with a tiny random pair, `target` and `draft`, and their tokenizer, as save_pretrained writes them."""
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = train_tokenizer(iter(["def f(x):\n    return x + 1\n" * 3, "class A:\n    pass\n"]))
    for role, seed in (("target", 0), ("draft", 1)):
        model = tiny_llama(seed, n_layers=2, vocab_size=len(tokenizer), dtype=torch.float32)
        model.config.eos_token_id = model.generation_config.eos_token_id = 0
        model.save_pretrained(folder / role)
        tokenizer.save_pretrained(folder / role)
    return folder


@pytest.fixture
def forgetful(monkeypatch) -> None:
    """A decoder that gets the first token of every round wrong."""
    from speclab.cli import compare  # here: most tests do not need it

    honest = compare.SPECULATIVE.decode

    def decode(*args, **kwargs):
        for round_ in honest(*args, **kwargs):
            if not round_.prefill:
                round_.tokens[0] = (round_.tokens[0] + 1) % 64
            yield round_

    monkeypatch.setattr(compare, "SPECULATIVE", replace(compare.SPECULATIVE, decode=decode))
