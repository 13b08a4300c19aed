"""Bugs in the rule for trees, in how their tokens are chosen and drawn, and in what caches hold of a tree."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from speclab.core import accept as accept_module
from speclab.core.drafter import Drafter
from speclab.core.rounds import AcceptResult, Draft
from speclab.core.sampling import Sampling, draw
from speclab.engines import windows
from speclab.extensions.trees import accept as tree_module
from speclab.extensions.trees import best, draft, merged
from speclab.extensions.trees import fixed as fixed_module
from speclab.extensions.trees.accept import accept_tree as right_tree
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.draft import TreeDraft
from speclab.extensions.trees.fixed import TreeDrafter
from speclab.extensions.trees.fixed import without_replacement as right_children
from speclab.extensions.trees.growing import GrowingFeature, GrowingModel
from speclab.extensions.trees.merged import MergedDrafter
from speclab.models.cached import CachedModel
from tests.mutants.bugs import mutant

BUGS = {
    15: "children of a tree judged or drawn by a wrong law",
    39: "tokens of a tree at wrong places, or the wrong branch kept",
    40: "size or shape of a tree chosen by the wrong numbers",
}
FILE, LOOP, MERGED, LAWS_FILE = "test_accept_tree", "test_trees", "test_merged_trees", "test_tree_laws"
ROUND = "a_round_leaves_the_targets_law"
ONE_NODE, WHOLE = "children_of_one_node_leave_the_targets_law", "whole_trees_leave_the_targets_joint_law"
OF_DIFFERENT, WHOLE_OF_DIFFERENT = f"{ONE_NODE}[different-dense]", f"{WHOLE}[different]"
FOLLOW = "following_gives_the_targets_joint_law_for_every_shape"

# ---------------------------------------------------------------- the walk, written down with its parts to replace


def in_number_order(draft: Draft, laws: Tensor) -> Tensor:
    """(batch, n): the child with the least is tried first"""
    return torch.arange(draft.tokens.shape[1]).expand_as(draft.tokens)


def against_what_is_left(left: Tensor, target: Tensor) -> Tensor:
    """(batch, vocab) the row that a child is tested against"""
    return left / left.sum(-1, keepdim=True)


def itself(draft: Draft, node: Tensor) -> Tensor:
    """(batch, n) which nodes are dealt with when a node (batch, 1) was tried"""
    return torch.arange(draft.tokens.shape[1]) == node


def change_tree(order: Callable = in_number_order, against: Callable = against_what_is_left, tried: Callable = itself):
    """Put multi-step speculative sampling with a wrong part into the lab. Every tree of the tests has parents."""

    def accept_tree(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        (batch, n), row = draft.tokens.shape, torch.arange(len(draft.tokens))
        laws = torch.nn.functional.one_hot(draft.tokens, target_probs.shape[-1]).to(target_probs)
        laws = laws if draft.probs is None else draft.probs
        rank = order(draft, laws).double()
        done = torch.arange(n) >= draft.size[:, None]
        here, left, kept = torch.zeros_like(draft.size), target_probs[:, 0], torch.zeros(batch, n, dtype=torch.bool)
        for _ in range(n):
            open_ = ~done & (draft.parents + 1 == here[:, None])
            i = rank.masked_fill(~open_, torch.inf).argmin(-1)
            law, token = laws[row, i], draft.tokens[row, i]
            judge = against(left, target_probs[row, here])
            passed = open_[row, i] & (uniforms[row, i] * law[row, token] < judge[row, token]) & (law[row, token] > 0)
            failed = open_[row, i] & ~passed
            residual = (left / left.sum(-1, keepdim=True) - law).clamp(min=0)
            residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, left)
            done = done | (open_[row, i, None] & open_ & tried(draft, i[:, None]))
            kept[row, i] |= passed
            left = torch.where(failed[:, None], residual, left)
            left = torch.where(passed[:, None], target_probs[row, i + 1], left)
            here = torch.where(passed, i + 1, here)
        return tree_module.along(draft, kept, draw(left, uniforms[:, n]))

    tree_module.accept_tree = accept_tree


@mutant(15, ONE_NODE, WHOLE, file=FILE)
def tests_each_child_against_the_targets_row() -> None:
    """tests every child of a node against the target's own row, whatever was rejected before"""
    change_tree(against=lambda left, target: target)


