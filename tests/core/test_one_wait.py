"""One wait for the device in a round. A stand-in watches every call that would block on a GPU; tests/test_cuda.py asks
PyTorch itself."""

import pytest
import torch

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter, NgramDrafter
from speclab.core import sampling as sampling_module
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.lab.instruments import ConstantDrafter
from speclab.models.cached import CachedModel
from tests.decoding import speculative_rounds
from tests.heads import tiny_head
from tests.recorder import graphed, stand_in
from tests.rules import RULES
from tests.tiny_models import VOCAB
from tests.watch import Watch

PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def recorder(monkeypatch):
    return stand_in(monkeypatch)


def drafter_of(kind: str, target: CachedModel):
    if kind == "feature":
        target.hidden_layers = (0, 1)
        return FeatureDrafter(tiny_head())
    made = {"model": lambda: ModelDrafter(graphed(noise=0.1)), "ngram": NgramDrafter, "constant": ConstantDrafter}
    return made[kind]()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ["model", "feature", "ngram", "constant"])
def test_a_round_waits_once(kind, temperature, rule):
    target = graphed()
    check_waits(target, drafter_of(kind, target), Sampling(temperature), rule)


def check_waits(target, drafter, sampling, rule):
    rounds = iter(speculative_rounds(target, drafter, PROMPT, 4, 30, sampling, accept=RULES[rule]))
    next(rounds)
    for _ in range(4):
        with Watch() as watch:
            round_ = next(rounds)
        assert watch.calls == {"tolist": 1}
    assert round_.tokens


def test_a_chunk_of_the_baseline_waits_once():
    rounds = autoregressive_decode(graphed(), PROMPT, DecodeSettings(33), chunk=16)
    next(rounds)
    with Watch() as watch:
        assert len(next(rounds).tokens) == 16
    assert watch.calls == {"tolist": 1}


def test_a_second_wait_would_be_seen(monkeypatch):
    """The tests above can fail."""
    right = sampling_module.most_probable
    monkeypatch.setattr(sampling_module, "most_probable", lambda logits: right(logits) if logits.any() else None)
    rounds = autoregressive_decode(graphed(), PROMPT, DecodeSettings(9))
    next(rounds)
    with Watch() as watch:
        next(rounds)
    assert watch.calls == {"tolist": 1, "__bool__": 1}
