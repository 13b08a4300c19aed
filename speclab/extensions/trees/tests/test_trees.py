"""Trees through the real cached loop: the same text, the right caches, and what each kind of draft says on a branch."""

import pytest
import torch
from torch import Tensor

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.rounds import Round
from speclab.core.sampling import Sampling
from speclab.drafts import registry
from speclab.drafts.feature import FeatureDrafter
from speclab.engines.c_pass import CBackend
from speclab.extensions.trees.best import BestTreeDrafter
from speclab.extensions.trees.draft import TreeDraft, chain, reads
from speclab.extensions.trees.fixed import TreeDrafter, level_parents
from speclab.extensions.trees.register import check_tree
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests import tiny_families
from tests.decoding import keys_and_values, plain_text, reference_probs, row_of, speculative_rounds
from tests.heads import block_heads, feature_row, prompts, target_states, trained
from tests.models.test_caches import model_of, worst_difference
from tests.recorder import graphed, stand_in
from tests.tiny_models import CLOSE, DTYPE_ON, FAMILIES, VOCAB, assert_close, on_engine, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 7), generator=torch.Generator().manual_seed(4))
N_NEW = 40
WARM = Sampling(temperature=0.8)
WINDOWED = ["mistral_window", "gemma3_window", "c gemma3_window"]


def with_model(family: str, noise: float = 0.12, cached: type[CachedModel] = CachedModel) -> tuple:
    """A target and a drafter whose model is often right. "c llama" is a llama on the engine c."""
    engine, model = model_of(family)
    other = perturbed(model, noise)
    target = cached(model, fast=on_engine(engine, model))
    return target, ModelDrafter(cached(other, fast=on_engine(engine, other)))


def with_head(kind: str) -> tuple:
    """A target and a drafter whose head has learnt some of its texts."""
    target, head, _ = trained() if kind == "feature" else block_heads().trained_block()
    cached = CachedModel(target)
    cached.hidden_layers = head.config.layers
    return cached, FeatureDrafter(head) if kind == "feature" else block_heads().BlockDrafter(head)


def decoded(target, drafter: TreeDrafter, prompt: Tensor = PROMPT, n: int = N_NEW, *how, **more) -> list[Round]:
    return list(speculative_rounds(target, drafter, prompt, drafter.n_tokens, n, *how, **more))


# --- The shape --------------------------------------------------------------------------------------------------------


def test_what_rows_read_and_how_deep_they_are():
    parents = torch.cat([torch.tensor([level_parents([2, 4, 4])]), chain(10)])
    assert parents.tolist() == [[-1, -1, 0, 0, 1, 1, 2, 3, 4, 5], [*range(-1, 9)]]
    depths = TreeDraft(torch.zeros_like(parents), torch.tensor([10, 10]), parents=parents).depths()
    for row in range(2):
        for i in range(11):
            branch, node = {i}, i
            while node:
                node = parents[row, node - 1].item() + 1
                branch.add(node)
            assert set(reads(parents)[row, i].nonzero()[:, 0].tolist()) == branch
            assert depths[row, i] == len(branch) - 1


# --- The text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "feature", "block"])
def test_a_tree_of_one_branch_is_a_chain(kind):
    """The same rounds from the same random numbers, token by token."""
    target, drafter = with_model("llama") if kind == "model" else with_head(kind)
    chains = []
    for prompt in (PROMPT, prompts(1)):
        of_prompt = list(speculative_rounds(target, drafter, prompt, 3, N_NEW, WARM))
        assert decoded(target, TreeDrafter(drafter, (1, 1, 1), sampled=True), prompt, N_NEW, WARM) == of_prompt
        chains += of_prompt
    assert any(r.n_rejected for r in chains)
    assert any(r.n_accepted for r in chains)


# --- What is said on a branch -----------------------------------------------------------------------------------------


class Said:
    """A drafter for trees, and what it said after each token: (text, branch, logits). text: all that is committed."""

    def __init__(self, drafter, text: list[int]):
        self.drafter, self.text, self.said = drafter, text, []

    def __getattr__(self, name: str):
        return getattr(self.drafter, name)

    def start_tree(self):
        logits, self.branches = self.drafter.start_tree(), [[]]
        self.said.append((self.text, [], logits[0].clone()))
        return logits

    def grow(self, tokens, parents, reads, depth):
        logits = self.drafter.grow(tokens, parents, reads, depth)
        for token, parent, row in zip(tokens.tolist(), parents.tolist(), logits, strict=True):
            self.branches.append([*self.branches[parent + 1], token])
            self.said.append((self.text, self.branches[-1], row.clone()))
        return logits


