"""What the head of a run says about a draft, and what of `-k` it does not use."""

from draft_models import ModelDrafter
from speclab.core.rounds import Drafter
from speclab.drafts.block import BlockDrafter
from speclab.drafts.heads.drafter import HeadDrafter
from speclab.drafts.hybrid import parts
from speclab.drafts.intersect import IntersectDrafter
from speclab.drafts.retokenized import RetokenizedDrafter
from speclab.drafts.trees.best import Branching
from speclab.drafts.trees.fixed import TreeDrafter
from speclab.drafts.trees.merged import MergedDrafter
from speclab.models import loading


def describe_draft(name: str, drafter: Drafter, engine: str) -> str | None:
    """A line about a model, a head or trees; None for a lookup, whose name says it, and for what others are parts of.

    engine: the target's.
    """
    if isinstance(drafter, ModelDrafter | RetokenizedDrafter):
        eager = "; on the eager engine" * (drafter.draft.engine != engine)
        how = "; its text is tokenized again for the target" * isinstance(drafter, RetokenizedDrafter)
        shared = f"; {drafter.shared.describe()}" if isinstance(drafter, IntersectDrafter) else how
        return loading.describe_model(name, drafter.draft.model, "draft") + shared + eager
    if isinstance(drafter, HeadDrafter | Branching | MergedDrafter):
        return f"{name}: {drafter.describe()}"
    return None


def length_notes(name: str, drafter: Drafter, asked: list[int]) -> list[str]:
    """What of these typed draft lengths has no effect, a line each."""
    if isinstance(drafter, TreeDrafter) and asked:
        shape = "x".join(map(str, drafter.shape))
        return [f"{name}: a tree of the shape {shape} has {drafter.n_tokens} tokens; -k is not used"]
    if isinstance(drafter, Branching):  # the tokens of all branches
        return []
    blocks = [part.longest for part in parts(drafter) if isinstance(part, BlockDrafter)]
    longer = ",".join(str(k) for k in asked if blocks and k > min(blocks))
    who = name if isinstance(drafter, BlockDrafter) else f"{name}: its block"
    return [f"{who} proposes at most {min(blocks)} tokens; -k {longer} drafts no more"] if longer else []
