"""Trees of one chosen shape: which tokens they hold, how they are drafted, and what the shape is chosen by."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_models import ModelDrafter
from speclab.core.rounds import DecodeSettings, Round, tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.drafts.select import auto_length, lengths_of
from speclab.drafts.trees.auto import LARGEST, RANKS
from speclab.drafts.trees.fixed import StaticTreeDrafter, TreeDrafter, planned
from speclab.lab import round_costs
from speclab.lab.bench import SPECULATIVE
from speclab.lab.replay import replayed
from speclab.lab.round_costs import measure_costs
from speclab.models.cached import CachedModel
from speclab.records.samples import Made
from speclab.theory.trees import best_tree, fastest_tree
from tests.decoding import plain_text, speculative_rounds
from tests.drafts.test_tree import with_head, with_model
from tests.heads import prompts
from tests.tiny_models import VOCAB, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
N_NEW = 40
CPU = torch.device("cpu")
BUSHY = ((-1, -1, 0, 0, 1, 2, -1, 5, 3), (0, 1, 0, 2, 1, 0, 3, 0, 0))  # not level by level, and with gaps in the ranks


def static(inner, nodes=BUSHY) -> StaticTreeDrafter:
    tree = StaticTreeDrafter(inner)
    tree.nodes |= {0.0: nodes, 0.8: nodes}
    return tree


def decoded(target, tree, k: int = 9, n: int = N_NEW, *how) -> list[Round]:
    return list(speculative_rounds(target, tree, PROMPT, k, n, *how))


# --- the plan ---------------------------------------------------------------------------------------------------------


@st.composite
def shapes(draw):
    """Any tree of up to twelve tokens; siblings differ in rank."""
    parents, ranks = [], []
    for i in range(draw(st.integers(0, 12))):
        parents.append(draw(st.integers(-1, i - 1)))
        taken = {rank for parent, rank in zip(parents, ranks, strict=False) if parent == parents[-1]}
        ranks.append(draw(st.sampled_from(sorted(set(range(13)) - taken))))
    return tuple(parents), tuple(ranks)


def ways(parents, ranks) -> list[tuple[int, ...]]:
    """Of every token the ranks on its branch."""
    found: list[tuple[int, ...]] = []
    for parent, rank in zip(parents, ranks, strict=True):
        found.append((*(found[parent] if parent >= 0 else ()), rank))
    return found


@given(shapes(), st.integers(0, 12), st.integers(0, 5))
def test_a_plan_drafts_the_first_tokens_level_by_level(nodes, n, deepest):
    parents, levels = planned(nodes, n, deepest, CPU)
    ranks = [rank for level in levels for rank in level.ranks.tolist()]
    taken = [way for way in ways(*nodes) if len(way) <= deepest][:n]
    assert sorted(ways(parents.tolist(), ranks)) == sorted(taken)
    assert [len(way) for way in ways(parents.tolist(), ranks)] == sorted(map(len, taken))

    # A drafter whose "logits" are the branch that they follow: what is grown, and what each pass reads.
    branch_of_row, start, in_tree, grown = [()], 0, [], []
    for level in levels:
        size = len(level.ranks)
        made = [
            (*branch_of_row[row], rank) for row, rank in zip(level.rows.tolist(), level.ranks.tolist(), strict=True)
        ]
        in_tree += made
        branch_of_row = [made[i] for i in level.grown.tolist()]
        for node, parent in zip(branch_of_row, level.parents.tolist(), strict=True):
            grown.append(node)
            assert (grown[parent] if parent >= 0 else ()) == node[:-1]
        for node, row in zip(branch_of_row, level.reads.tolist(), strict=True):
            assert [other for other, read in zip(grown, row, strict=True) if read] == [
                other for other in grown if node[: len(other)] == other
            ]
        start += size
    assert in_tree == ways(parents.tolist(), ranks)
    assert set(grown) == {way[:-1] for way in in_tree} - {()}


def test_tokens_are_the_choices_of_their_ranks():
    """Against the draft model without a cache: a token of rank r is the r-th most probable one after its branch."""
    target, inner = with_model("llama")
    tree = static(inner)
    target.prefill(PROMPT)
    tree.prefill(target, PROMPT, GREEDY)
    tree.observe(0, [3])
    draft = tree.propose(9, torch.zeros(1, 9))
    nodes = ways(draft.parents[0].tolist(), [r for level in planned(BUSHY, 9, 9, CPU)[1] for r in level.ranks.tolist()])
    tokens = dict(zip(nodes, draft.tokens[0].tolist(), strict=True))
    assert len(tokens) == 9
    for way, token in tokens.items():
        branch = [tokens[way[:i]] for i in range(1, len(way))]
        ids = torch.tensor([[*PROMPT[0].tolist(), 3, *branch]])
        with torch.inference_mode():
            row = inner.draft.model(input_ids=ids, use_cache=False).logits[0, -1]
        assert row.topk(way[-1] + 1).indices[-1] == token


# --- the text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["model", "feature", "block"])
def test_greedy_text_is_the_baselines(kind, fast):
    target, inner = with_model("fast llama" if fast else "llama") if kind == "model" else with_head(kind, fast)
    rounds: list[Round] = []
    for prompt in prompts(4):
        of_text = list(speculative_rounds(target, static(inner), prompt[None], 9, 26))
        assert tokens_of(of_text) == plain_text(target, prompt[None], 26)
        rounds += of_text
    assert max(r.n_drafted for r in rounds) == 9
    assert any(r.n_accepted > 1 for r in rounds)
    assert any(r.n_rejected for r in rounds)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(0.8)], ids=["greedy", "sampled"])
def test_a_full_shape_is_the_tree_of_that_shape(sampling):
    """The same rounds as TreeDrafter's most probable ones."""
    target, inner = with_model("llama")
    full = ((-1, -1, 0, 0, 1, 1, 2, 3, 4, 5), (0, 1, 0, 1, 0, 1, 0, 0, 0, 0))
    shaped = decoded(target, TreeDrafter(inner, (2, 2, 1)), 10, N_NEW, sampling)
    assert decoded(target, static(inner, full), 10, N_NEW, sampling) == shaped