def said_alone(target: CachedModel, drafter, text: list[int], branch: list[int]) -> Tensor:
    """The same logits without a cache and without a tree, from the text and this branch alone."""
    if isinstance(drafter, ModelDrafter):
        return drafter.draft.model(torch.tensor([[*text, *branch]]), use_cache=False).logits[0, -1]
    states = target_states(target.model, text, drafter.head.config.layers)
    if isinstance(drafter, FeatureDrafter):
        return feature_row(drafter.head, states, text, branch)
    return block_heads().block_rows(drafter.head, states, text, [*branch, 0])[-1]


@pytest.mark.parametrize("best", [False, True])
@pytest.mark.parametrize("kind", ["model", "feature", "block"])
def test_logits_of_every_token_of_a_tree_are_a_recomputations(kind, best):
    """After every round: whatever was committed before, a token reads its branch, in the branch's order."""
    target, drafter = with_model("llama") if kind == "model" else with_head(kind)
    tree = BestTreeDrafter(drafter, width=3) if best else TreeDrafter(drafter, (3, 2, 2), sampled=True)
    said = tree.growing = Said(tree.growing, prompts(4)[3].tolist())
    how, rounds = Sampling(0.7, top_k=20, top_p=0.95), []
    for round_ in speculative_rounds(target, tree, prompts(4)[3:], 12 if best else tree.n_tokens, 12, how):
        rounds.append(round_)
        said.text = said.text + round_.tokens
    assert any(r.n_rejected and r.n_accepted for r in rounds)
    with torch.inference_mode():
        for text, branch, logits in said.said:
            assert torch.allclose(logits, said_alone(target, drafter, text, branch), atol=1e-9), branch
    assert any(len(branch) > 1 for _, branch, _ in said.said)
    assert len({len(text) for text, *_ in said.said}) > 2


# --- The most probable branches ---------------------------------------------------------------------------------------


IDS = 5


