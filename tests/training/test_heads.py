"""`python -m training.heads feature`, from the first text to the head that is written, with a tiny target."""

import copy
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.feature import FeatureHead
from speclab.drafts.heads.files import read_head
from speclab.models import loading
from tests import contract
from tests.heads import trained
from tests.small_tokenizers import byte_level
from tests.tiny_models import VOCAB, tiny
from training import corpus, course, heads
from training import texts as training_texts
from training.corpus import Document
from training.recipes import MOST_WEIGHTS, sizes_of
from training.room import Room
from training.steps import TrainingFacts
from training.texts import Text

N_IDS = 24
CPU, GPU = Room("cpu", 0), Room("cuda", 2**28)


@pytest.fixture
def target(monkeypatch):
    """A tiny target of more ids than a head proposes, and training text."""
    model, tokenizer = tiny("llama", vocab_size=330, dtype=torch.float32), byte_level()
    text = '"""One.\n\nTwo three four five.\n"""\ndef f(x):\n    return x + 1\n'
    monkeypatch.setattr(corpus, "standard_library", lambda: [Document(f"{i}.py", text * 9) for i in range(9)])
    monkeypatch.setattr(loading, "load_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr(loading, "load_model", lambda *_: model)
    monkeypatch.setattr(heads, "DRAFT_IDS", N_IDS)
    monkeypatch.setattr(heads, "compiled", lambda function, _: function)
    monkeypatch.setattr(training_texts, "ANSWER", 60)
    monkeypatch.setattr(heads, "scored", lambda *_: {})
    return model


def words(kind: str, folder) -> list[str]:
    return [kind, "--target", "x", "--minutes", "0.0001", "--out", str(folder), "--intermediate", "16"]


@pytest.mark.parametrize("room", [CPU, GPU])
def test_a_head_is_written_and_goes_on(room, target, tmp_path, monkeypatch, capsys):
    """Also with the numbers of rows that a GPU has."""
    check_training("feature", read_head, room, target, tmp_path, monkeypatch, capsys)


def check_training(kind, read_head, room, target, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(heads, "room_on", lambda device: room)
    assert heads.main(words(kind, tmp_path)) == 0
    told = capsys.readouterr().err
    assert "32 of 32 tokens decoded with it are the target's own" in told
    _, ids = read_head(str(tmp_path), target)
    assert len(ids) == N_IDS
    about = json.loads((tmp_path / "training.json").read_text())
    assert about["steps"] == 1
    assert about["draft_ids"]["n"] == N_IDS
    (row,) = about["growth"]
    assert row["tokens"] == about["tokens"] > 0
    assert 1 <= len(row["by_position"]) <= course.K, "positions that were reached"
    further = [*words(kind, tmp_path / "further")[:-2], "--init", str(tmp_path)]
    assert heads.main(further) == 0
    again = json.loads((tmp_path / "further" / "training.json").read_text())
    assert again["init"]["steps"] == 1
    assert [row["tokens"] for row in again["growth"]] == [0, again["tokens"]], "the head that it starts from is scored"
    assert torch.equal(read_head(str(tmp_path / "further"), target)[1], ids)


def test_a_stop_leaves_the_head_of_the_first_tenth(target, tmp_path, monkeypatch):
    """The clock of the training is the number of its steps."""
    right, steps = heads.train, itertools.count(1)

    def train(*args):
        *others, after = args

        def stopping(facts):
            n = next(steps)
            after(facts.__class__(**vars(facts) | {"seconds": 0.01 * n * 60 * 100}))
            if n == 9:
                raise KeyboardInterrupt

        return right(*others, stopping)

    monkeypatch.setattr(heads, "train", train)
    given = words("feature", tmp_path)
    given[4] = "100"
    assert heads.main([*given, "--own-minutes", "0.001"]) == 130
    about = json.loads((tmp_path / "training.json").read_text())
    assert [round(row["share"], 2) for row in about["growth"]] == [0.08]
    read_head(str(tmp_path), target)


def test_the_best_head_by_replayed_rounds_stays(monkeypatch):
    """What comes later and is worse is not written."""
    left, written = iter([2.0, 2.5, 2.4, 2.6]), []
    rows = {"by_position": [0.5] * 4}
    monkeypatch.setattr(course, "score", lambda *_, **__: rows | {"tokens_per_round": {course.K: next(left)}})
    texts = SimpleNamespace(answers=[Text((1,), tuple(range(60)))] * 9)

    def cut(*_):
        return torch.zeros(1, 2), torch.zeros(1, 1)

    def write(head, its_course):
        written.append(its_course.best)

    made = course.Course(torch.nn.Linear(2, 2), None, None, texts, [], cut, [256], 100.0, 0.0, write)
    for seconds in (1, 7, 9, 12, 19, 21, 24, 25, 31, 40):
        made.batches(0)
        made.after(TrainingFacts(steps=1, tokens=7, seconds=seconds, first_loss=1.0, last_loss=1.0))
    assert written == [2.0, 2.5, 2.6]
    assert [row["share"] for row in made.growth] == [0.09, 0.21, 0.31, 0.4]


@pytest.mark.parametrize("sampling", contract.SAMPLINGS, ids=contract.id_of)
def test_a_head_that_proposes_a_part_of_the_ids_keeps_the_contract(sampling):
    """q is 0 elsewhere, and greedy texts are the target's own. Whole heads show that they run on every engine."""
    ids, whole = torch.tensor([i for i in range(VOCAB) if i % 4]), trained()[1]
    head, weights = FeatureHead(replace(whole.config, draft_vocab=len(ids))).double(), whole.state_dict()
    head.load_state_dict(weights | {"lm_head.weight": weights["lm_head.weight"][ids]})
    contract.check(lambda *_: FeatureDrafter(head, ids), "eager", sampling, layers=(0, 1))


def test_a_head_of_many_ids_makes_a_small_file():
    """For a target of the width of a small chat model."""
    target = tiny("llama", hidden_size=576, num_attention_heads=9, num_key_value_heads=3, head_dim=64, vocab_size=300)
    sizes = sizes_of(target, 1, None, 3 * 576**2, 2 * 576, narrow=True)
    assert (sizes["num_attention_heads"], sizes["num_key_value_heads"]) == (6, 2)
    attention = 64 * (2 * 576 * 10 + 6 * 576)
    weights = 3 * 576**2 + attention + 3 * 576 * sizes["intermediate_size"]
    assert 0.95 * MOST_WEIGHTS < weights <= MOST_WEIGHTS < 3e6
    assert sizes_of(target, 1, None, 0, 576, narrow=False)["num_attention_heads"] == 9


def test_a_head_that_is_written_reads_the_states_as_they_are():
    """In training each dimension is brought to one size; the factors are in the weights that are written."""
    head = trained()[1]
    head = copy.deepcopy(head).float()
    head.requires_grad_(True)
    states, scale = torch.randn(1, 5, 64), torch.rand(64) + 0.1
    expected = head.fuse(states * scale)
    made = course.rounded(head, scale)
    assert torch.allclose(made.fuse(states), expected, atol=2e-2 * expected.abs().max().item())
    assert not any(torch.equal(a, b) for a, b in zip(made.parameters(), head.parameters(), strict=True) if a.ndim > 1)
    made.to(torch.bfloat16)
    assert {weight.dtype for weight in head.parameters()} == {torch.float32}


def test_weights_that_do_not_learn_stay_as_they_are_when_a_head_is_written():
    head = copy.deepcopy(trained()[1]).float()
    head.lm_head.weight.requires_grad_(False)
    made = course.rounded(head)
    assert made.lm_head.weight.data_ptr() == head.lm_head.weight.data_ptr(), "no second copy"
    made.to(torch.bfloat16)
    assert head.lm_head.weight.dtype == torch.float32
