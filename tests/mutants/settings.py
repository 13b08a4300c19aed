"""Bugs that show at a temperature other than 1, with both filters, or in a tree's drafting pass."""

from collections.abc import Callable

import torch
from torch import Tensor

import draft_models
from speclab.core import accept as accept_module
from speclab.core.rounds import Draft
from speclab.core.sampling import Drawn, Sampling, without_replacement
from speclab.drafts import feature as feature_module
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.lengths import AutoLength
from speclab.extensions.trees import accept as tree_module
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.fixed import TreeDrafter
from speclab.extensions.trees.growing import GrowingFeature
from tests.mutants.bugs import mutant

TREE = "drafts/test_tree"
LAW, FILE = "a_round_leaves_the_targets_law", "test_filtered_laws"


def unfiltered(sampling: Sampling) -> Sampling:
    """The same temperature, and every token."""
    return Sampling(sampling.temperature)


# ---------------------------------------------------------------- trees


def change_rule(rule: Callable[[], Callable], wrong: Callable[[Sampling], Sampling]) -> None:
    """This rule judges as `wrong(sampling)` says."""
    right = accept_module._judged

    def judged(logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Tensor, judge: Callable, *numbers):
        if judge is rule() and not sampling.greedy:
            sampling = wrong(sampling)
        return right(logits, draft, sampling, uniforms, judge, *numbers)

    accept_module._judged = judged


@mutant(15, LAW, file=FILE)
def judges_a_tree_without_top_p() -> None:
    """judges a tree by the target's distribution before top-p"""
    change_rule(lambda: tree_module.accept_tree, lambda sampling: Sampling(sampling.temperature, sampling.top_k))


@mutant(15, LAW, file=FILE)
def draws_children_before_the_filters() -> None:
    """draws the children of a sampled tree before the filters, and hands over the filtered laws"""

    right = TreeDrafter._children

    def children(tree: TreeDrafter, logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor | None]:
        if not tree.sampled or tree._sampling.greedy:
            return right(tree, logits, points)
        tokens, _, _ = without_replacement(unfiltered(tree._sampling).probs(logits), points)
        _, laws, _ = without_replacement(tree._sampling.probs(logits), points)
        return tokens, laws

    TreeDrafter._children = children


@mutant(40, "the_most_probable_branches_are_drafted", file=TREE)
def ranks_branches_at_temperature_1() -> None:
    """ranks the branches of a tree by the draft's probabilities at temperature 1, before the filters"""
    BestTreeDrafter._log_probs = lambda tree, logits: logits.float().log_softmax(-1)


HEADS = "logits_of_every_token_of_a_tree_are_a_recomputations"


@mutant(39, HEADS, file=TREE)
def head_reads_siblings() -> None:
    """lets a token of a tree read its siblings in the pass of a feature head"""
    right = GrowingFeature.grow

    def grow(drafter: GrowingFeature, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        return right(drafter, tokens, parents, torch.ones_like(reads), depth)

    GrowingFeature.grow = grow


@mutant(39, HEADS, file=TREE)
def head_reads_its_own_branch_without_the_root() -> None:
    """lets a token of a tree read its parent and itself alone of the drafted ones"""
    right = GrowingFeature.grow

    def grow(drafter: GrowingFeature, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        n = reads.shape[1]
        near = torch.zeros_like(reads)
        near[torch.arange(len(tokens)), n - len(tokens) + torch.arange(len(tokens))] = True
        kept = parents >= 0
        near[torch.arange(len(tokens))[kept], parents[kept]] = True
        return right(drafter, tokens, parents, near, depth)

    GrowingFeature.grow = grow


@mutant(39, HEADS, file=TREE)
def head_puts_siblings_at_positions_of_their_own() -> None:
    """puts a token of a tree at the position of its number, in the pass of a feature head"""
    right = GrowingFeature.grow

    def grow(drafter: GrowingFeature, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        before, whole = drafter._outputs.shape[1] - 1, (drafter._cos, drafter._sin)
        start, n = drafter._length + before, len(tokens)
        drafter._rotation(start, n)
        whole = drafter._cos, drafter._sin
        project = drafter.head.project

        def by_number(states: Tensor, ids: Tensor, rotation: tuple):
            return project(states, ids, tuple(one[:, start : start + n] for one in whole))

        drafter.head.project = by_number
        try:
            return right(drafter, tokens, parents, reads, depth)
        finally:
            del drafter.head.project

    GrowingFeature.grow = grow


@mutant(39, HEADS, file=TREE)
def head_gets_the_state_of_another_branch() -> None:
    """gives every token of a tree the state of the first token of the level above"""
    right = GrowingFeature.grow

    def grow(drafter: GrowingFeature, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        return right(drafter, tokens, parents.amin().expand_as(parents), reads, depth)

    GrowingFeature.grow = grow


# ---------------------------------------------------------------- lengths that are chosen


@mutant(34, LAW, file=FILE)
def head_drops_the_token_after_which_it_stops() -> None:
    """does not hand over the token of a feature head after which it stops"""
    right = FeatureDrafter.propose

    def propose(drafter: FeatureDrafter, k: int, uniforms: Tensor) -> Draft:
        stopped: list[bool] = []
        asked = drafter.keep_drafting
        if asked:
            drafter.keep_drafting = lambda probability: stopped.append(not asked(probability)) or not stopped[-1]
        draft = right(drafter, k, uniforms)
        n = draft.tokens.shape[1] - 1
        if not (stopped and stopped[-1]) or n < 0:
            return draft
        return Draft(draft.tokens[:, :n], draft.size - 1, None if draft.probs is None else draft.probs[:, :n])

    FeatureDrafter.propose = propose


@mutant(35, "what_lengths_are_chosen_by", file=FILE)
def asks_with_the_probability_at_temperature_1() -> None:
    """chooses a length by the draft's probability at temperature 1, before the filters"""

    def probability(logits: Tensor, drawn: Drawn) -> float:
        return logits.float().softmax(-1)[0, drawn.token[0]].item()

    draft_models.probability = feature_module.probability = probability


@mutant(35, "what_lengths_are_chosen_by", file=FILE)
def learns_for_all_temperatures_at_once() -> None:
    """counts what was accepted at one temperature for all"""
    right = AutoLength._begin

    def begin(auto: AutoLength, temperature: float) -> None:
        if auto.seen:
            auto.seen[temperature] = next(iter(auto.seen.values()))
        right(auto, temperature)

    AutoLength._begin = begin
