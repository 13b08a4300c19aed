"""Turns a drafter of one text into a drafter of a batch."""

from collections.abc import Callable
from operator import attrgetter

from draft_models import ModelDrafter
from speclab.core.drafter import Drafter
from speclab.extensions.batch.batched_model import BatchedModel, check_batch
from speclab.extensions.batch.drafters import BatchDrafter, BatchedModelDrafter, RowByRow
from speclab.models.cached import CachedModel
from speclab.system.errors import UsageProblem

WAY_OUT = "give --draft model"
# The model that drafts for all rows in one pass, by the class of the drafter itself: a subclass drafts in its own way.
IN_ONE_PASS: dict[type[Drafter], Callable[[Drafter], CachedModel]] = {ModelDrafter: attrgetter("draft")}


def shared_model(drafter: Drafter) -> CachedModel | None:
    """The model that drafts for all rows in one pass; None for what goes row by row, as heads and lookups do."""
    model_of = IN_ONE_PASS.get(type(drafter))
    return model_of(drafter) if model_of else None


def batch_drafter(drafter: Drafter, n_rows: int) -> BatchDrafter:
    """The same drafter for the rows of a batch."""
    if model := shared_model(drafter):
        return BatchedModelDrafter(BatchedModel(model, n_rows))
    return RowByRow(drafter, n_rows)


def check_drafter(name: str, drafter: Drafter) -> None:
    """Raise UsageProblem for a drafter that has no form for several texts, EnvironmentProblem for a draft model that
    cannot run in batches. name: the name as --draft has it"""
    if any(part.needs_text for part in drafter.parts):
        raise UsageProblem(f"--draft {name} replays one text, and a batch has several; {WAY_OUT}")
    if any(part.pass_share < 1 for part in drafter.parts):
        raise UsageProblem(f"--draft {name} runs layers of the target ahead, which a batch does not do; {WAY_OUT}")
    if model := shared_model(drafter):
        check_batch(model)
