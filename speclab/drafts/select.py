"""From `--draft KIND` to a drafter, and whether a run's prompts fit it."""

import difflib
import sys
from collections.abc import Iterable

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.rounds import Drafter
from speclab.drafts.block import BlockDrafter
from speclab.drafts.exit import ExitDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.heads.block import BlockHead
from speclab.drafts.heads.exit_files import exit_layer_of, read_adapter
from speclab.drafts.heads.files import FORMATS, read_head
from speclab.drafts.hybrid import Choosing, HybridDrafter, parts
from speclab.drafts.lengths import AutoLength
from speclab.drafts.oracle import NEEDS_GREEDY, FreeOracleDrafter, OracleDraft, OracleModelDrafter
from speclab.drafts.retokenized import RetokenizedDrafter
from speclab.drafts.suffix import SuffixDrafter
from speclab.drafts.tree import BestTreeDrafter, GrowingDrafter
from speclab.drafts.trees.auto import LARGEST, AutoTreeDrafter
from speclab.drafts.trees.fixed import StaticTreeDrafter, TreeDrafter, tokens_in
from speclab.drafts.trees.merged import MergedDrafter
from speclab.models import loading, sizes
from speclab.models.cached import CachedModel, check_prompt
from speclab.models.checks import check_not_recurrent, check_split, check_tree
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.terminal import note

KINDS = (
    "model, ngram, suffix, feature, feature:wide, feature:HEAD, block, block:HEAD, exit:N, hybrid, "
    "hybrid:LOOKUP+MODEL, merge:A+B, tree:SHAPE:MODEL, sampled-tree:SHAPE:MODEL, retokenize:NAME, dial:0.8, lab:SIZE, "
    "a folder or a hub name"
)
LOOKUPS: dict[str, type[NgramDrafter] | type[SuffixDrafter]] = {"ngram": NgramDrafter, "suffix": SuffixDrafter}
USUAL_HYBRID = "suffix+feature"
MERGE = "merge"
AS_WIDE = "wide"  # feature:wide, the lab's head padded to the width of a padded target
LAB_HEADS = {kind: str(loading.LAB_PAIR / kind) for kind in FORMATS}
TREES = {"tree": False, "sampled-tree": True}  # whether their tokens are drawn
RETOKENIZE = "retokenize"  # a model with another tokenizer
NEVER_IN_HYBRIDS = ("hybrid", "dial", MERGE, RETOKENIZE, *TREES)
MOST_IN_TREE = 64  # tokens
BEST = "best"  # in the place of a shape: the most probable branches, as many tokens as -k says
STATIC = "static"  # the same: one shape, the best one for this draft
EXIT, LAB_EXIT = "exit", str(loading.LAB_PAIR / "exit")
NO_STATES = "use --draft model or --draft ngram"
NO_SPLIT = "early exit runs the target in two parts, and CUDA graphs do not"
# What may be meant by a name that is nearly one of these: the lab's kinds, and words of other programs for them.
WORDS = (
    *("model", "ngram", "suffix", "feature", "hybrid", "eagle3", "block", "dflash", "dspark", "dial:0.8", "none"),
    *("exit", "early-exit", "layerskip", "kangaroo", "tree", "sampled-tree", "merge"),
    *("retokenize", "universal", "lookup", "prompt-lookup", "assistant", "draft", "draft-model"),
)


