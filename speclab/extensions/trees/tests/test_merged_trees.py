"""Drafts of several drafters in one tree: nothing is lost and nothing is there twice, and all follow the text."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_models import ModelDrafter, NgramDrafter, as_draft
from speclab.core.rounds import Draft
from speclab.core.sampling import Sampling
from speclab.extensions.trees.draft import TreeDraft, parents_of
from speclab.extensions.trees.merged import MergedDrafter, merged
from speclab.models.cached import CachedModel
from tests.tiny_models import VOCAB, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
N_NEW = 40
CPU = torch.device("cpu")


def pair(noise: float = 0.12) -> tuple[CachedModel, ModelDrafter]:
    model = tiny("llama", dtype=torch.float64)
    return CachedModel(model), ModelDrafter(CachedModel(perturbed(model, noise)))


def branches(draft: Draft) -> list[tuple[int, ...]]:
    """Of every token the tokens up to it."""
    found: list[tuple[int, ...]] = []
    parents = parents_of(draft)[0].tolist()
    for token, parent in zip(draft.tokens[0].tolist(), parents, strict=True):
        assert parent < len(found)
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


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
