"""Drafts of several drafters in one tree: nothing is lost and nothing is there twice, and all follow the text."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_models import ModelDrafter, NgramDrafter, as_draft
from speclab.core.rounds import Draft, tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.block import BlockDrafter
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.registry import read
from speclab.drafts.suffix import SuffixDrafter
from speclab.extensions.trees.draft import TreeDraft, parents_of
from speclab.extensions.trees.merged import MergedDrafter, merged
from speclab.lab.bench import SPECULATIVE
from speclab.lab.replay import replayed
from speclab.models.cached import CachedModel
from speclab.records.log import RoundCounts
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text, speculative_rounds
from tests.heads import prompts, trained, trained_block
from tests.models.test_caches import worst_difference
from tests.tiny_models import VOCAB, flattened, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
N_NEW = 40
CPU = torch.device("cpu")
WARM = Sampling(temperature=0.4)


def pair(noise: float = 0.12, fast: bool = False) -> tuple[CachedModel, ModelDrafter]:
    model = tiny("llama", dtype=torch.float64)
    other = perturbed(model, noise)
    target = CachedModel(model, fast=flattened(model) if fast else None)
    return target, ModelDrafter(CachedModel(other, fast=flattened(other) if fast else None))


def branches(draft: Draft) -> list[tuple[int, ...]]:
    """Of every token the tokens up to it."""
    found: list[tuple[int, ...]] = []
    parents = parents_of(draft)[0].tolist()
    for token, parent in zip(draft.tokens[0].tolist(), parents, strict=True):
        assert parent < len(found)
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


# --- the tree ---------------------------------------------------------------------------------------------------------

CHAIN = st.lists(st.integers(0, 2), max_size=5)


@given(st.lists(CHAIN, min_size=1, max_size=4), st.lists(st.integers(0, 2), max_size=6), st.data())
def test_all_branches_are_there_once(chains, tokens, data):
    """Of chains and of a tree, which may have equal siblings of its own."""
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
    chain = as_draft(tokens, CPU)
    tree = TreeDraft(chain.tokens, chain.size, parents=torch.tensor([parents], dtype=torch.long))
    drafts = [*(as_draft(chain, CPU) for chain in chains), tree]
    found = branches(merged(drafts, CPU))
    assert len(set(found)) == len(found)
    assert set(found) == {branch for draft in drafts for branch in branches(draft)}


def test_a_tree_is_shared_evenly_and_no_larger_than_asked_for():
    target, drafter = pair()
    asked = []

    class Asked(NgramDrafter):
        def propose(self, k, uniforms):
            asked.append((k, uniforms.shape[1]))
            return as_draft([7] * min(k, uniforms.shape[1]), CPU)

    tree = MergedDrafter([Asked(), drafter, Asked()])
    tree.prefill(target, PROMPT, Sampling())
    for n in range(8):
        asked.clear()
        draft = tree.propose(2, torch.zeros(1, n))
        assert asked == [(min(2, -(-n // 3)), -(-n // 3)), (min(2, n // 3), n // 3)]
        assert draft.tokens.shape[1] <= n
        assert max(map(len, branches(draft)), default=0) <= 2
        for part in tree.drafters:
            part.observe(0, [1])


# --- the text ---------------------------------------------------------------------------------------------------------


def made_of(kind: str, fast: bool) -> tuple[CachedModel, list]:
    """A target and the drafters of a kind."""
    if kind in ("feature", "block"):
        model, head, _ = trained() if kind == "feature" else trained_block()
        target = CachedModel(model, fast=flattened(model) if fast else None)
        target.hidden_layers = head.config.layers
        other = ModelDrafter(CachedModel(perturbed(model, 0.03)))
        return target, [SuffixDrafter(), FeatureDrafter(head) if kind == "feature" else BlockDrafter(head), other]
    target, drafter = pair(fast=fast)
    return target, [drafter, NgramDrafter(2, 1), *([pair(0.2)[1]] if kind == "three" else [])]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["model", "three", "feature", "block"])
def test_greedy_text_is_the_baselines_and_the_longest_right_chain_is_kept(kind, fast):
    target, drafters = made_of(kind, fast)
    tree = MergedDrafter(drafters)
    proposed, longest_was = [], set()
    for drafter in tree.drafters:

        def propose(k, uniforms, right=drafter.propose):
            proposed.append(right(k, uniforms))
            return proposed[-1]

        drafter.propose = propose
    for prompt in prompts(4):
        text = plain_text(target, prompt[None], 26)
        done = 0
        for round_ in speculative_rounds(target, tree, prompt[None], 4 * len(drafters), 26):
            if not round_.prefill:
                right = [0] * len(drafters)
                for i, draft in enumerate(proposed):
                    chain = draft.tokens[0].tolist()
                    while right[i] < len(chain) and chain[right[i]] == text[done + right[i]]:
                        right[i] += 1
                assert round_.n_accepted == max(right)
                if len(set(right)) > 1:
                    longest_was.add(right.index(max(right)))
            proposed.clear()
            assert round_.tokens == text[done : done + len(round_.tokens)]
            done += len(round_.tokens)
        assert done == 26
    assert len(longest_was) > 1, "one drafter was always the best"


@pytest.mark.parametrize("budget", range(1, 8))
def test_the_budget_is_met_exactly(budget):
    target, drafters = made_of("model", False)
    rounds = speculative_rounds(target, MergedDrafter(drafters), PROMPT, 8, budget)
    assert tokens_of(rounds) == plain_text(target, PROMPT, budget)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_caches_equal_a_recomputation_after_every_round(sampling, fast):
    """Also of the draft model, after rounds in which another drafter's branch was kept."""
    target, drafter = pair(0.1, fast)
    tree = MergedDrafter([NgramDrafter(2, 1), drafter])
    ids, kept = PROMPT[0].tolist(), []
    for round_ in speculative_rounds(target, tree, PROMPT, 8, N_NEW, sampling):
        ids += round_.tokens
        kept.append(round_.n_accepted)
        assert target.length == len(ids) - 1
        assert drafter.draft.length <= target.length
        assert worst_difference(target, ids[:-1]) < 1e-11
        assert worst_difference(drafter.draft, ids[: drafter.draft.length]) < 1e-11
    assert max(kept) > 1


def test_rounds_along_a_known_text_are_those_of_the_decoding():
    target, drafters = made_of("model", False)
    rounds = speculative_rounds(target, MergedDrafter(drafters), PROMPT, 8, N_NEW)
    made = [RoundCounts(r.n_drafted, r.n_accepted) for r in rounds if not r.prefill]
    _, others = made_of("model", False)
    text = tuple(plain_text(target, PROMPT, N_NEW))
    assert replayed(SPECULATIVE, target, MergedDrafter(others), PROMPT, text, 8) == made


# --- the kind ---------------------------------------------------------------------------------------------------------


def test_what_it_is_made_of():
    _, drafter = pair()
    lookup = NgramDrafter()
    tree = MergedDrafter([drafter, lookup])
    assert tree.parts == (lookup, drafter)
    assert tree.lengths([2, 4]) == [4, 8]
    assert "2 drafts" in tree.describe("merge", "eager")
    with pytest.raises(UsageProblem, match="give -k a number"):
        read("merge:model+ngram").check_auto()


def test_its_name():
    assert read("merge:suffix+model+lab:50m").name == "merge:suffix+model+lab:50m"
    assert read("merge:suffix+model").branches
    for wrong in ("merge", "merge:model", "merge:model+", "merge:ngram+hybrid", "merge:ngram+dial:0.5"):
        with pytest.raises(UsageProblem, match="merge:suffix\\+model"):
            read(wrong)