def check_kind(kind: str, greedy: bool = True) -> None:
    """Raise UsageProblem where `--draft KIND` is none, before a model is loaded or the hub is asked for one.

    Hub names have a slash, but for a few old ones (gpt2). So a name without one that is no folder is refused where it
    is nearly a kind, and goes to the hub otherwise. greedy: whether the temperature is 0, which a dial needs.
    """
    word, _, rest = kind.partition(":")
    if word == "dial":
        number, _, name = rest.partition(":")
        _accuracy(kind, number)
        if not greedy:
            raise UsageProblem(NEEDS_GREEDY)
        if name == "ngram" or (name not in ("", "free", "model") and _mistyped(name)):
            raise UsageProblem(f"--draft {kind}: give the dial a model to pay for, for example dial:0.8:model")
        return
    of_own = {EXIT: _check_exit, RETOKENIZE: _check_retokenize, **dict.fromkeys(LAB_HEADS, _check_head)}
    if word in of_own:
        of_own[word](kind, word, rest)
        return
    if word == "hybrid" or word in TREES:
        _, model = _of_hybrid(kind) if word == "hybrid" else _of_tree(kind)
        check_kind(model, greedy)
        return
    if word == MERGE:
        for model in _of_merge(kind):
            check_kind(model, greedy)
        return
    if "," in kind and not loading.exists(kind):
        raise UsageProblem(f"--draft {kind}: this takes one draft; compare.py takes several")
    if kind == "model" or kind in LOOKUPS:
        return
    if _mistyped(kind):
        raise UsageProblem(f"unknown draft kind {kind!r}; use {KINDS}")
    loading.check_place(kind)


def _check_head(kind: str, word: str, rest: str) -> None:
    """Refuse a head that the lab does not have, and a name that can be no head's."""
    own = kind in (word, f"feature:{AS_WIDE}")
    if not own and _mistyped(rest):
        raise UsageProblem(f"--draft {kind}: give a head's folder or hub name, for example {word}:build/{word}/out")
    if not own:
        loading.check_place(rest)
    elif not loading.exists(LAB_HEADS[word]):
        raise UsageProblem(f"--draft {word}: the lab has no such head yet; type: python -m training.drafts {word}")


def _check_retokenize(kind: str, word: str, rest: str) -> None:
    """Refuse a name that can be no model's."""
    if _mistyped(rest):
        raise UsageProblem(
            f"--draft {kind}: give a model's folder or hub name, for example {word}:openai-community/gpt2"
        )
    loading.check_place(rest)


def _check_exit(kind: str, word: str, rest: str) -> None:
    """Refuse a layer that the lab's adapter does not read, and a name that can be no adapter's."""
    train = f"python -m training.drafts {word} --exit-layer"
    trained = exit_layer_of(LAB_EXIT)
    if kind == EXIT:
        if trained is None:
            raise UsageProblem(f"--draft {kind}: the lab has no such adapter yet; type: {train} 2")
    elif rest.lstrip("-").isdecimal():
        n_layers = loading.layers_of(loading.LAB_TARGET)
        if not 1 <= int(rest) < n_layers:
            raise UsageProblem(
                f"--draft {kind}: the lab's target has {n_layers} layers; give a number from 1 to {n_layers - 1}"
            )
        if int(rest) != trained:
            has = "none" if trained is None else f"one for layer {trained} (--draft exit:{trained})"
            raise UsageProblem(
                f"--draft {kind}: there is no adapter for layer {rest}, the lab has {has}; type: {train} {rest}, then "
                f"--draft exit:build/exit-{rest}/out"
            )
    elif _mistyped(rest) or ("/" not in rest and not loading.exists(rest)):
        raise UsageProblem(
            f"--draft {kind}: give a number of layers or an adapter's folder, for example exit:{trained or 2} or "
            "exit:build/exit-2/out"
        )
    else:
        loading.check_place(rest)


def check_kinds(kinds: list[str]) -> None:
    """Raise UsageProblem where these are no drafts of one run, before a model is loaded."""
    if not kinds:
        raise UsageProblem("--draft is empty; give at least one kind, for example --draft model,ngram")
    for kind in kinds:
        check_kind(kind)
    names = [drafter_name(kind) for kind in kinds]
    if len(set(names)) < len(names):
        raise UsageProblem(f"--draft names the same draft twice ({', '.join(names)}); leave one out or rename it")


def _mistyped(name: str) -> bool:
    """Whether a name is empty, or nearly a kind and neither a folder nor surely one of the hub; lab:SIZE is parsed."""
    if sizes.is_lab_size(name):
        sizes.parse_size(name)
        return False
    if not name.strip():
        return True
    if loading.exists(name) or "/" in name:
        return False
    return bool(difflib.get_close_matches(name.strip().lower(), WORDS, 1, 0.7))


