"""The contract of tests/contract.py, for a draft whose vocabulary is not the target's."""

import pytest

from speclab.extensions.tokenizers.intersect import IntersectDrafter
from speclab.extensions.tokenizers.shared_tokens import SharedTokens
from speclab.extensions.tokenizers.tests.vocabularies import Pairs, cousin
from tests.contract import WAYS, check
from tests.tiny_models import VOCAB

SHARED = SharedTokens([*range(0, VOCAB, 2)], [*range(VOCAB - 1, 0, -2)], VOCAB, VOCAB)  # each second id


def intersect(model, on_engine):
    return IntersectDrafter(on_engine(cousin(model, SHARED, VOCAB)), SHARED, Pairs(SHARED, VOCAB))


@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=str)
def test_a_draft_keeps_the_contract(engine, sampling):
    check(intersect, engine, sampling)
