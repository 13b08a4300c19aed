"""A draft's ids mean the target's words, up to ids that one of the two lacks at the end; else the error names them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from draft_models import ModelDrafter
from speclab.core.sampling import Sampling
from speclab.models.cached import CachedModel
from speclab.models.loading import check_same_tokenizer
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text, speculative_rounds
from tests.small_tokenizers import words
from tests.tiny_models import VOCAB, perturbed, tiny

N_KNOWN = VOCAB - 8  # ids of the narrow draft's tokenizer


@settings(max_examples=60)
@given(st.integers(2, 12), st.integers(2, 12), st.sets(st.integers(0, 11)))
def test_ids_that_mean_other_words_are_counted_and_named(n_target, n_draft, renamed):
    target = words(*(f"w{i}" for i in range(n_target)))
    draft = words(*(f"\n{i}" if i in renamed else f"w{i}" for i in range(n_draft)))
    n = min(n_target, n_draft)
    others = sorted(i for i in renamed if i < n)
    if not others:
        assert check_same_tokenizer(target, draft, "target", "draft") == n
        return
    with pytest.raises(UsageProblem) as problem:
        check_same_tokenizer(target, draft, "target", "draft")
    assert f"disagree about {len(others)} of {n} ids" in str(problem.value)
    i = others[0]
    assert f"({i} is '\\n{i}' to the draft, 'w{i}' to the target)" in str(problem.value)


def test_an_id_without_a_word_in_the_middle_is_another_meaning():
    whole = words("a", "b", "c")
    holed = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "c": 2}, unk_token="a")))
    with pytest.raises(UsageProblem, match=r"1 of 3 ids \(1 is no word to the draft, 'b' to the target"):
        check_same_tokenizer(whole, holed, "target", "draft")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> tuple[Setup, CachedModel]:
    """A target, and a draft that is near it: its tokenizer has fewer ids than its model has rows."""
    folder, names = str(tmp_path_factory.mktemp("narrow")), [f"w{i}" for i in range(VOCAB)]
    model = tiny("llama")
    perturbed(model, 0.05).save_pretrained(folder)
    words(*names[:N_KNOWN]).save_pretrained(folder)
    setup = Setup(CachedModel(model, VOCAB), words(*names), "tiny", Sampling(), model.device, model.dtype)
    return setup, setup.load_draft(folder)


def test_ids_that_only_the_targets_tokenizer_has_are_never_drafted_and_come_all_the_same(narrow):
    """A round that would draft one has the draft's next best id instead, and the target's text has them all."""
    setup, draft = narrow
    prompt = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(2))
    right = plain_text(setup.target, prompt, 60)
    assert max(right) >= N_KNOWN
    drafter, found = ModelDrafter(draft), []
    for round_ in speculative_rounds(setup.target, drafter, prompt, 4, 60):
        found += round_.tokens
        assert max(round_.tokens[: round_.n_accepted], default=0) < N_KNOWN
    assert found == right


def test_what_is_drawn_is_what_the_forecast_computes(narrow):
    """Though the model has rows for the ids that its tokenizer lacks."""
    setup, draft = narrow
    prompt, sampling = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(2)), Sampling(1.0)
    drafter = ModelDrafter(draft)
    drafter.prefill(setup.target, prompt, sampling)
    drafter.observe(0, [VOCAB - 1])
    drawn = drafter.propose(1, torch.tensor([[0.5]])).probs[0, 0]
    law = drafter.law(setup.target, prompt[0].tolist(), [VOCAB - 1, 0], sampling, 1)
    rows = law.drawn_from([(0, 0, 1), (1, 0, 1)])
    assert drawn[N_KNOWN:].sum() == 0
    assert torch.allclose(drawn, rows[1].to(drawn.dtype), atol=1e-6)
