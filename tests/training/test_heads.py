"""`python -m training.heads feature`, from the first text to the head that is written, with a tiny target."""

import copy
import json
from dataclasses import replace

import pytest
import torch

from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.feature import FeatureHead
from speclab.drafts.heads.files import read_head
from speclab.models import loading
from tests import contract
from tests.heads import tiny_head, trained
from tests.small_tokenizers import byte_level, sentence_piece
from tests.tiny_models import VOCAB, tiny
from training import corpus, heads, recipes
from training import texts as training_texts
from training.corpus import Document
from training.recipes import MOST_WEIGHTS, distance, sizes_of
from training.steps import TrainingFacts

N_IDS = 24


@pytest.fixture
def target(monkeypatch):
    """A tiny target of more ids than a head proposes, and training text."""
    model, tokenizer = tiny("qwen2", vocab_size=330, dtype=torch.float32), byte_level()
    text = '"""One.\n\nTwo three four five.\n"""\ndef f(x):\n    return x + 1\n'
    monkeypatch.setattr(corpus, "standard_library", lambda: [Document(f"{i}.py", text * 9) for i in range(9)])
    monkeypatch.setattr(loading, "load_tokenizer", lambda name: tokenizer)
    monkeypatch.setattr(loading, "load_model", lambda *_: model)
    monkeypatch.setattr(heads, "DRAFT_IDS", N_IDS)
    monkeypatch.setattr(recipes, "MOST_WEIGHTS", 60_000)
    monkeypatch.setattr(training_texts, "ANSWER", 60)
    ids = torch.arange(40)[None]
    monkeypatch.setattr(heads, "greedy_texts", lambda *given: {"code": [heads.known(model, ids, 9, given[-1])]})
    return model


def words(kind: str, folder, *more: str) -> list[str]:
    return [kind, "--target", "x", "--minutes", "0.0001", "--out", str(folder), *more]


def test_a_head_is_written_and_goes_on(target, tmp_path):
    check_training("feature", read_head, target, tmp_path)


def check_training(kind, read_head, target, folder):
    assert heads.main(words(kind, folder)) == 0
    _, ids = read_head(str(folder), target)
    about = json.loads((folder / "training.json").read_text())
    assert about["steps"] == 1
    assert about["tokens"] > 0
    assert about["draft_ids"] == len(ids) == N_IDS
    assert about["scores"].keys() == {"held-out texts", "code", "all prompts"}
    further = folder / "further"
    assert heads.main(words(kind, further, "--init", str(folder))) == 0
    assert json.loads((further / "training.json").read_text())["init"]["steps"] == 1
    assert torch.equal(read_head(str(further), target)[1], ids)


@pytest.mark.parametrize("init", [False, True])
def test_the_best_head_by_replayed_rounds_stays(init, target, tmp_path, monkeypatch):
    """Also after a stop. What comes later and is worse is not written, and a head of --init is scored before all."""
    if init:
        assert heads.main(words("feature", tmp_path / "first")) == 0
    left, now, written = iter([2.0, 2.5, 2.4, 2.6, 2.5]), [0.0], []
    found = {"by_position": [0.5] * 4}
    monkeypatch.setattr(heads, "score", lambda *_: found | {"tokens_per_round": {heads.K: next(left)}})
    kind = replace(heads.KINDS["feature"], write=lambda *_, **__: written.append(now[0]))
    monkeypatch.setitem(heads.KINDS, "feature", kind)

    def train(*args):
        seconds, look = args[3], args[-1]
        for now[0] in (0.01, 0.07, 0.09, 0.12, 0.19, 0.21, 0.24, 0.25, 0.31, 0.4):
            look(TrainingFacts(steps=1, tokens=7, seconds=now[0] * seconds))
        raise KeyboardInterrupt

    monkeypatch.setattr(heads, "train", train)
    assert heads.main(words("feature", tmp_path / "out", *["--init", str(tmp_path / "first")][: 2 * init])) == 130
    assert written == ([0.0, 0.12, 0.31] if init else [0.09, 0.21, 0.4])


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
    sizes = sizes_of(target, 1, 3 * 576**2, 2 * 576, narrow=True)
    assert (sizes["num_attention_heads"], sizes["num_key_value_heads"]) == (6, 2)
    attention = 64 * (2 * 576 * 10 + 6 * 576)
    weights = 3 * 576**2 + attention + 3 * 576 * sizes["intermediate_size"]
    assert 0.95 * MOST_WEIGHTS < weights <= MOST_WEIGHTS < 3e6
    assert sizes_of(target, 1, 0, 576, narrow=False)["num_attention_heads"] == 9


def test_a_head_that_is_written_reads_the_states_as_they_are():
    """In training each dimension is brought to one size; the factors are in the weights that are written."""
    head = copy.deepcopy(trained()[1]).float()
    states, scale = torch.randn(1, 5, 64), torch.rand(64) + 0.1
    expected = head.fuse(states * scale)
    made = heads.rounded(head, scale)
    assert torch.allclose(made.fuse(states), expected, atol=2e-2 * expected.abs().max().item())
    assert not any(torch.equal(a, b) for a, b in zip(made.parameters(), head.parameters(), strict=True) if a.ndim > 1)
    assert all(heads.scale_of(tiny_head(**{norm: True}), []) is None for norm in ("norm_before_fc", "fc_norm"))
    made.to(torch.bfloat16)
    assert {weight.dtype for weight in head.parameters()} == {torch.float32}


def test_a_draft_model_starts_from_its_target(target, tmp_path, monkeypatch):
    target.requires_grad_(False)
    args = heads.parse(words("model", tmp_path))
    draft = heads.head_to_train(target, byte_level(), args).head
    assert draft.model.config.num_hidden_layers == 1
    assert torch.equal(draft.model.model.embed_tokens.weight, target.model.embed_tokens.weight)
    mine, theirs = (m.model.layers[0].mlp.up_proj.weight for m in (draft.model, target))
    assert torch.equal(mine[: len(theirs)], theirs)
    assert len(mine) == recipes.USUAL_INTERMEDIATE > len(theirs)
    assert mine[len(theirs) :].std() > 0
    tokens = torch.randint(0, 330, (1, 20))
    for j, rows in enumerate(draft.chains(None, tokens, 4)):
        assert torch.equal(rows, draft.logits(tokens)[:, 1 + j : 16 + j]), "row t is of token t + 2 + j"
    assert heads.main(words("model", tmp_path)) == 0
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 1
    monkeypatch.setattr(loading, "load_tokenizer", {"x": byte_level(), str(tmp_path): sentence_piece()}.get)
    assert heads.main(words("model", tmp_path / "further", "--init", str(tmp_path))) == 2, "of another tokenizer"


def test_distillation_is_best_at_the_target_itself():
    target, other = (tiny("llama", dtype=torch.float32, seed=seed) for seed in (0, 1))
    tokens = torch.randint(0, VOCAB, (2, 16))
    with torch.no_grad():
        found = heads.Passes(target, (0,))(tokens)[1]
        same, apart = (distance(found, model(input_ids=tokens).logits) for model in (target, other))
    assert same < apart - 0.1
