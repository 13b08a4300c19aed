"""What `--draft KIND` may be: names, their parts, and whether they are right, before a model is loaded."""

import difflib
from collections.abc import Callable

from draft_models import NgramDrafter
from speclab.core.drafter import Lookup
from speclab.drafts.heads.exit_files import exit_layer_of
from speclab.drafts.heads.files import FORMATS
from speclab.drafts.oracle import NEEDS_GREEDY, OracleDraft
from speclab.drafts.suffix import SuffixDrafter
from speclab.drafts.trees.fixed import tokens_in
from speclab.models import loading
from speclab.models.padded import sizes
from speclab.system.errors import UsageProblem
from speclab.system.numbers import whole_number

# A lookup of its own is one line here: what makes it gets `n_ids`, below which the target's ids are.
LOOKUPS: dict[str, Callable[..., Lookup]] = {
    "ngram": NgramDrafter,
    "suffix": SuffixDrafter,
}
KINDS = (
    f"model, {', '.join(LOOKUPS)}, feature, feature:HEAD, block, block:HEAD, exit:N, hybrid, "
    "hybrid:LOOKUP+MODEL, merge:A+B, tree:SHAPE:MODEL, sampled-tree:SHAPE:MODEL, retokenize:NAME, intersect:NAME, "
    "dial:0.8, lab:SIZE, a folder or a hub name"
)
USUAL_HYBRID = "suffix+feature"
MERGE = "merge"
DIAL = "dial"
LAB_HEADS = {kind: str(loading.LAB_PAIR / kind) for kind in FORMATS}
TREES = {"tree": False, "sampled-tree": True}  # whether their tokens are drawn
RETOKENIZE = "retokenize"  # a model with another tokenizer, whose text is tokenized again for the target
INTERSECT = "intersect"  # the same, by the tokens that both have
OTHERS = (RETOKENIZE, INTERSECT)
NEVER_IN_HYBRIDS = ("hybrid", DIAL, MERGE, RETOKENIZE, *TREES)
MOST_IN_TREE = 64  # tokens
BEST = "best"  # in the place of a shape: the most probable branches, as many tokens as -k says
EXIT, LAB_EXIT = "exit", str(loading.LAB_PAIR / "exit")
# What may be meant by a name that is nearly one of these: the lab's kinds, and words of other programs for them.
WORDS = (
    *("model", *LOOKUPS, "feature", "hybrid", "eagle3", "block", "dflash", "dspark", "dial:0.8", "none"),
    *("exit", "early-exit", "layerskip", "kangaroo", "tree", "sampled-tree", "merge"),
    *("retokenize", "intersect", "universal", "lookup", "prompt-lookup", "assistant", "draft", "draft-model"),
)


def check_kind(kind: str, greedy: bool = True) -> None:
    """Raise UsageProblem where `--draft KIND` is none, before a model is loaded or the hub is asked for one.

    Hub names have a slash, but for a few old ones (gpt2). So a name without one that is no folder is refused where it
    is nearly a kind, and goes to the hub otherwise. greedy: whether the temperature is 0, which a dial needs.
    """
    word, _, rest = kind.partition(":")
    if is_dial(kind):
        number, _, name = rest.partition(":")
        accuracy_of(kind, number)
        if not greedy:
            raise UsageProblem(NEEDS_GREEDY)
        if (
            name == "ngram"
            or name.partition(":")[0] in OTHERS
            or (name not in ("", "free", "model") and _mistyped(name))
        ):
            raise UsageProblem(f"--draft {kind}: give the model whose cost the dial takes, for example dial:0.8:model")
        return
    of_own = {EXIT: _check_exit, **dict.fromkeys(OTHERS, _check_other)}
    of_own |= dict.fromkeys(LAB_HEADS, _check_head)
    if word in of_own:
        of_own[word](kind, word, rest)
        return
    if word == "hybrid" or word in TREES:
        _, model = of_hybrid(kind) if word == "hybrid" else of_tree(kind)
        check_kind(model, greedy)
        return
    if word == MERGE:
        for model in of_merge(kind):
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
    if kind != word and _mistyped(rest):
        raise UsageProblem(f"--draft {kind}: give a head's folder or hub name, for example {word}:build/{word}/out")
    if kind != word:
        loading.check_place(rest)
    elif not loading.exists(LAB_HEADS[word]):
        raise UsageProblem(f"--draft {word}: the lab has no such head yet; type: python -m training.heads {word}")


def _check_other(kind: str, word: str, rest: str) -> None:
    """Refuse a name that can be no model's."""
    if _mistyped(rest):
        raise UsageProblem(
            f"--draft {kind}: give a model's folder or hub name, for example {word}:openai-community/gpt2"
        )
    loading.check_place(rest)


def _check_exit(kind: str, word: str, rest: str) -> None:
    """Refuse a layer that the lab's adapter does not read, and a name that can be no adapter's."""
    train = f"python -m training.heads {word} --exit-layer"
    trained = exit_layer_of(LAB_EXIT)
    if kind == EXIT:
        if trained is None:
            raise UsageProblem(f"--draft {kind}: the lab has no such adapter yet; type: {train} 2")
    elif rest.removeprefix("-").isdecimal():
        n_layers = loading.lab_layers()
        number = whole_number(rest)
        if number is None or not 1 <= number < n_layers:
            raise UsageProblem(
                f"--draft {kind}: the lab's target has {n_layers} layers; give a number from 1 to {n_layers - 1}"
            )
        if number != trained:
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