@pytest.mark.parametrize("budget", range(1, 8))
def test_the_budget_is_met_exactly(budget):
    target, inner = with_model("llama", noise=0.0)
    assert tokens_of(decoded(target, static(inner), 9, budget)) == plain_text(target, PROMPT, budget)


def test_without_a_shape_it_is_a_chain():
    target, inner = with_model("llama")
    assert decoded(target, StaticTreeDrafter(inner), 3) == decoded(target, TreeDrafter(inner, (1, 1, 1)), 3)


def test_a_small_vocabulary_has_fewer_choices():
    model = tiny("llama", vocab_size=3)
    prompt = PROMPT.remainder(3)
    tree = static(ModelDrafter(CachedModel(perturbed(model, 0.2))))
    target = CachedModel(model)
    rounds = list(speculative_rounds(target, tree, prompt, 9, 20))
    assert tokens_of(rounds) == plain_text(target, prompt, 20)


def test_rounds_along_a_known_text_are_those_of_the_decoding():
    target, inner = with_model("llama")
    made = [Made(r.n_drafted, r.n_accepted) for r in decoded(target, static(inner)) if not r.prefill]
    text = tuple(plain_text(target, PROMPT, N_NEW))
    assert replayed(SPECULATIVE, target, static(inner), PROMPT, text, 9) == made


# --- the shape --------------------------------------------------------------------------------------------------------


def test_the_shape_follows_what_was_right_and_what_rounds_cost(monkeypatch):
    """With a number as many tokens as it says of the best tree; on auto the tree that pays most. Copies share both."""
    target, inner = with_model("llama")
    fixed = StaticTreeDrafter(inner)
    on_auto = auto_length("tree:static:model", fixed)
    assert isinstance(on_auto, StaticTreeDrafter)
    assert (lengths_of(fixed, [5]), lengths_of(on_auto, [8])) == ([5], [LARGEST])
    seen, right = [], round_costs.TreeAcceptance

    def kept():
        seen.append(right())
        return seen[-1]

    monkeypatch.setattr(round_costs, "TreeAcceptance", kept)
    for drafter in (fixed, on_auto):
        copied = copy.deepcopy(drafter)
        measure_costs(SPECULATIVE, target, drafter, [PROMPT], DecodeSettings(N_NEW, Sampling(0.8)))
        by_rank = seen[-1].by_rank(len(RANKS)).tolist()
        assert seen[-1].places > 50
        costs = drafter.costs[0.8]
        expected = fastest_tree(by_rank, costs.levels, costs.rest) if drafter.on_auto else best_tree(by_rank, LARGEST)
        assert drafter.nodes[0.8] == copied.nodes[0.8] == expected
        assert f"tree of {len(expected.parents)} tokens" in drafter.describe_shape(0.8, LARGEST)
        assert f"tree of {min(3, len(expected.parents))} tokens" in drafter.describe_shape(0.8, 3)


def test_no_text_has_the_random_numbers_of_the_rounds_that_chose_the_shape(monkeypatch):
    """Else the shape would depend on the uniforms of the text that it drafts for, and greedily on the text itself."""
    target, inner = with_model("llama")
    seeds, lengths, right = [], [], round_costs.with_phases

    def with_phases(*args):
        seeds.append(args[-1].seed)
        lengths.append(args[3].shape[1])
        return right(*args)

    monkeypatch.setattr(round_costs, "with_phases", with_phases)
    settings = DecodeSettings(N_NEW, Sampling(0.8), seed=7)
    measure_costs(SPECULATIVE, target, StaticTreeDrafter(inner), [PROMPT], settings)
    [seed] = seeds
    assert seed > 2**49, "texts have smaller seeds"
    assert lengths == [(PROMPT.shape[1] + 1) // 2], "a text that is timed may not choose the shape"
