"""Which drafters draft for all rows in one pass, which go row by row, and which have no form for several texts."""

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter, as_draft
from speclab.core.drafter import Drafter, Wrapper
from speclab.core.rounds import Draft
from speclab.core.sampling import GREEDY
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.drafters import BatchedModelDrafter, RowByRow, batch_drafter, check_drafter
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem
from tests.tiny_models import tiny


class OtherWay(ModelDrafter):
    """A draft model that proposes nothing: it must be asked, not its model."""

    def propose(self, k: int, uniforms: torch.Tensor) -> Draft:
        return as_draft([], self.draft.device)


class Around(Wrapper):
    """A drafter around another one."""

    def __init__(self, drafter: Drafter):
        self.drafter = drafter


def test_a_draft_model_drafts_for_all_rows_and_everything_else_row_by_row():
    draft = CachedModel(tiny("llama"))
    assert isinstance(batch_drafter(ModelDrafter(draft), 2), BatchedModelDrafter)
    for drafter in (NgramDrafter(), OtherWay(draft), Around(ModelDrafter(draft))):
        made = batch_drafter(drafter, 2)
        assert isinstance(made, RowByRow)
        assert [type(row) for row in made.rows] == [type(drafter)] * 2
        assert made.rows[0] is not made.rows[1]
    asked = batch_drafter(OtherWay(draft), 2)
    asked.start(BatchedModel(draft, 2), GREEDY, 9)
    assert asked.propose([3, 3], torch.zeros(2, 3)).size.tolist() == [0, 0]


@pytest.mark.parametrize("wrap", [lambda drafter: drafter, Around], ids=["alone", "inside"])
@pytest.mark.parametrize(("name", "value"), [("needs_text", True), ("runs_target", True)])
def test_what_knows_one_text_is_refused(name, value, wrap):
    drafter = NgramDrafter()
    check_drafter("ngram", wrap(drafter))
    setattr(drafter, name, value)
    with pytest.raises(UsageProblem, match=r"--draft ngram .*; give --draft model"):
        check_drafter("ngram", wrap(drafter))
