"""Adds drafts with branches to the lab: `--draft tree:SHAPE:MODEL`, `sampled-tree:SHAPE:MODEL` and `merge:A+B`."""

import re

import torch
from torch import Tensor

from speclab.core.drafter import Drafter
from speclab.drafts.registry import Choice, add, lookups, read
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.draft import reads
from speclab.extensions.trees.fixed import TreeDrafter, tokens_in
from speclab.extensions.trees.merged import MergedDrafter
from speclab.models.cached import CachedModel
from speclab.models.checks import OTHER_DRAFT, check_passes, text_for_rows
from speclab.models.family import check_family
from speclab.models.setup import Setup
from speclab.system.errors import UsageProblem

MOST_IN_TREE = 64  # tokens
BEST = "best"  # in the place of a shape: the most probable branches, as many tokens as -k says


def read_tree(argument: str, text: str) -> Choice:
    """Read SHAPE:MODEL. The first word of `text` says whether the tokens of the tree are drawn."""
    word = text.partition(":")[0]
    is_drawn = word == "sampled-tree"
    typed, _, name = argument.partition(":")
    wanted = f"the shape of a tree and a draft, for example {word}:2x2x1:feature"
    wanted += f" or {word}:{BEST}:feature" * (not is_drawn)
    shape = None if typed == BEST and not is_drawn else _shape(typed, text, wanted)
    model = read(name) if name else None
    if model is None or not model.can_branch:
        raise UsageProblem(
            f"--draft {text}: a tree needs a draft that knows several next tokens: give model, feature or block, for "
            f"example {word}:{typed}:feature"
        )
    label = BEST if shape is None else "x".join(map(str, shape))

    def build(setup: Setup, seed: int) -> Drafter:
        check_tree(setup.target)
        drafter = _growing(model, setup, seed)
        return BestTreeDrafter(drafter) if shape is None else TreeDrafter(drafter, shape, is_drawn)

    return Choice(
        text,
        f"{word}:{label}:{model.name}",
        build,
        branches=True,
        any_family=False,
        no_auto=f"it chooses the length of a chain, and {text} drafts trees",
    )


def _shape(typed: str, text: str, wanted: str) -> tuple[int, ...]:
    """Read the children by depth of `2x2x1`. Raises UsageProblem, with what is `wanted`, where this is no shape."""
    if not re.fullmatch(r"[1-9][0-9]?(x[1-9][0-9]?){0,63}", typed):
        raise UsageProblem(f"--draft {text}: give {wanted}")
    shape = tuple(map(int, typed.split("x")))
    if (n := tokens_in(shape)) > MOST_IN_TREE:
        raise UsageProblem(f"--draft {text}: this tree has {n} tokens; give one of at most {MOST_IN_TREE}")
    return shape


def read_merge(argument: str, text: str) -> Choice:
    """Read A+B, or more drafts than two."""
    names = argument.split("+")
    parts = [read(name) for name in names] if len(set(names)) == len(names) >= 2 and all(names) else []
    if not parts or not all(part.is_lookup or part.can_branch for part in parts):
        raise UsageProblem(
            f"--draft {text}: give different drafts with + between them, lookups ({' or '.join(lookups())}), model, "
            "feature or block, for example merge:suffix+model"
        )

    def build(setup: Setup, seed: int) -> Drafter:
        check_tree(setup.target)
        return MergedDrafter(
            [part.make(setup, seed) if part.is_lookup else _growing(part, setup, seed) for part in parts]
        )

    return Choice(
        text,
        f"merge:{'+'.join(part.name for part in parts)}",
        build,
        branches=True,
        any_family=False,
        no_auto=f"it chooses the length of one draft, and --draft {text} has several",
    )


def _growing(choice: Choice, setup: Setup, seed: int) -> Drafter:
    """Return a draft that can be a tree; EnvironmentProblem for a model that cannot read one."""
    drafter = choice.make(setup, seed)
    for model in drafter.models:
        check_family(model.model, "a tree", OTHER_DRAFT, crops=False)
        check_tree(model)
    return drafter


def check_tree(target: CachedModel) -> None:
    """Prove that a pass over two branches gives the uncached logits of one of them, and that the text goes on behind
    it when it is kept; raise EnvironmentProblem where they differ. The text is longer than a window, where such a
    pass is quick."""
    model, cached, reason = target.model, target.with_own_cache(), "cannot be given the branches of a tree"
    text = text_for_rows(model, reason)
    n = text.shape[1] - 5

    def logits() -> Tensor:
        cached.prefill(text[:, :n])
        wrong = text[:, :2]  # the text's beginning does not continue it here
        tokens = torch.cat([text[:, n : n + 1], wrong, text[:, n + 1 : n + 3]], dim=1)
        parents = torch.tensor([[-1, 0, -1, 2]], device=text.device)
        tree_logits = cached.forward(tokens, reads(parents))
        cached.keep([2, 3])
        return torch.cat([tree_logits[:, [0, 3, 4]], cached.forward(text[:, n + 3 :])], dim=1)

    check_passes(model, reason, logits, [text], 5)


add("tree:SHAPE:MODEL", read_tree, "a tree of a shape such as 2x2x1, or best: the -k most probable")
add("sampled-tree:SHAPE:MODEL", read_tree, "the same, its tokens drawn without replacement")
add("merge:A+B", read_merge, "chains of several drafts merged into one tree (SpecInfer)")
