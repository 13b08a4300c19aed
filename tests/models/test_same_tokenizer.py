"""A draft's ids mean the target's words, up to ids that one of the two lacks at the end; else the error names them."""

import contextlib

import pytest
import torch
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


def of_ids(vocab: dict[str, int]) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocab, unk_token=next(iter(vocab)))))


ABC = {"a": 0, "b": 1, "c": 2}
DRAFTS = [  # a draft's vocabulary beside ABC, and the number of ids that mean the same, or what is said
    (ABC, 3),
    ({"a": 0, "b": 1}, 2),
    (ABC | {"d": 3}, 3),
    (ABC | {"d": 7}, 3),
    ({"a": 0, "\n": 1, "c": 2}, r"different tokenizers: id 1 is '\\n' to the draft, 'b' to the target"),
    ({"c": 0, "b": 1, "a": 2, "d": 3}, "id 0 is 'c' to the draft, 'a' to the target"),
    ({"a": 0, "c": 2}, "id 1 is no word to the draft, 'b' to the target"),
]


@pytest.mark.parametrize(("draft", "expected"), DRAFTS)
def test_ids_that_mean_other_words_are_counted_and_named(draft, expected):
    with pytest.raises(UsageProblem, match=expected) if isinstance(expected, str) else contextlib.nullcontext():
        assert check_same_tokenizer(of_ids(ABC), of_ids(draft), "target", "draft") == expected


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> tuple[Setup, CachedModel]:
    """A target, and a draft that is near it: its tokenizer has fewer ids than its model has rows."""
    folder, names = str(tmp_path_factory.mktemp("narrow")), [f"w{i}" for i in range(VOCAB)]
    model = tiny("llama")
    perturbed(model, 0.05).save_pretrained(folder)
    words(*names[:N_KNOWN]).save_pretrained(folder)
    setup = Setup(CachedModel(model, VOCAB), words(*names), "tiny", Sampling(), model.device, model.dtype)
    return setup, setup.load_draft(folder)


def test_ids_that_only_the_targets_tokenizer_has_are_never_drafted_and_come_all_the_same(narrow, prompt):
    """A round that would draft one has the draft's next best id instead, and the target's text has them all."""
    setup, draft = narrow
    prompt = prompt % VOCAB
    right = plain_text(setup.target, prompt, 60)
    assert max(right) >= N_KNOWN
    rounds = list(speculative_rounds(setup.target, ModelDrafter(draft), prompt, 4, 60))
    assert all(max(round_.tokens[: round_.n_accepted], default=0) < N_KNOWN for round_ in rounds)
    assert [token for round_ in rounds for token in round_.tokens] == right


def test_what_is_drawn_is_what_the_forecast_computes(narrow, prompt):
    """Though the model has rows for the ids that its tokenizer lacks."""
    setup, draft = narrow
    prompt, sampling, drafter = prompt % VOCAB, Sampling(1.0), ModelDrafter(draft)
    drafter.prefill(setup.target, prompt, sampling)
    drafter.observe(0, [VOCAB - 1])
    drawn = drafter.propose(1, torch.tensor([[0.5]])).probs[0, 0]
    law = drafter.law(setup.target, prompt[0].tolist(), [VOCAB - 1, 0], sampling, 1)
    rows = law.drawn_from([(0, 0, 1), (1, 0, 1)])
    assert drawn[N_KNOWN:].sum() == 0
    assert torch.allclose(drawn, rows[1].to(drawn.dtype), atol=1e-6)