def make_drafter(kind: str, setup: Setup, seed: int = 0) -> Drafter:
    """The drafter that `--draft KIND` means, for this target."""
    check_kind(kind, setup.sampling.greedy)
    word, _, rest = kind.partition(":")
    if kind in LOOKUPS:
        return LOOKUPS[kind]()
    if word == "hybrid":
        lookup, model = _of_hybrid(kind)
        return HybridDrafter(LOOKUPS[lookup](), make_drafter(model, setup, seed))
    if word in TREES:
        shape, model = _of_tree(kind)
        check_tree(setup.target)
        drafter = _growing(model, setup, seed)
        if isinstance(shape, str):
            return StaticTreeDrafter(drafter) if shape == STATIC else BestTreeDrafter(drafter)
        return TreeDrafter(drafter, shape, TREES[word])
    if word == MERGE:
        check_tree(setup.target)
        made = (LOOKUPS[one]() if one in LOOKUPS else _growing(one, setup, seed) for one in _of_merge(kind))
        return MergedDrafter([*made])
    if word == "dial":
        number, _, name = rest.partition(":")
        accuracy = _accuracy(kind, number)
        if name == "free":
            return FreeOracleDrafter(accuracy, seed)
        return OracleModelDrafter(_draft_model(name or "model", setup), accuracy, seed)
    if word in LAB_HEADS:
        target = setup.target
        check_not_recurrent(target.model, f"cannot be the target of --draft {kind}", NO_STATES)
        own_width = loading.lab_width() if sizes.is_lab_size(setup.target_name) else None
        as_wide = kind == f"feature:{AS_WIDE}"
        if as_wide and own_width is None:
            raise UsageProblem(f"--draft {kind} is for a padded target; give --target lab:SIZE, or --draft feature")
        name = LAB_HEADS[word] if as_wide or not rest else rest
        head, ids = read_head(name, target.model, word, own_width, as_wide)
        target.hidden_layers = tuple(sorted({*target.hidden_layers, *head.config.layers}))
        return BlockDrafter(head, ids) if isinstance(head, BlockHead) else FeatureDrafter(head, ids)
    if word == EXIT:
        return _exit_drafter(rest, setup)
    if word == RETOKENIZE:
        return RetokenizedDrafter(*setup.load_other_draft(rest), setup.tokenizer, setup.target.vocab_size)
    return ModelDrafter(_draft_model(kind, setup))


def _growing(kind: str, setup: Setup, seed: int) -> GrowingDrafter:
    """A draft that can be a tree; EnvironmentProblem for a model that cannot read one."""
    drafter = make_drafter(kind, setup, seed)
    assert isinstance(drafter, GrowingDrafter)
    if isinstance(drafter, ModelDrafter):
        check_tree(drafter.draft)
    return drafter


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


def _of_hybrid(kind: str) -> tuple[str, str]:
    """The lookup and the model of `hybrid:LOOKUP+MODEL`; UsageProblem where it is none."""
    lookup, plus, model = (kind.removeprefix("hybrid").removeprefix(":") or USUAL_HYBRID).partition("+")
    if lookup not in LOOKUPS or not plus or model in LOOKUPS or model.partition(":")[0] in NEVER_IN_HYBRIDS:
        raise UsageProblem(
            f"--draft {kind}: give a lookup ({' or '.join(LOOKUPS)}) and a draft with a model, for example "
            f"hybrid:{USUAL_HYBRID}"
        )
    return lookup, model


def _of_merge(kind: str) -> list[str]:
    """The drafts of `merge:A+B`; UsageProblem where it is none."""
    kinds = kind.removeprefix(MERGE).removeprefix(":").split("+")
    if len(set(kinds)) < max(2, len(kinds)) or not all(one in LOOKUPS or _grows(one) for one in kinds):
        raise UsageProblem(
            f"--draft {kind}: give different drafts with + between them, lookups ({' or '.join(LOOKUPS)}), model, "
            f"feature or block, for example {MERGE}:suffix+model"
        )
    return kinds


def is_tree(kind: str) -> bool:
    """Whether a kind drafts trees."""
    return kind.partition(":")[0] in (*TREES, MERGE)