@mutant(15, ONE_NODE, WHOLE, file=FILE)
def tests_against_a_residual_that_is_not_renormalised() -> None:
    """tests the next child of a node against a residual that is not renormalised"""
    change_tree(against=lambda left, target: left)


@mutant(15, ONE_NODE, WHOLE, file=FILE)
def merges_equal_children() -> None:
    """merges children of a node that carry the same token"""

    def all_equal(draft: Draft, node: Tensor) -> Tensor:
        return draft.tokens == draft.tokens.gather(1, node)

    change_tree(tried=all_equal)


@mutant(15, ONE_NODE, WHOLE, file=FILE)
def tries_the_most_probable_child_first() -> None:
    """tries the children of a node in the order of their probabilities"""

    def by_probability(draft: Draft, laws: Tensor) -> Tensor:
        return -laws.gather(-1, draft.tokens[..., None])[..., 0]

    change_tree(order=by_probability)


@mutant(15, FOLLOW, file=FILE)
def draws_every_depth_with_one_uniform() -> None:
    """draws the target's tokens of all depths with one random number"""
    right = TreeDraft.depths
    TreeDraft.depths = lambda draft: torch.zeros_like(right(draft))


@mutant(15, "a_dead_node_is_never_kept_and_rows_are_independent", file=FILE)
def keeps_dead_nodes() -> None:
    """keeps nodes beyond the size of a tree"""

    def all_alive(draft: Draft) -> Draft:
        return replace(draft, size=torch.full_like(draft.size, draft.tokens.shape[1]))

    right = TreeDraft.matching
    TreeDraft.matching = lambda draft, own: right(all_alive(draft), own)
    tree_module.accept_tree = lambda draft, *given: right_tree(all_alive(draft), *given)


@mutant(15, "children_that_were_not_drawn_may_stay_in_the_midst_of_a_tree", file=FILE)
def keeps_children_that_were_not_drawn() -> None:
    """keeps a child whose law gives it no probability"""

    def accept_tree(draft: Draft, target_probs: Tensor, uniforms: Tensor) -> AcceptResult:
        tiny = torch.finfo(target_probs.dtype).tiny
        probs = None if draft.probs is None else draft.probs.clamp(min=tiny)
        return right_tree(replace(draft, probs=probs), target_probs, uniforms)

    tree_module.accept_tree = accept_tree


# ---------------------------------------------------------------- children that differ