def branches(draft: CachedModel, committed: list[int], depth: int, how: Sampling) -> dict[tuple[int, ...], float]:
    """Every continuation of up to `depth` tokens that is possible, and its probability; uncached."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for length in range(depth):
        for before in [one for one in found if len(one) == length]:
            ids = torch.tensor([[*committed, *before]])
            with torch.inference_mode():
                logits = draft.model(input_ids=ids, use_cache=False).logits[0, -1].tolist()
            row = reference_probs(logits, how.temperature or 1.0, how.top_k, how.top_p)
            found |= {(*before, token): found[before] * row[token] for token in range(IDS) if row[token]}
    return found


@pytest.mark.parametrize("how", [Sampling(), Sampling(0.7, top_k=4, top_p=0.9)], ids=["greedy", "filtered"])
@pytest.mark.parametrize("n", [2, 8])
def test_the_most_probable_branches_are_drafted(n, how):
    """Against all continuations of up to three tokens, after several texts. Greedy ones are ranked at temperature 1."""
    target = CachedModel(tiny("llama", vocab_size=IDS))
    drafter = ModelDrafter(CachedModel(tiny("llama", vocab_size=IDS, seed=1)))
    tree, depths_seen = BestTreeDrafter(drafter, width=n), set()
    for seed in range(4):
        prompt = torch.randint(0, IDS, (1, 6), generator=torch.Generator().manual_seed(seed))
        target.prefill(prompt)
        tree.prefill(target, prompt, how)
        tree.observe(0, [seed])
        draft = tree.propose(3, torch.zeros(1, n))
        tokens, parents = draft.tokens[0].tolist(), draft.parents[0].tolist()
        drafted = [()]
        for token, parent in zip(tokens, parents, strict=True):
            assert parent + 1 < len(drafted)
            drafted.append((*drafted[parent + 1], token))
        del drafted[0]
        known = branches(drafter.draft, [*prompt[0].tolist(), seed], 3, how)
        del known[()]
        # A token that is certain after another one is as probable as that one, and comes behind it.
        by_rank = sorted(known, key=lambda one: (-round(known[one], 9), len(one)))
        assert sorted(drafted) == sorted(by_rank[:n])
        depths_seen |= {len(one) for one in drafted}
    assert len(depths_seen) > 1


# --- The caches -------------------------------------------------------------------------------------------------------


class Poisoned(CachedModel):
    """Writes NaN over the dropped tokens of a tree, in the storage that the kept ones share."""

    n_poisoned = 0

    def keep(self, path: list[int]) -> None:
        self.paths, before = [*getattr(self, "paths", []), path], self.length
        storage = keys_and_values(self)  # of the text, or of what a window holds of it
        super().keep(path)
        n_dropped = before - self.length
        parts = [part[:, :, part.shape[2] - n_dropped :] for layer in storage for part in layer]
        if isinstance(self.backend, CBackend):
            parts = [part for row in range(self.length, before) for part in row_of(self.backend, row)]
        with torch.inference_mode():
            for part in parts:
                part.fill_(torch.nan)
        self.n_poisoned += n_dropped


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "c qwen2", "c gpt2", *WINDOWED])
def test_caches_equal_a_recomputation_after_every_round(family, sampling):
    """Another position, a sibling that was read, or a branch in the wrong order leaves other keys and values behind."""
    target, drafter = with_model(family, cached=Poisoned)
    draft, ids = drafter.draft, PROMPT[0].tolist()
    tree = TreeDrafter(drafter, (3, 2, 1), sampled=True)
    for round_ in speculative_rounds(target, tree, PROMPT, tree.n_tokens, N_NEW, sampling):
        ids += round_.tokens
        assert target.length == len(ids) - 1
        assert draft.length <= target.length
        assert worst_difference(target, ids[:-1]) < CLOSE[target.model.dtype]
        assert worst_difference(draft, ids[: draft.length]) < CLOSE[target.model.dtype]
    assert any(path and path != list(range(len(path))) for path in target.paths), "every branch lay in its place"
    assert target.n_poisoned > 5
    if sampling.greedy:
        assert ids[PROMPT.shape[1] :] == plain_text(CachedModel(target.model), PROMPT, N_NEW)


@pytest.mark.parametrize("engine", ["eager", "c", "graphs"])
def test_hidden_states_follow_the_branch(engine, monkeypatch):
    """A head reads the states of the accepted tokens in their order."""
    if engine == "graphs":
        stand_in(monkeypatch)
        target = graphed("llama")
    else:
        model = tiny("llama", dtype=DTYPE_ON[engine])
        target = CachedModel(model, fast=on_engine(engine, model))
    target.hidden_layers = (0, 1)
    plain = CachedModel(target.model)
    plain.hidden_layers = (0, 1)
    parents = torch.tensor([level_parents([2, 4])])
    tokens = torch.tensor([[3, 5, 6, 7, 8, 9, 10]])  # the last committed one, then the tree
    target.prefill(PROMPT)
    logits = target.forward(tokens, reads(parents))
    target.keep([1, 4])
    plain.prefill(PROMPT)
    expected = plain.forward(tokens[:, [0, 2, 5]])
    assert_close(logits[:, [0, 2, 5]], expected)
    assert_close(target.hidden((0, 1))[:, :3], plain.hidden((0, 1)))
    assert target.length == plain.length == PROMPT.shape[1] + 3
    assert_close(target.forward(tokens[:, :2]), plain.forward(tokens[:, :2]))


# --- Models that cannot ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_families_that_take_trees(family):
    """Also where the model has more rows than its tokenizer has ids, at which passes are cut."""
    for n_ids in (VOCAB, VOCAB - 8):
        check_tree(CachedModel(tiny(family), n_ids))
    if family != "opt":  # which the engine c does not know
        model = tiny(family, dtype=torch.float32)
        check_tree(CachedModel(model, fast=on_engine("c", model)))


@pytest.mark.parametrize("kind", ["tree:2x1:model", "tree:best:model", "merge:suffix+model"])
def test_recurrent_drafts_are_refused(kind, monkeypatch):
    """A draft model reads the branches, too."""
    setup = Setup(CachedModel(tiny("llama")), None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    drafts = [CachedModel(tiny("llama")), CachedModel(tiny_families.tiny("mamba"))]
    monkeypatch.setattr(Setup, "load_draft", lambda setup, name: drafts[0])
    registry.make(kind, setup)
    del drafts[0]
    with pytest.raises(EnvironmentProblem, match="recurrent layers, whose states cannot be cropped"):
        registry.make(kind, setup)


@pytest.mark.parametrize("ignored", ["position_ids", "attention_mask"])
def test_a_model_that_ignores_what_a_tree_needs_is_refused(ignored):
    model = tiny("gpt2")
    right = model.forward
    model.forward = lambda *args, **options: right(*args, **options | {ignored: None})
    with pytest.raises(EnvironmentProblem, match="branches"):
        check_tree(CachedModel(model))


@pytest.mark.parametrize("family", ["bloom", "llama4_text"])
def test_a_family_that_takes_no_mask_of_a_tree_is_refused(family):
    with pytest.raises(EnvironmentProblem, match="branches"):
        check_tree(CachedModel(tiny_families.tiny(family)))


# --- Which drafters can -----------------------------------------------------------------------------------------------


def test_a_subclass_grows_as_its_base_only_where_it_says_so():
    """It may draft other tokens. What its base says holds for the class that says it alone."""

    class Other(ModelDrafter):
        pass

    class Same(ModelDrafter):
        branches_as_base = True

    class OfSame(Same):
        pass

    model = CachedModel(tiny("llama"))
    assert BestTreeDrafter(Same(model)).drafter.draft is model
    for kind in (Other, OfSame, NgramDrafter):
        drafter = kind() if kind is NgramDrafter else kind(model)
        with pytest.raises(UsageProblem, match=f"{kind.__name__} does not say") as problem:
            BestTreeDrafter(drafter)
        assert "\n" not in str(problem.value)