def with_trees(kinds: list[str], shape: str | None) -> list[str]:
    """The kinds, and for `--tree SHAPE` behind them a tree of each that can be one.

    UsageProblem where none can, or where that is no shape.
    """
    if shape is None:
        return kinds
    _shape_of(shape, False, f"--tree {shape}", f"the shape of a tree, for example 2x2x1, or {BEST}, or {STATIC}")
    trees = [f"tree:{shape}:{kind}" for kind in kinds if _grows(kind)]
    if not trees:
        raise UsageProblem(f"--tree {shape}: none of these drafts can be a tree; give --draft model, feature or block")
    return [*kinds, *trees]


def _grows(kind: str) -> bool:
    """Whether a draft knows several next tokens, and what comes after each."""
    return bool(kind) and kind not in LOOKUPS and kind.partition(":")[0] not in (EXIT, *NEVER_IN_HYBRIDS)


def lengths_of(drafter: Drafter, asked: list[int]) -> list[int]:
    """How many tokens it drafts: `asked`, of a merged draft by each of its drafts; but a tree of a fixed shape has as
    many as that, and one on auto its own limit."""
    if isinstance(drafter, AutoTreeDrafter) or (isinstance(drafter, StaticTreeDrafter) and drafter.on_auto):
        return [LARGEST]
    if isinstance(drafter, MergedDrafter):
        return [len(drafter.drafters) * k for k in asked]
    return [drafter.n_tokens] if isinstance(drafter, TreeDrafter) else asked


def _of_tree(kind: str) -> tuple[tuple[int, ...] | str, str]:
    """The shape and the model of `tree:2x2x1:MODEL`, of `tree:best:MODEL` its name; UsageProblem where it is none."""
    word, _, rest = kind.partition(":")
    name, _, model = rest.partition(":")
    wanted = f"the shape of a tree and a draft, for example {word}:2x2x1:feature"
    wanted += f", {word}:{BEST}:feature or {word}:{STATIC}:feature" * (not TREES[word])
    shape = _shape_of(name, TREES[word], f"--draft {kind}", wanted)
    if not _grows(model):
        raise UsageProblem(
            f"--draft {kind}: a tree needs a draft that knows several next tokens: give model, feature or block, for "
            f"example {word}:{name}:feature"
        )
    return shape, model


def _shape_of(name: str, is_drawn: bool, given: str, wanted: str) -> tuple[int, ...] | str:
    """Children by depth of `2x2x1`; `best` and `static` stay names, which trees whose tokens are drawn have not.

    UsageProblem where the name is no shape, with what was `given` and what is `wanted`.
    """
    if name in (BEST, STATIC) and not is_drawn:
        return name
    numbers = name.split("x")
    if not all(number.isdecimal() and 0 < int(number) <= MOST_IN_TREE for number in numbers):
        raise UsageProblem(f"{given}: give {wanted}")
    shape = tuple(map(int, numbers))
    if (n := tokens_in(shape)) > MOST_IN_TREE:
        raise UsageProblem(f"{given}: this tree has {n} tokens; give one of at most {MOST_IN_TREE}")
    return shape


def _draft_model(name: str, setup: Setup) -> CachedModel:
    """A draft model by its name. A name that may have been meant as a kind gets the kinds into its error."""
    try:
        return setup.load_draft(loading.LAB_DRAFT if name == "model" else name)
    except EnvironmentProblem as problem:
        if "/" in name or ":" in name or loading.exists(name):
            raise
        raise EnvironmentProblem(f"{problem}; --draft takes {KINDS}") from None


def _accuracy(kind: str, number: str) -> float:
    """The number of dial:NUMBER; UsageProblem where it is none, before a model is loaded."""
    try:
        return OracleDraft(float(number)).accuracy
    except ValueError:
        raise UsageProblem(f"--draft {kind}: give the dial a number from 0 to 1, for example dial:0.8") from None


