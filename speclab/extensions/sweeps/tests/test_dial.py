"""The dial: right as often as it is told to be, at the cost of a draft model or at none."""

import pytest
import scipy.stats
import torch

import compare
import optimized_speculative
from draft_models import ModelDrafter
from speclab.core.rounds import Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.registry import read
from speclab.extensions.sweeps.register import Dial
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem
from tests.contract import ENGINES, check
from tests.decoding import plain_text, speculative_rounds
from tests.tiny_models import VOCAB, on_engine, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
DIALS = {
    "dial": lambda model, on_engine: Dial(0.6, ModelDrafter(on_engine(perturbed(model, 0.12)))),
    "dial without a model": lambda model, on_engine: Dial(0.6),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", DIALS)
def test_a_dial_keeps_the_contract(kind, engine):
    """It decodes greedily alone."""
    check(DIALS[kind], engine, GREEDY, of_text=False)


@pytest.fixture
def target():
    return CachedModel(tiny("llama"))


def rounds_of(target, drafter, k: int, limit: int, sampling: Sampling = GREEDY) -> list[Round]:
    return list(speculative_rounds(target, drafter, PROMPT, k, limit, sampling))


def dialed(target: CachedModel, accuracy: float, k: int, limit: int, seed: int = 0) -> tuple[Dial, list[Round]]:
    """Decode with a dial over a draft model that knows nothing."""
    model = tiny("llama", seed=50, dtype=torch.float32)
    dial = Dial(accuracy, ModelDrafter(CachedModel(model, fast=on_engine("c", model))), seed)
    dial.take_text(plain_text(target, PROMPT, limit))
    return dial, rounds_of(target, dial, k, limit)


@pytest.mark.parametrize(("accuracy", "lengths"), [(1.0, [1] + [5] * 6), (0.0, [1] * 31), (0.6, None)])
def test_dial_at_1_is_always_right_and_at_0_always_wrong_at_the_cost_of_a_model(target, accuracy, lengths):
    """It is an instrument for acceptance at a fixed cost: one real pass per drafted token, and the prompt's."""
    dial, rounds = dialed(target, accuracy, 4, 31)
    [draft] = dial.models
    assert draft.can_chain
    assert draft.n_passes == 1 + sum(r.n_drafted for r in rounds)
    assert lengths is None or [len(r.tokens) for r in rounds] == lengths


def test_dial_acceptance_rate(target):
    """The first 350 tested proposals are right as often as 350 throws of a coin that shows heads with 0.6: tests of a
    round go on until the first wrong one, so these are independent throws. False alarm below 1e-6."""
    dial, text = Dial(0.6, seed=1), plain_text(target, PROMPT, 480)
    dial.take_text(text)
    rounds = rounds_of(target, dial, 4, 480)
    assert tokens_of(rounds) == text
    outcomes = [outcome for r in rounds for outcome in [1] * r.n_accepted + [0] * r.n_rejected][:350]
    law = scipy.stats.binom(len(outcomes), 0.6)
    assert len(outcomes) == 350
    assert law.ppf(5e-7) <= sum(outcomes) <= law.isf(5e-7)


def test_dial_is_repeatable_and_its_seed_matters(target):
    """Runs are compared pair by pair: the same seed throws the same dice, also for a second prompt and without a
    model."""
    dial, rounds = dialed(target, 0.5, 4, 30)
    assert dialed(target, 0.5, 4, 30)[1] == rounds == rounds_of(target, dial, 4, 30)
    assert dialed(target, 0.5, 4, 30, seed=1)[1] != rounds
    free = Dial(0.5)
    free.take_text(plain_text(target, PROMPT, 30))
    assert rounds_of(target, free, 4, 30) == rounds


def test_dial_refuses_what_is_no_probability_and_sampling(target):
    """A slip such as dial:80 must not be read as certainty; and it replays the greedy text."""
    for accuracy in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="0 … 1"):
            Dial(accuracy)
    with pytest.raises(UsageProblem, match="--temperature 0"):
        rounds_of(target, Dial(0.5), 3, 5, Sampling(temperature=0.7))


def test_dial_beyond_its_reference(target):
    """Behind the reference the draft model itself drafts, and a dial without one has nothing to say."""
    text, kinds = plain_text(target, PROMPT, 20), (Dial(0.0, ModelDrafter(CachedModel(target.model))), Dial(0.0))
    for dial in kinds:
        dial.take_text(text[:10])
        rounds = rounds_of(target, dial, 3, 20)
        assert tokens_of(rounds) == text
        assert [r.n_accepted for r in rounds[:10]] == [0] * 10
        assert (rounds[-2].n_drafted > 0) == bool(dial.models)


@pytest.mark.parametrize("script", [compare, optimized_speculative])
def test_a_dial_has_no_lengths_to_choose(script, pair_folder, capsys):
    words = ["--target", str(pair_folder / "target"), "--prompt", "x", "--engine", "eager"]
    assert script.main([*words, *["--draft", "dial:0.8:free", "-k", "auto"]]) == 2
    assert "and dial:0.8:free replays the text; give -k a number" in capsys.readouterr().err
    assert read("dial:0.5:free").name == "dial:0.5:free"