def of_hybrid(kind: str) -> tuple[str, str]:
    """The lookup and the model of `hybrid:LOOKUP+MODEL`; UsageProblem where it is none."""
    lookup, plus, model = (kind.removeprefix("hybrid").removeprefix(":") or USUAL_HYBRID).partition("+")
    if lookup not in LOOKUPS or not plus or model in LOOKUPS or model.partition(":")[0] in NEVER_IN_HYBRIDS:
        raise UsageProblem(
            f"--draft {kind}: give a lookup ({' or '.join(LOOKUPS)}) and a draft with a model, for example "
            f"hybrid:{USUAL_HYBRID}"
        )
    return lookup, model


def of_merge(kind: str) -> list[str]:
    """The drafts of `merge:A+B`; UsageProblem where it is none."""
    kinds = kind.removeprefix(MERGE).removeprefix(":").split("+")
    if len(set(kinds)) < max(2, len(kinds)) or not all(one in LOOKUPS or grows(one) for one in kinds):
        raise UsageProblem(
            f"--draft {kind}: give different drafts with + between them, lookups ({' or '.join(LOOKUPS)}), model, "
            f"feature or block, for example {MERGE}:suffix+model"
        )
    return kinds


def is_tree(kind: str) -> bool:
    """Whether a kind drafts trees."""
    return kind.partition(":")[0] in (*TREES, MERGE)


def is_dial(kind: str) -> bool:
    """Whether a kind drafts what the target will say, with mistakes that are drawn."""
    return kind.partition(":")[0] == DIAL


def check_auto(kind: str) -> None:
    """Raise UsageProblem where `-k auto` cannot choose the lengths of this kind of draft."""
    if kind.partition(":")[0] == MERGE:
        raise UsageProblem(f"-k auto chooses the length of one draft, and --draft {kind} has several; give -k a number")
    if is_tree(kind):
        raise UsageProblem(f"-k auto chooses the length of a chain, and {kind} drafts trees; give -k a number")
    if is_dial(kind):
        raise UsageProblem(f"-k auto chooses by what was accepted, and --draft {kind} replays the text; give numbers")


def with_trees(kinds: list[str], shape: str | None) -> list[str]:
    """The kinds, and for `--tree SHAPE` behind them a tree of each that can be one.

    UsageProblem where none can, or where that is no shape.
    """
    if shape is None:
        return kinds
    _shape_of(shape, False, f"--tree {shape}", f"the shape of a tree, for example 2x2x1, or {BEST}")
    trees = [f"tree:{shape}:{kind}" for kind in kinds if grows(kind)]
    if not trees:
        raise UsageProblem(f"--tree {shape}: none of these drafts can be a tree; give --draft model, feature or block")
    return [*kinds, *trees]


def grows(kind: str) -> bool:
    """Whether a draft knows several next tokens, and what comes after each."""
    return bool(kind) and kind not in LOOKUPS and kind.partition(":")[0] not in (EXIT, *NEVER_IN_HYBRIDS)


def of_tree(kind: str) -> tuple[tuple[int, ...] | str, str]:
    """The shape and the model of `tree:2x2x1:MODEL`, of `tree:best:MODEL` its name; UsageProblem where it is none."""
    word, _, rest = kind.partition(":")
    name, _, model = rest.partition(":")
    wanted = f"the shape of a tree and a draft, for example {word}:2x2x1:feature"
    wanted += f" or {word}:{BEST}:feature" * (not TREES[word])
    shape = _shape_of(name, TREES[word], f"--draft {kind}", wanted)
    if not grows(model):
        raise UsageProblem(
            f"--draft {kind}: a tree needs a draft that knows several next tokens: give model, feature or block, for "
            f"example {word}:{name}:feature"
        )
    return shape, model


def _shape_of(name: str, is_drawn: bool, given: str, wanted: str) -> tuple[int, ...] | str:
    """Children by depth of `2x2x1`; `best` stays a name, which trees whose tokens are drawn have not.

    UsageProblem where the name is no shape, with what was `given` and what is `wanted`.
    """
    if name == BEST and not is_drawn:
        return name
    numbers = name.split("x")
    if not all(0 < (whole_number(number) or 0) <= MOST_IN_TREE for number in numbers):
        raise UsageProblem(f"{given}: give {wanted}")
    shape = tuple(map(int, numbers))
    if (n := tokens_in(shape)) > MOST_IN_TREE:
        raise UsageProblem(f"{given}: this tree has {n} tokens; give one of at most {MOST_IN_TREE}")
    return shape


def accuracy_of(kind: str, number: str) -> float:
    """The number of dial:NUMBER; UsageProblem where it is none, before a model is loaded."""
    try:
        return OracleDraft(float(number)).accuracy
    except ValueError:
        raise UsageProblem(f"--draft {kind}: give the dial a number from 0 to 1, for example dial:0.8") from None


def drafter_name(kind: str) -> str:
    """What tables and records call a draft."""
    word, _, rest = kind.partition(":")
    if word in OTHERS or (word in LAB_HEADS and kind != word):
        return f"{word}:{loading.short_name(rest)}"
    if word == EXIT:
        number = whole_number(rest) if rest else exit_layer_of(LAB_EXIT) or 0
        return f"{EXIT}:{loading.short_name(rest) if number is None else number}"
    if word == "hybrid" and rest:
        lookup, model = of_hybrid(kind)
        return f"hybrid:{lookup}+{drafter_name(model)}"
    if word == MERGE:
        return f"{MERGE}:{'+'.join(map(drafter_name, of_merge(kind)))}"
    if word in TREES:
        shape, model = of_tree(kind)
        return f"{word}:{shape if isinstance(shape, str) else 'x'.join(map(str, shape))}:{drafter_name(model)}"
    if not is_dial(kind):
        return loading.short_name(kind)
    accuracy, _, model = rest.partition(":")
    return f"dial:{accuracy}" + (f":{loading.short_name(model)}" if model else "")
