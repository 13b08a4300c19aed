"""Texts of the loop with block verification, in distribution."""

import pytest

from speclab.models.cached import CachedModel
from tests.test_lossless import ALARM, Law, decode_often, exact_law, p_values, plain_models, sampled_drafter


@pytest.mark.full
def test_joint_law_of_block_verification():
    """Through the same loop, with the same caches; it keeps more than the token rule on the way."""
    models, law = plain_models(), Law(1.0, 3)
    rules = []
    for rule in ("token", "block"):
        rules.append(decode_often(CachedModel(models["target"]), sampled_drafter("model"), law, 8000, rule))
    (_, by_token), (seen, by_block) = rules
    assert min(p_values(seen, exact_law(models["target"], law))) > ALARM
    shares = [sum(r.n_accepted for r in rounds) / sum(r.n_drafted for r in rounds) for rounds in (by_token, by_block)]
    assert shares[1] > shares[0]
    assert any(0 < r.n_accepted < r.n_drafted for r in by_block)
