"""The contract of tests/contract.py, for the drafts of the ground floor."""

import functools

import pytest

from draft_models import ModelDrafter, NgramDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.suffix import SuffixDrafter
from tests.contract import check, id_of, ways_of
from tests.heads import in_format, trained
from tests.tiny_models import perturbed


@functools.cache
def often_right(model):
    return perturbed(model, 0.12)


def model_draft(model, on_engine):
    return ModelDrafter(on_engine(often_right(model)))


def auto(model, on_engine):
    drafter = AutoLength(model_draft(model, on_engine))
    drafter.costs.update(dict.fromkeys((0.0, 0.9), RoundCosts((0.0, 0.1, 0.2, 0.3, 0.4), (1.0, 1.0, 1.1, 1.1, 1.1))))
    return drafter


def feature(model, on_engine):
    drafter = FeatureDrafter(in_format(trained()[1], model.dtype))
    if on_engine(model).engine == "c":
        drafter.use_c()
    return drafter


DRAFTS = {
    "model": model_draft,
    "auto": auto,
    "ngram": lambda model, on_engine: NgramDrafter(2, 1),
    "suffix": lambda model, on_engine: SuffixDrafter(),
    "hybrid": lambda model, on_engine: HybridDrafter(NgramDrafter(2, 1), model_draft(model, on_engine)),
    "feature": feature,
}


@pytest.mark.parametrize(("kind", "engine", "sampling"), ways_of(DRAFTS, eager=("ngram", "suffix")), ids=id_of)
def test_a_draft_keeps_the_contract(kind, engine, sampling):
    layers = (0, 1) if kind == "feature" else ()
    check(DRAFTS[kind], engine, sampling, layers=layers, of_text=kind not in ("auto", "hybrid"))
