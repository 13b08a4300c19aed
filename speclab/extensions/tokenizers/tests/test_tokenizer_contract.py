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

LETTERS = string.ascii_letters[:40]
OF_TARGET = Words(*LETTERS, "ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")
OWN = Words(*reversed(LETTERS), "ab", "cd", "ef", "bc", "de", "fg")  # and two ids that start and end a text
COMMON = [word for word in OF_TARGET.words if word in OWN.words]
SHARED = SharedTokens([*map(OF_TARGET.words.index, COMMON)], [*map(OWN.words.index, COMMON)], VOCAB, VOCAB)


def retokenize(model, on_engine):
    return RetokenizedDrafter(on_engine(cousin(model, SHARED, VOCAB)), OWN, OF_TARGET, VOCAB)


def intersect(model, on_engine):
    return IntersectDrafter(on_engine(cousin(model, SHARED, VOCAB)), SHARED, Pairs(SHARED, VOCAB))


@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=str)
@pytest.mark.parametrize("make", [retokenize, intersect])
def test_a_draft_keeps_the_contract(make, engine, sampling):
    check(make, engine, sampling)
