"""What a block head starts from, and which of its weights learn how."""

import functools
import json
import math

import pytest
import torch

from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.models import loading
from speclab.models.cached import CachedModel
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.decoding import speculative_rounds
from tests.heads import N_NEW, read, tiny_block_head, trained, trained_block
from tests.tiny_models import VOCAB, tiny
from training import heads
from training.heads import main, parse
from training.kinds import (
    LAYERS,
    MARKOV_RANK,
    block_loss,
    fresh_block,
    unused_id,
)
from training.recipes import CROSS_ENTROPY_WEIGHT, LOW_TEMPERATURE, Likely, distance, likely
from training.scoring import agreement, known, score
from training.steps import optimizers


def test_a_fresh_head_shares_what_it_does_not_learn():
    """Embedding and output layer are the target's own memory, whatever is learnt; the bias by the token before is 0."""
    target = tiny("llama", dtype=torch.float32).requires_grad_(False)
    head = fresh_block(target, Words(), parse(["block", "--intermediate", "24"]))
    assert head.table.data_ptr() == target.get_input_embeddings().weight.data_ptr()
    assert head.output.weight.data_ptr() == target.get_output_embeddings().weight.data_ptr()
    assert len(head.layers) == LAYERS
    assert (head.config.mask, head.config.causal, head.config.markov_rank) == (VOCAB - 1, False, MARKOV_RANK)
    assert not head.markov_head(torch.arange(VOCAB)).any()
    before = target.get_input_embeddings().weight.clone()
    with torch.enable_grad():
        starts = torch.arange(30)[None]
        block_loss(head, functools.partial(read, target, head), torch.arange(40)[None] % VOCAB, starts).backward()
    learn = {name for name, weight in head.named_parameters() if weight.grad is not None and weight.grad.any()}
    idle = {name for name, _ in head.named_parameters()} - learn
    assert idle == {"markov_head.markov_w1.weight"}, "while the other factor is 0"
    assert torch.equal(before, target.get_input_embeddings().weight)


def test_tables_by_id_are_no_matrices_for_muon():
    head = tiny_block_head(tiny("llama", dtype=torch.float32), markov_rank=3)
    muon, adamw = ([id(w) for g in stepper.param_groups for w in g["params"]] for stepper in optimizers(head, 1e-3))
    names = {id(weight): name for name, weight in head.named_parameters()}
    assert sorted(names) == sorted(muon + adamw)
    assert {names[i].rpartition(".")[0] for i in adamw if "markov" in names[i]} == {
        "markov_head.markov_w1",
        "markov_head.markov_w2",
    }
    assert all("norm" in names[i] or "markov" in names[i] for i in adamw)


def test_the_mask_token_is_in_no_text():
    tokenizer = loading.load_tokenizer(loading.LAB_TARGET)
    mask = unused_id(tokenizer, len(tokenizer))
    texts = [
        "\u00ff \u00c0 caf\u00e9 \u6f22\u5b57 \U0001f600",
        tokenizer.convert_ids_to_tokens(mask),
        "def f(x):\n    return x",
    ]
    assert all(mask not in tokenizer(text).input_ids for text in texts)
    assert mask not in tokenizer.all_special_ids


class Words:
    """A tokenizer without bytes: its only words are in its texts."""

    def get_vocab(self):
        return {"\u00ff": 3}

    def __call__(self, text):
        return type("Encoding", (), {"input_ids": [3]})

    def __len__(self):
        return 9


def test_without_unused_bytes_a_row_that_fills_up_is_the_mask_or_none():
    assert unused_id(Words(), 12) == 11
    with pytest.raises(UsageProblem, match="none is left for masks"):
        unused_id(Words(), 9)


@pytest.mark.parametrize("kind", ["feature", "block"])
def test_a_score_replays_the_rounds_of_the_loop(kind):
    """Tokens per round by teacher forcing are those that the loop counts, round for round."""
    model, head, texts = {"feature": trained, "block": lambda: trained_block(markov_rank=5)}[kind]()
    check_score(model, head, texts, {"feature": FeatureDrafter, "block": BlockDrafter}[kind](head))


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
        ("pair --target x", "unrecognized arguments: --target x"),
        ("model", "invalid choice: 'model' (choose from"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(words, message, capsys, tmp_path):
    check_refused(words, message, capsys, tmp_path)


def check_refused(words, message, capsys, tmp_path):
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


def test_the_head_that_a_training_starts_from_is_told(tmp_path):
    earlier = {"steps": 3, "tokens": 12, "seconds": 1.0, "scores": {}, "init": None}
    (tmp_path / "training.json").write_text(json.dumps(earlier))
    found = heads._beginning(str(tmp_path))
    assert found == {"name": tmp_path.name, "steps": 3, "tokens": 12, "seconds": 1.0, "init": None}
    assert heads._beginning("some/head") == {"name": "some/head"}
    for content in ("{", "[1]"):
        (tmp_path / "training.json").write_text(content)
        with pytest.raises(EnvironmentProblem, match=r"training\.json"):
            heads._beginning(str(tmp_path))