def change_laws(wrong: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """The ids are drawn as is right; `wrong(probs (batch, vocab), tokens, laws)` is handed over as their laws."""

    def without_replacement(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        tokens, laws, n_drawn = right_children(probs, uniforms)
        return tokens, wrong(probs.expand(len(uniforms), -1), tokens, laws), n_drawn

    fixed_module.without_replacement = without_replacement


LAWS = "draws_without_replacement_have_the_laws_that_are_handed_over"


@mutant(15, OF_DIFFERENT, WHOLE_OF_DIFFERENT, LAWS, file=FILE)
def hands_over_laws_that_are_not_renormalised() -> None:
    """hands over laws without the ids before, not renormalised"""
    change_laws(lambda probs, tokens, laws: probs[:, None] * (laws > 0))


@mutant(15, OF_DIFFERENT, WHOLE_OF_DIFFERENT, LAWS, file=FILE)
def hands_over_one_law_for_all_children() -> None:
    """hands over the whole row for each of several different ids"""
    change_laws(lambda probs, tokens, laws: probs[:, None].expand_as(laws))


@mutant(15, OF_DIFFERENT, WHOLE_OF_DIFFERENT, LAWS, file=FILE)
def takes_the_most_probable_for_drawn() -> None:
    """takes the most probable ids, and hands over laws as if they had been drawn"""

    def without_replacement(probs: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, m = uniforms.shape
        left = probs.expand(batch, -1)
        tokens, laws = torch.zeros(batch, m, dtype=torch.long), left.new_zeros(batch, m, left.shape[-1])
        for i in range(m):
            laws[:, i] = left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(left.dtype).tiny)
            tokens[:, i] = left.argmax(-1)
            left = left.scatter(-1, tokens[:, i : i + 1], 0.0)
        return tokens, laws, (laws.sum(-1) > 0).sum(-1)

    fixed_module.without_replacement = without_replacement


# ---------------------------------------------------------------- the pass and the cache


@mutant(39, "caches_equal_a_recomputation_after_every_round", file=LOOP)
def siblings_see_each_other() -> None:
    """lets every row read all that stands before it, siblings too"""

    def reads(parents: Tensor) -> Tensor:
        n_rows = parents.shape[1] + 1
        return torch.ones(len(parents), n_rows, n_rows, dtype=torch.bool).tril()

    draft.reads = reads


@mutant(39, "hidden_states_follow_the_branch", "caches_equal_a_recomputation_after_every_round", file=LOOP)
def position_is_the_number_of_the_row() -> None:
    """puts a token at the position of its number, not of its depth"""
    right = CachedModel.forward

    def forward(model: CachedModel, tokens: Tensor, reads: Tensor | None = None) -> Tensor:
        backend = model.backend
        of_depth = backend.forward_masked

        def of_backend(ids: Tensor, length: int, positions: Tensor, mask: Tensor) -> Tensor:
            return of_depth(ids, length, torch.arange(length, length + ids.shape[1])[None], mask)

        backend.forward_masked = of_backend
        try:
            return right(model, tokens, reads)
        finally:
            del backend.forward_masked

    CachedModel.forward = forward


@mutant(39, "caches_equal_a_recomputation_after_every_round[mistral_window-greedy]", file=LOOP)
def windows_count_the_rows_of_siblings() -> None:
    """lets a sliding window count rows of the cache, those of other branches too, and not what the token reads"""

    def with_window(mask: Tensor, window: int) -> Tensor:
        columns = torch.arange(mask.shape[-1])
        own = torch.where(mask == 0, columns, -1).amax(-1, keepdim=True)
        return mask.masked_fill(own - columns >= window, torch.finfo(mask.dtype).min)

    windows.with_window = with_window


@mutant(39, "caches_equal_a_recomputation_after_every_round", "hidden_states_follow_the_branch", file=LOOP)
def keeps_the_first_rows_of_the_tree() -> None:
    """keeps as many rows as were accepted, but the first ones of the tree"""
    right = CachedModel.keep
    CachedModel.keep = lambda model, path: right(model, list(range(len(path))))


@mutant(39, "hidden_states_follow_the_branch", file=LOOP)
def hidden_states_stay_in_tree_order() -> None:
    """moves keys and values of the branch, and not the hidden states that heads read"""
    right = CachedModel.keep

    def keep(model: CachedModel, path: list[int]) -> None:
        hidden = model.backend.hidden
        right(model, path)
        model.backend.hidden = hidden

    CachedModel.keep = keep


@mutant(39, "caches_equal_a_recomputation_after_every_round", file=LOOP)
def draft_model_keeps_a_tree() -> None:
    """leaves the tree in the draft model's cache"""
    GrowingModel.end_tree = lambda drafter: None


# ---------------------------------------------------------------- both filters, and the drafting pass of a head


def change_rule(rule: Callable[[], Callable], wrong: Callable[[Sampling], Sampling]) -> None:
    """This rule judges as `wrong(sampling)` says."""
    right = accept_module._judged

    def judged(logits: Tensor, draft: Draft, sampling: Sampling, uniforms: Tensor, judge: Callable, *numbers):
        if judge is rule() and not sampling.greedy:
            sampling = wrong(sampling)
        return right(logits, draft, sampling, uniforms, judge, *numbers)

    accept_module._judged = judged


@mutant(15, ROUND, file=LAWS_FILE)
def judges_a_tree_without_top_p() -> None:
    """judges a tree by the target's distribution before top-p"""
    change_rule(lambda: tree_module.accept_tree, lambda sampling: Sampling(sampling.temperature, sampling.top_k))


@mutant(15, ROUND, file=LAWS_FILE)
def draws_children_before_the_filters() -> None:
    """draws the children of a sampled tree before the filters, and hands over the filtered laws"""

    right = TreeDrafter.children

    def children(tree: TreeDrafter, logits: Tensor, points: Tensor) -> tuple[Tensor, Tensor | None]:
        if not tree.sampled or tree._sampling.greedy:
            return right(tree, logits, points)
        tokens, _, _ = right_children(Sampling(tree._sampling.temperature).probs(logits), points)
        _, laws, _ = right_children(tree._sampling.probs(logits), points)
        return tokens, laws

    TreeDrafter.children = children


@mutant(40, "the_most_probable_branches_are_drafted", file=LOOP)
def ranks_branches_at_temperature_1() -> None:
    """ranks the branches of a tree by the draft's probabilities at temperature 1, before the filters"""
    BestTreeDrafter._log_probs = lambda tree, logits: logits.float().log_softmax(-1)


HEADS = "logits_of_every_token_of_a_tree_are_a_recomputations"


@mutant(39, HEADS, file=LOOP)
def head_reads_siblings() -> None:
    """lets a token of a tree read its siblings in the pass of a feature head"""
    right = GrowingFeature.grow

    def grow(drafter: GrowingFeature, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        return right(drafter, tokens, parents, torch.ones_like(reads), depth)

    GrowingFeature.grow = grow


@mutant(39, f"{HEADS}[feature-True]", file=LOOP)
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


@mutant(39, HEADS, file=LOOP)
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


@mutant(39, HEADS, file=LOOP)
def head_gets_the_state_of_another_branch() -> None:
    """gives every token of a tree the state of the first token of the level above"""
    right = GrowingFeature.grow

    def grow(drafter: GrowingFeature, tokens: Tensor, parents: Tensor, reads: Tensor, depth: int) -> Tensor:
        return right(drafter, tokens, parents.amin().expand_as(parents), reads, depth)

    GrowingFeature.grow = grow


# ---------------------------------------------------------------- which tokens a tree has


@mutant(40, "the_most_probable_branches_are_drafted", file=LOOP)
def does_not_multiply_along_a_branch() -> None:
    """takes the most probable tokens, however improbable those before them on their branch are"""
    right = BestTreeDrafter._candidates

    def looked(drafter: BestTreeDrafter, n: int, deepest: int) -> best.Candidates:
        found = right(drafter, n, deepest)
        before = torch.cat([found.scores.new_zeros(1), found.scores])[found.parents + 1]
        return found._replace(scores=found.scores - before)

    BestTreeDrafter._candidates = looked


@mutant(40, "the_most_probable_branches_are_drafted", file=LOOP)
def goes_on_from_the_best_token_alone() -> None:
    """drafts another level behind the most probable token only"""
    right = best._n_to_grow
    best._n_to_grow = lambda *given: min(1, right(*given))


@mutant(36, "a_draft_keeps_the_contract[merged-eager-greedy]", file="test_tree_contract")
def draft_model_keeps_its_own_chain() -> None:
    """leaves a draft model's own tokens in its cache where another drafter's branch was kept"""

    def init(tree: MergedDrafter, drafters: Sequence[Drafter]) -> None:
        tree.drafters, tree._device = list(drafters), torch.device("cpu")

    MergedDrafter.__init__ = init


@mutant(39, "all_branches_are_there_once", file=MERGED)
def merges_equal_tokens_of_one_depth() -> None:
    """merges equal tokens that stand as deep as each other, after different ones"""
    right = merged.merged

    def by_depth(drafts: Sequence[Draft], device: torch.device) -> Draft:
        found = right(drafts, device)
        if not isinstance(found, TreeDraft):
            return found
        seen: dict[tuple[int, int], int] = {}
        kept, parents, depths = [], [], []
        numbers = [-1]
        for token, parent in zip(found.tokens[0].tolist(), found.parents[0].tolist(), strict=True):
            above = numbers[parent + 1]
            place = (depths[above] + 1 if above >= 0 else 1), token
            if place not in seen:
                seen[place] = len(kept)
                kept.append(token)
                parents.append(above)
                depths.append(place[0])
            numbers.append(seen[place])
        ids, size = torch.tensor([kept], device=device), torch.tensor([len(kept)], device=device)
        return TreeDraft(ids, size, parents=torch.tensor([parents], device=device))

    merged.merged = by_depth
