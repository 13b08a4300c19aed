"""The contract of tests/contract.py, for drafts whose vocabulary is not the target's."""

import string

import pytest

from speclab.extensions.tokenizers.intersect import IntersectDrafter
from speclab.extensions.tokenizers.retokenized import RetokenizedDrafter
from speclab.extensions.tokenizers.shared_tokens import SharedTokens
from speclab.extensions.tokenizers.tests.test_retokenized import Words
from speclab.extensions.tokenizers.tests.vocabularies import Pairs, cousin
from tests.contract import WAYS, check
from tests.tiny_models import VOCAB

SHARED = SharedTokens([*range(0, VOCAB, 2)], [*range(VOCAB - 1, 0, -2)], VOCAB, VOCAB)  # each second id
WORDS = [*string.ascii_letters[: VOCAB - 5], "ab", "cd", "efg", "hi", "jk"]


def intersect(model, on_engine):
    return IntersectDrafter(on_engine(cousin(model, SHARED, VOCAB)), SHARED, Pairs(SHARED, VOCAB))


def retokenize(model, on_engine):
    return RetokenizedDrafter(on_engine(cousin(model, SHARED, VOCAB)), Words(*WORDS[::-1]), Words(*WORDS), VOCAB)


@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=str)
@pytest.mark.parametrize("make", [intersect, retokenize])
def test_a_draft_keeps_the_contract(make, engine, sampling):
    check(make, engine, sampling)
