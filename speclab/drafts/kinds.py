"""The readers of the lab's own kinds of drafts. The table names them (speclab/drafts/kind_table.py); each reads what is
typed after a name, and says how the draft is built."""

from collections.abc import Callable
from pathlib import Path

from speclab.core.drafter import Drafter, Lookup
from speclab.drafts.block import BlockDrafter
from speclab.drafts.choice import OTHER_FAMILY, Choice
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.block import BlockHead
from speclab.drafts.heads.files import FORMATS, read_head
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.kind_table import is_mistyped, lookups
from speclab.drafts.oracle import FreeOracleDrafter, OracleDraft, OracleModelDrafter, needs_greedy
from speclab.drafts.registry import (
    check_no_argument,
    model_choice,
    read,
)
from speclab.models import loading, names, sources
from speclab.models.family import check_family
from speclab.models.padded import sizes
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem

LAB_HEADS = {kind: str(loading.LAB_PAIR / kind) for kind in FORMATS}
USUAL_HYBRID = "suffix+feature"


# ---------------------------------------------------------------- model, lookups, heads


def read_model(argument: str, text: str) -> Choice:
    """Return the lab's own draft model."""
    check_no_argument(argument, text)
    return model_choice(text, loading.LAB_DRAFT)


def _head(name: str) -> Callable[[str, str], Choice]:
    """Return a head that reads the target's hidden states: the lab's own one, or one in the format of `speculators`."""

    def read_choice(argument: str, text: str) -> Choice:
        if argument and is_mistyped(argument):
            raise UsageProblem(f"{text}: give a head's folder or hub name, for example {name}:build/{name}/out")
        if argument:
            loading.check_place(argument)
        elif not loading.exists(LAB_HEADS[name]):
            raise UsageProblem(f"{name}: the lab has no such head yet; type: python -m training.heads {name}")
        label = f"{name}:{loading.short_name(argument)}" if argument else name

        def build(setup: Setup, seed: int) -> Drafter:
            return _make_head(name, argument, setup)

        return Choice(text, label, build, can_branch=True, in_hybrid=True, any_family=False)

    return read_choice


read_feature, read_block = _head("feature"), _head("block")


def own_head(name: str, target: str) -> str:
    """Return the folder of the lab's head of a kind: the one for the target of this name where there is one, else that
    of the lab's pair. target: such as smollm2; empty for a folder."""
    folder = names.MODELS / target / name
    return str(folder) if target and Path(target).name == target and folder.is_dir() else LAB_HEADS[name]


def _make_head(name: str, place: str, setup: Setup) -> Drafter:
    target = setup.target
    check_family(target.model, f"the draft {name}", OTHER_FAMILY)
    # A padded target's states are the lab's, followed by zeros.
    own_width = loading.lab_width() if sizes.is_lab_size(setup.target_name) else None
    # The name of a folder says nothing about the model in it.
    named = setup.target_name if sources.about(target.model) else ""
    head, ids = read_head(place or own_head(name, named), target.model, name, own_width)
    target.hidden_layers = tuple(sorted({*target.hidden_layers, *head.config.layers}))
    drafter = BlockDrafter(head, ids) if isinstance(head, BlockHead) else FeatureDrafter(head, ids)
    if isinstance(drafter, FeatureDrafter) and target.engine == "c":
        drafter.use_c()
    return drafter


# ---------------------------------------------------------------- made of others


def read_hybrid(argument: str, text: str) -> Choice:
    """Read LOOKUP+MODEL."""
    first, _, second = (argument or USUAL_HYBRID).partition("+")
    parts = [read(first), read(second)] if first in lookups() and second else []
    if not parts or not parts[1].in_hybrid:
        raise UsageProblem(
            f"{text}: give a lookup ({' or '.join(lookups())}) and a draft with a model, for example "
            f"hybrid:{USUAL_HYBRID}"
        )
    name = f"hybrid:{parts[0].name}+{parts[1].name}" if argument else text

    def build(setup: Setup, seed: int) -> Drafter:
        found, drafter = parts[0].make(setup, seed), parts[1].make(setup, seed)
        assert isinstance(found, Lookup)
        return HybridDrafter(found, drafter)

    return Choice(text, name, build, parts=tuple(parts))


def read_dial(argument: str, text: str) -> Choice:
    """Read A:MODEL or A:free, or A alone, which means the lab's draft model."""
    number, _, cost = argument.partition(":")
    try:
        accuracy = OracleDraft(float(number)).accuracy
    except ValueError:
        raise UsageProblem(f"{text}: give the dial a number from 0 to 1, for example dial:0.8") from None
    name = f"dial:{number}" + (f":{loading.short_name(cost)}" if cost else "")
    model = None
    if cost != "free":
        model = read(cost or "model")
        if not model.is_model:
            raise UsageProblem(f"{text}: give the model whose cost the dial takes, for example dial:0.8:model")

    def build(setup: Setup, seed: int) -> Drafter:
        if model is None:
            return FreeOracleDrafter(accuracy, seed)
        [draft] = model.make(setup, seed).models
        return OracleModelDrafter(draft, accuracy, seed)

    no_auto = f"it chooses by what was accepted, and {text} replays the text"
    return Choice(text, name, build, draws_when_greedy=True, no_auto=no_auto, only_greedy=needs_greedy())
