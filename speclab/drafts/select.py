"""From `--draft KIND` (speclab/drafts/kinds.py) to a drafter, and whether a run's prompts fit it."""

from collections.abc import Iterable

from draft_models import ModelDrafter
from speclab.core.drafter import Drafter, Lookup
from speclab.drafts.block import BlockDrafter
from speclab.drafts.exit import ExitDrafter, check_split
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.block import BlockHead
from speclab.drafts.heads.exit_files import read_adapter
from speclab.drafts.heads.files import read_head
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.intersect import intersect
from speclab.drafts.kinds import (
    EXIT,
    INTERSECT,
    KINDS,
    LAB_EXIT,
    LAB_HEADS,
    LOOKUPS,
    MERGE,
    OTHERS,
    TREES,
    accuracy_of,
    check_kind,
    check_kinds,
    drafter_name,
    is_dial,
    of_hybrid,
    of_merge,
    of_tree,
)
from speclab.drafts.oracle import FreeOracleDrafter, OracleModelDrafter
from speclab.drafts.retokenized import RetokenizedDrafter
from speclab.drafts.trees.best import BestTreeDrafter
from speclab.drafts.trees.checks import check_tree
from speclab.drafts.trees.fixed import TreeDrafter
from speclab.drafts.trees.merged import MergedDrafter
from speclab.models import loading
from speclab.models.cached import CachedModel, check_prompt
from speclab.models.checks import OTHER_DRAFT, check_no_encoder, check_not_recurrent
from speclab.models.padded import sizes
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import EnvironmentProblem
from speclab.system.terminal import note

NO_STATES = "use --draft model or --draft ngram"
NO_ENCODER = "use --draft FOLDER with a model of its family, --draft ngram, or --draft hybrid:ngram+FOLDER"
NO_SPLIT = "early exit runs the target in two parts, and CUDA graphs do not"


def _lookup(kind: str, setup: Setup) -> Lookup:
    """It proposes no id that the target never emits, though a prompt may have some."""
    return LOOKUPS[kind](n_ids=setup.target.vocab_size)


def make_drafter(kind: str, setup: Setup, seed: int = 0) -> Drafter:
    """The drafter that `--draft KIND` means, for this target."""
    check_kind(kind, setup.sampling.greedy)
    word, _, rest = kind.partition(":")
    _check_encoder(kind, word, setup.target)
    if kind in LOOKUPS:
        return _lookup(kind, setup)
    if word == "hybrid":
        lookup, model = of_hybrid(kind)
        return HybridDrafter(_lookup(lookup, setup), make_drafter(model, setup, seed))
    if word in TREES:
        shape, model = of_tree(kind)
        check_tree(setup.target)
        drafter = _growing(model, setup, seed)
        return BestTreeDrafter(drafter) if isinstance(shape, str) else TreeDrafter(drafter, shape, TREES[word])
    if word == MERGE:
        check_tree(setup.target)
        made = (_lookup(one, setup) if one in LOOKUPS else _growing(one, setup, seed) for one in of_merge(kind))
        return MergedDrafter([*made])
    if is_dial(kind):
        number, _, name = rest.partition(":")
        accuracy = accuracy_of(kind, number)
        if name == "free":
            return FreeOracleDrafter(accuracy, seed)
        return OracleModelDrafter(_draft_model(name or "model", setup), accuracy, seed)
    if word in LAB_HEADS:
        target = setup.target
        check_not_recurrent(target.model, f"cannot be the target of --draft {kind}", NO_STATES)
        own_width = loading.lab_width() if sizes.is_lab_size(setup.target_name) else None
        head, ids = read_head(rest or LAB_HEADS[word], target.model, word, own_width)
        target.hidden_layers = tuple(sorted({*target.hidden_layers, *head.config.layers}))
        return BlockDrafter(head, ids) if isinstance(head, BlockHead) else FeatureDrafter(head, ids)
    if word == EXIT:
        return _exit_drafter(rest, setup)
    if word in OTHERS:
        return _other_drafter(kind, setup)
    return ModelDrafter(_draft_model(kind, setup))


def _check_encoder(kind: str, word: str, target: CachedModel) -> None:
    """UsageProblem for a draft that reads a decoder-only target's states, or knows another tokenizer or branches."""
    if word in (*TREES, MERGE, *LAB_HEADS, EXIT, *OTHERS):
        check_no_encoder(target.model, f"--draft {kind}", NO_ENCODER)


def _growing(kind: str, setup: Setup, seed: int) -> Drafter:
    """A draft that can be a tree; EnvironmentProblem for a model that cannot read one."""
    drafter = make_drafter(kind, setup, seed)
    for model in drafter.models:
        check_no_encoder(model.model, "a tree", OTHER_DRAFT)
        check_tree(model)
    return drafter


def _other_drafter(kind: str, setup: Setup) -> Drafter:
    """A draft model of another family."""
    word, _, rest = kind.partition(":")
    draft, own = setup.load_other_draft(rest, word)
    if word == INTERSECT:
        return intersect(draft, own, setup, kind)
    return RetokenizedDrafter(draft, own, setup.tokenizer, setup.target.vocab_size)


def _exit_drafter(rest: str, setup: Setup) -> ExitDrafter:
    """Early exit with an adapter, on an engine that runs the target in two parts."""
    check_not_recurrent(setup.target.model, "cannot be the target of --draft exit", NO_STATES)
    own = not rest or rest.isdecimal()
    adapter = read_adapter(LAB_EXIT if own else rest, setup.target.model, sizes.is_lab_size(setup.target_name))
    if setup.target.fast and not setup.target.fast.splits:
        setup.use_eager(NO_SPLIT)
        note(f"{NO_SPLIT}: both arms run on the eager engine")
    check_split(setup.target, adapter.config.exit_layer)
    setup.target.hidden_layers = tuple(sorted({*setup.target.hidden_layers, *adapter.config.layers}))
    return ExitDrafter(adapter)


def _draft_model(name: str, setup: Setup) -> CachedModel:
    """A draft model by its name. A name that may have been meant as a kind gets the kinds into its error."""
    try:
        return setup.load_draft(loading.LAB_DRAFT if name == "model" else name)
    except EnvironmentProblem as problem:
        if "/" in name or ":" in name or loading.exists(name):
            raise
        raise EnvironmentProblem(f"{problem}; --draft takes {KINDS}") from None


def make_drafters(kinds: list[str], setup: Setup, seed: int) -> dict[str, Drafter]:
    """Drafters by the name that tables and records give them: never an absolute path."""
    check_kinds(kinds)
    # Early exit may change the engine, which other drafts take over: it comes first.
    made = {kind: make_drafter(kind, setup, seed) for kind in sorted(kinds, key=lambda kind: EXIT not in kind)}
    return {drafter_name(kind): made[kind] for kind in kinds}


def check_prompts(target: CachedModel, drafters: Iterable[Drafter], prompts: list[Prompt], max_new_tokens: int) -> None:
    """Before decoding: every prompt and its new tokens fit the target's context, and every prompt fits each draft's.

    UsageProblem where they do not. Text beyond a draft's context is only noted: rounds there draft fewer tokens.
    """
    for prompt in prompts:
        check_prompt(target, prompt.ids, max_new_tokens)
    for drafter in drafters:
        if said := drafter.check_prompts([prompt.id_list for prompt in prompts], max_new_tokens):
            note(said)
