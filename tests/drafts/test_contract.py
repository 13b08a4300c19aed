"""The contract of tests/contract.py, for the drafts of the ground floor."""

import pytest

from draft_models import ModelDrafter, NgramDrafter
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.suffix import SuffixDrafter
from tests.contract import WAYS, check
from tests.heads import tiny_block_head, tiny_head
from tests.tiny_models import perturbed


def model_draft(model, on_engine):
    return ModelDrafter(on_engine(perturbed(model, 0.12)))


def auto(model, on_engine):
    drafter = AutoLength(model_draft(model, on_engine))
    drafter.costs.update(dict.fromkeys((0.0, 0.9), RoundCosts((0.0, 0.1, 0.2, 0.3, 0.4), (1.0, 1.0, 1.1, 1.1, 1.1))))
    return drafter


DRAFTS = {
    "model": model_draft,
    "auto": auto,
    "ngram": lambda model, on_engine: NgramDrafter(2, 1),
    "suffix": lambda model, on_engine: SuffixDrafter(),
    "hybrid": lambda model, on_engine: HybridDrafter(NgramDrafter(2, 1), model_draft(model, on_engine)),
    "feature": lambda model, on_engine: FeatureDrafter(tiny_head()),
    "block": lambda model, on_engine: BlockDrafter(tiny_block_head(model, markov_rank=3)),
}
LEARNT = ("feature", "block")  # theirs are random weights here, which guess nothing


@pytest.mark.parametrize(("engine", "sampling"), WAYS, ids=str)
@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_keeps_the_contract(kind, engine, sampling):
    rounds = check(DRAFTS[kind], engine, sampling, layers=(0, 1) if kind in LEARNT else ())
    assert any(r.n_rejected for r in rounds)
    assert any(r.n_accepted for r in rounds) or kind not in ("model", "auto", "hybrid")
