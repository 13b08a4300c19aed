"""From a drafter of one text to a drafter of a batch."""

from typing import TypeGuard

from draft_models import ModelDrafter
from speclab.batch.drafters import BatchDrafter, BatchedModelDrafter, RowByRow
from speclab.core.drafter import Drafter
from speclab.drafts.kinds import EXIT
from speclab.models.batched import BatchedModel, check_batch
from speclab.system.errors import UsageProblem

WAY_OUT = "leave --batch out, or give --draft model"


def batch_drafter(drafter: Drafter, n_rows: int) -> BatchDrafter:
    """The same drafter for the rows of a batch."""
    if in_one_pass(drafter):
        return BatchedModelDrafter(BatchedModel(drafter.draft, n_rows))
    return RowByRow(drafter, n_rows)


def in_one_pass(drafter: Drafter) -> TypeGuard[ModelDrafter]:
    """Whether all rows are drafted for in one pass: by a model that drafts chains. Trees, merges, heads and lookups go
    row by row."""
    return type(drafter) is ModelDrafter


def check_kind(kind: str) -> None:
    """Raise UsageProblem where `--draft KIND` knows one text only, before a model is loaded."""
    word = kind.partition("+")[2].partition(":")[0] if kind.startswith("hybrid:") else kind.partition(":")[0]
    if word == "dial":
        raise UsageProblem(f"--draft {kind} replays one text, and a batch has several; {WAY_OUT}")
    if word == EXIT:
        raise UsageProblem(f"--draft {kind} runs layers of the target ahead, which batches do not; {WAY_OUT}")


def check_drafter(drafter: Drafter) -> None:
    """Raise EnvironmentProblem for a draft model that cannot run in batches."""
    if in_one_pass(drafter):
        check_batch(drafter.draft)
