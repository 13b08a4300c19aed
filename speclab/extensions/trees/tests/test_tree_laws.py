"""What decoding with trees commits has the target's law: many texts by chi-square, and a whole round enumerated."""

import functools

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.drafter import Drafter
from speclab.core.rounds import Draft
from speclab.drafts.feature import FeatureDrafter
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.draft import parents_of
from speclab.extensions.trees.fixed import TreeDrafter
from speclab.extensions.trees.merged import MergedDrafter
from speclab.extensions.trees.tests.test_accept_tree import corners_of, without
from speclab.models.cached import CachedModel
from tests.heads import block_heads, tiny_head
from tests.rules import FOR_TREES
from tests.test_filtered_laws import (
    Case,
    Drawn,
    Piece,
    Rows,
    Text,
    assert_lossless,
    feature_logits,
    head,
    model,
    of_head,
    one_more,
    pieces,
    target_row,
)
from tests.test_joint_laws import IDS, Law, check_law
from tests.tiny_models import DTYPE_ON, on_engine, perturbed, tiny


def on_c(model: torch.nn.Module) -> CachedModel:
    return CachedModel(model, fast=on_engine("c", model))


def drafter_of(kind: str, llama: torch.nn.Module) -> Drafter:
    if kind == "merged":  # chains of a lookup and of two models, whose equal beginnings are one branch
        models = [ModelDrafter(on_c(perturbed(llama, noise))) for noise in (0.2, 0.6)]
        return MergedDrafter([NgramDrafter(2, 1), *models])
    name, _, sampled = kind.partition(", ")
    drafters = {
        "model": lambda: ModelDrafter(on_c(perturbed(llama, 0.4))),
        "feature": lambda: FeatureDrafter(tiny_head(vocab=IDS).float()),
        "block": lambda: block_heads().BlockDrafter(block_heads().tiny_block_head(llama, markov_rank=4, std=0.7)),
    }
    return TreeDrafter(drafters[name](), (2, 2), bool(sampled))


LAWS = [("model, sampled", "token"), ("model", "follow"), ("feature", "follow"), ("block, sampled", "token")]
LAWS += [("merged", "token")]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "rule"), [law for law in LAWS if law[1] in FOR_TREES])
def test_joint_law_of_trees(kind, rule):
    """Tokens that are drawn without replacement, and the most probable ones, tested in turn or followed."""
    llama = tiny("llama", vocab_size=IDS, dtype=DTYPE_ON["c"])
    target, drafter = on_c(llama), drafter_of(kind, llama)
    target.hidden_layers = (0, 1)
    check_law(Law(1.0, 6), target, drafter, 1000, rule)


DRAWN = (-1, -1, 0, 1)  # the parents of the tokens of 2x1


def drawn_on_branches(n: int, rows: Rows, text: Text) -> list[Drawn]:
    """Every outcome. Children of one token are drawn without replacement; after the last possible one comes id 0."""
    found = [Drawn((), [], [], 1.0)]
    for node in range(n):
        found = [further for one in found for further in one_more(one, law_of_child(one.tokens, node, rows, text))]
    return found


def law_of_child(tokens: Text, node: int, rows: Rows, text: Text) -> list[float]:
    """What node is drawn from after the tokens before it."""
    siblings = tuple(token for token, above in zip(tokens, DRAWN, strict=False) if above == DRAWN[node])
    return [float(weight) for weight in without(rows(text + branch(tokens, DRAWN, DRAWN[node])), siblings)]


def branch(tokens: Text, parents: tuple[int, ...], node: int) -> Text:
    """The tokens from the root down to a node, itself included; node -1 is the root."""
    return (*branch(tokens, parents, parents[node]), tokens[node]) if node >= 0 else ()


def sides_of(rule: str, text: Text, draft: Draft, laws: list[list[float]]) -> list[list[Piece]]:
    """The pieces of the rule's numbers. Other rules than "token" draw the target's own token at every depth."""
    tokens, parents = tuple(draft.tokens[0].tolist()), parents_of(draft)[0].tolist()
    prefixes = [branch(tokens, tuple(parents), node) for node in range(-1, len(tokens))]
    rows = [target_row(text + prefix) for prefix in prefixes]
    return [*map(pieces, corners_of(tokens, parents, [*map(len, prefixes)], laws, rows, rule != "token"))]


TreeCase = functools.partial(Case, outcomes=drawn_on_branches, sides=sides_of)
CASES = {
    "sampled tree": TreeCase(lambda: TreeDrafter(model(), (2, 1), sampled=True), 4, 4),
    "sampled tree of a head": TreeCase(
        lambda: TreeDrafter(FeatureDrafter(head()), (2, 1), sampled=True), 4, 4, of_head(feature_logits)
    ),
    "tree": TreeCase(lambda: TreeDrafter(model(), (2, 2)), 6, 0),
    "tree:best": TreeCase(lambda: BestTreeDrafter(model(), width=3), 5, 0),
    "merged": TreeCase(lambda: MergedDrafter([NgramDrafter(2, 1), model(), model(0.6)]), 6, 0),
}
PAIRS = [(name, rule) for name in CASES for rule in FOR_TREES if rule == "token" or name != "sampled tree of a head"]


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_a_round_leaves_the_targets_law(name, rule, monkeypatch):
    assert_lossless(CASES[name], rule, monkeypatch)
