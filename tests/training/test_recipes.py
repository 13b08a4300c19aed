"""The loss that heads learn by, their scores, and the flags of a training."""

import math

import pytest
import torch

from speclab.drafts.feature import FeatureDrafter
from speclab.models.cached import CachedModel
from tests.decoding import speculative_rounds
from tests.heads import N_NEW, trained
from training.heads import main
from training.recipes import CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE, Likely, distance, likely
from training.scoring import agreement, known, score


def test_a_score_replays_the_rounds_of_the_loop():
    """Tokens per round by teacher forcing are those that the loop counts, round for round."""
    model, head, texts = trained()
    check_score(model, head, texts, FeatureDrafter(head))


def check_score(model, head, texts, drafter):
    target = CachedModel(model)
    target.hidden_layers = head.config.layers
    pairs = [known(model, text[None], 9, head.config.layers) for text in texts]
    scores = score(head, pairs, depth=4)
    end = len(agreement(head, pairs[0], 4))
    for k in (2, 4):
        rounds, accepted = 0, 0
        for text in texts:
            made = 1
            for round_ in list(speculative_rounds(target, drafter, text[None, :9], k, N_NEW))[1:]:
                if made < end:
                    rounds, accepted = rounds + 1, accepted + round_.n_accepted
                made += len(round_.tokens)
        assert scores["tokens_per_round"][k] == round(1 + accepted / rounds, 3)
    assert len(scores["by_position"]) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("feature --exit-layer 2", "unrecognized arguments: --exit-layer 2"),
        ("target --target x", "unrecognized arguments: --target x"),
        ("pair", "invalid choice: 'pair' (choose from"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(words, message, capsys, tmp_path):
    assert main([*words.split(), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()[-1:]
    assert line.startswith("error: ")
    assert message in line


def test_the_loss_of_two_laws_by_hand():
    """p = (4/5, 1/5) and q = (2/5, 3/5). At 1/4 of the temperature weights are fourth powers."""
    p, q = torch.tensor([[[0.8, 0.2]]]).log(), torch.tensor([[[0.4, 0.6]]]).log()
    cross_entropy = -0.8 * math.log(0.4) - 0.2 * math.log(0.6)
    cold = 0.8**4 / (0.8**4 + 0.2**4) - 0.4**4 / (0.4**4 + 0.6**4)
    assert (CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE) == (0.2, 0.25)
    assert distance(likely(p), q).item() == pytest.approx(0.2 * cross_entropy + 0.4 + cold, abs=1e-5)
    entropy = -0.8 * math.log(0.8) - 0.2 * math.log(0.2)
    assert distance(likely(p), p + 3).item() == pytest.approx(0.2 * entropy, abs=1e-5)


def test_a_token_that_a_draft_cannot_propose_counts_as_rejected():
    """p = (4/5, 1/5), and the draft proposes the second one alone, always."""
    target = Likely(torch.tensor([[[0.8, 0.2]]]), torch.tensor([[[-1, 0]]]))
    cold = 0.2**4 / (0.8**4 + 0.2**4)
    assert distance(target, torch.tensor([[[3.0]]])).item() == pytest.approx((1 - 0.2) + (1 - cold), abs=1e-5)


def test_a_draft_that_agrees_nowhere_still_learns():
    target, draft = torch.tensor([[[200.0, 0.0]]]), torch.tensor([[[0.0, 200.0]]], requires_grad=True)
    with torch.enable_grad():
        distance(likely(target), draft).backward()
    assert draft.grad[0, 0, 0] < -0.1 < 0.1 < draft.grad[0, 0, 1]