def make_drafters(kinds: list[str], setup: Setup, seed: int) -> dict[str, Drafter]:
    """Drafters by the name that tables and records give them: never an absolute path."""
    check_kinds(kinds)
    # Early exit may change the engine, which other drafts take over: it comes first.
    made = {kind: make_drafter(kind, setup, seed) for kind in sorted(kinds, key=lambda kind: EXIT not in kind)}
    return {drafter_name(kind): made[kind] for kind in kinds}


def can_choose(drafter: Drafter) -> bool:
    """Whether `-k auto` can choose: a tree of one shape has its size, and merged drafts have several."""
    return not isinstance(drafter, TreeDrafter | MergedDrafter)


def auto_length(kind: str, drafter: Drafter) -> Choosing:
    """The drafter with its lengths, of a hybrid its model's, of the best trees their sizes, chosen in every round.

    UsageProblem for a dial, which knows what will be right, for trees of one shape, and for merged drafts.
    """
    if isinstance(drafter, MergedDrafter):
        raise UsageProblem(f"-k auto chooses the length of one draft, and --draft {kind} has several; give -k a number")
    if isinstance(drafter, TreeDrafter):
        raise UsageProblem(
            f"-k auto chooses how large a tree is, and --draft {kind or 'tree:SHAPE'} has one shape; give --tree best, "
            "--tree static, or leave -k out"
        )
    if isinstance(drafter, BestTreeDrafter):
        return AutoTreeDrafter(drafter.drafter)
    if isinstance(drafter, StaticTreeDrafter):
        return StaticTreeDrafter(drafter.drafter, on_auto=True)
    if isinstance(drafter, OracleDraft):
        raise UsageProblem(f"-k auto chooses by what was accepted, and --draft {kind} replays the text; give numbers")
    if isinstance(drafter, HybridDrafter):
        return HybridDrafter(drafter.lookup, AutoLength(drafter.drafter))
    return AutoLength(drafter)


def drafter_name(kind: str) -> str:
    """What tables and records call a draft."""
    word, _, rest = kind.partition(":")
    if word in LAB_HEADS and kind not in (word, f"feature:{AS_WIDE}"):
        return f"{word}:{loading.short_name(rest)}"
    if word == RETOKENIZE:
        return f"{RETOKENIZE}:{loading.short_name(rest)}"
    if word == EXIT:
        own = not rest or rest.isdecimal()
        return f"{EXIT}:{int(rest or exit_layer_of(LAB_EXIT) or 0) if own else loading.short_name(rest)}"
    if word == "hybrid" and rest:
        lookup, model = _of_hybrid(kind)
        return f"hybrid:{lookup}+{drafter_name(model)}"
    if word == MERGE:
        return f"{MERGE}:{'+'.join(map(drafter_name, _of_merge(kind)))}"
    if word in TREES:
        shape, model = _of_tree(kind)
        return f"{word}:{shape if isinstance(shape, str) else 'x'.join(map(str, shape))}:{drafter_name(model)}"
    if word != "dial":
        return loading.short_name(kind)
    accuracy, _, model = rest.partition(":")
    return f"dial:{accuracy}" + (f":{loading.short_name(model)}" if model else "")


def check_prompts(target: CachedModel, drafters: Iterable[Drafter], prompts: list[Prompt], max_new_tokens: int) -> None:
    """Before decoding: every prompt and its new tokens fit the target's context, and every prompt fits each draft's.

    UsageProblem where they do not. Text beyond a draft's context is only noted: rounds there draft fewer tokens.
    """
    for prompt in prompts:
        check_prompt(target, prompt.ids, max_new_tokens)
    longest = max(prompt.ids.shape[1] for prompt in prompts)
    proposing = [part for drafter in drafters for part in parts(drafter)]
    for draft in (part.draft for part in proposing if isinstance(part, ModelDrafter)):
        room = sys.maxsize if draft.max_length is None else draft.max_length
        if longest > room:
            raise UsageProblem(
                f"a prompt has {longest} tokens and the draft model's context only {room}; shorten the prompt or use "
                "--draft ngram"
            )
        if longest + max_new_tokens > room + 1:
            note(f"the draft model's context is {room} tokens: near and beyond it rounds draft fewer, or none")
