"""The lab from Python: what it loads, what it says, and what it refuses."""

import os
import subprocess
import sys

import pytest
import torch
from decoding import plain_text
from transformers import AutoModelForCausalLM, AutoTokenizer

from draft_models import ModelDrafter, NgramDrafter
from speclab import load, speculate
from speclab.core.rounds import Round
from speclab.models.prompts import with_text
from speclab.system.errors import UsageProblem

TEXT = "def f(x):\n    return x + 1"


@pytest.fixture(scope="module")
def loaded(pair_folder):
    """Target, draft and tokenizer, loaded by the library alone."""
    names = [str(pair_folder / part) for part in ("target", "draft")]
    models = [AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32) for name in names]
    return *models, AutoTokenizer.from_pretrained(names[0])


@pytest.mark.parametrize("draft", ["folder", "loaded", "ngram"])
@pytest.mark.parametrize("given", ["folder", "loaded"])
def test_the_text_is_the_baselines_whatever_way_the_pair_is_given(pair_folder, loaded, given, draft):
    target, draft_model, tokenizer = loaded
    drafts = {"folder": str(pair_folder / "draft"), "loaded": draft_model, "ngram": "ngram"}
    if given == "folder":
        pair = load(str(pair_folder / "target"), drafts[draft], engine="eager")
    else:
        pair = load(target, drafts[draft], tokenizer, engine="eager")
    assert isinstance(pair.drafter, NgramDrafter if draft == "ngram" else ModelDrafter)
    rounds = list(speculate(pair, TEXT, draft_length=3, max_new_tokens=24))
    ids = torch.tensor([tokenizer(TEXT).input_ids])
    right = plain_text(pair.setup.target, ids, 24, eos=pair.setup.eos)
    assert [token for round_ in rounds for token in round_.tokens] == right
    assert "".join(round_.text for round_ in rounds) == tokenizer.decode(right, skip_special_tokens=True)
    assert rounds[-1].finish in ("eos", "length")


def test_sampling_follows_its_seed(loaded):
    target, draft, tokenizer = loaded
    pair = load(target, draft, tokenizer, engine="eager")
    texts = [
        "".join(round_.text for round_ in speculate(pair, TEXT, 2, 20, temperature=1.0, seed=seed))
        for seed in (1, 1, 2, 3)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_the_text_of_half_a_character_comes_with_its_other_half(loaded):
    """The tiny tokenizer spells a character outside of ASCII in bytes, one id each."""
    *_, tokenizer = loaded
    rounds = list(with_text((Round([token]) for token in tokenizer("aé☃b").input_ids), tokenizer))
    assert "".join(round_.text for round_ in rounds) == "aé☃b"
    assert "" in [round_.text for round_ in rounds], "no id ended inside a character"


def test_what_cannot_be_is_refused_before_the_first_round(pair_folder, loaded):
    target, draft, tokenizer = loaded
    with pytest.raises(UsageProblem, match="tokenizer="):
        load(target, draft)
    with pytest.raises(UsageProblem, match="compare"):
        load(target, "dial:0.5", tokenizer, engine="eager")
    pair = load(target, draft, tokenizer, engine="eager")
    for wrong in ({"draft_length": -1}, {"max_new_tokens": -1}, {"temperature": -0.1}, {"top_p": 0}, {"top_k": -1}):
        with pytest.raises(ValueError, match=r"must be"):
            speculate(pair, TEXT, **wrong)
    with pytest.raises(UsageProblem, match="empty"):
        speculate(pair, "")
    with pytest.raises(UsageProblem):
        speculate(pair, TEXT, max_new_tokens=10**6)


def test_only_the_names_of_the_api_load_it():
    code = (
        "import sys, speclab.system.paths; assert 'torch' not in sys.modules; import speclab; speclab.load; "
        "assert 'torch' in sys.modules; speclab.nothing"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert "AttributeError: module 'speclab' has no attribute 'nothing'" in done.stderr
