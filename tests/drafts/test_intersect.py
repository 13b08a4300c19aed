"""A draft by the tokens that two vocabularies share: exact at every temperature; where all are, what a model drafts."""

import copy
import itertools
import random
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from decoding import plain_text, speculative_rounds
from llamas import tiny_llama
from renumbered import save_renumbered
from small_tokenizers import LINES, byte_level, sentence_piece, words
from tiny_models import PlainTransformer, flattened, perturbed
from torch import nn
from transformers import LlamaConfig

import optimized_speculative
from draft_models import NgramDrafter
from speclab.batch.select import batch_drafter
from speclab.core.accept import RULES
from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.described import describe_draft
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.intersect import IntersectDrafter, intersect
from speclab.drafts.kinds import check_kind, drafter_name
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.select import make_drafter
from speclab.drafts.tree import BestTreeDrafter
from speclab.drafts.trees.fixed import TreeDrafter
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from speclab.models.setup import Setup, load_setup
from speclab.models.shared_tokens import SharedTokens
from speclab.system.errors import UsageProblem
from tests.models.test_caches import worst_difference
from tests.test_exact import (
    Job,
    Prefix,
    Row,
    Tables,
    assert_lossless,
    inside,
    paths_of,
    random_row,
)

WARM = Sampling(0.8)


class Pairs:
    """Reads a shared token as its pair, and any other one as two ids of the draft."""

    def __init__(self, shared: SharedTokens, n_draft: int):
        self.pairs = dict(zip(shared.target_ids, shared.draft_ids, strict=True))
        others = [i for i in range(n_draft) if i not in shared.draft_ids]
        self.other = [others[0], shared.draft_ids[0]]

    def token(self, i: int) -> list[int]:
        return [self.pairs[i]] if i in self.pairs else self.other

    def prompt(self, ids: list[int]) -> list[int]:
        return [own for i in ids for own in self.token(i)]


# --- exact ------------------------------------------------------------------------------------------------------------

SHARED = SharedTokens([0, 1, 2], [4, 0, 2], 4, 5)  # of the target's ids 0 to 3 and the draft's 0 to 4
N_TARGET, N_DRAFT = 4, 5
READS = Pairs(SHARED, N_DRAFT)


class TableModel(nn.Module):
    """A model whose next token has a row of probabilities for each text; its cache holds the ids."""

    device = torch.device("cpu")

    def __init__(self, n_ids: int, row_of):
        super().__init__()
        sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 1}
        self.config = LlamaConfig(vocab_size=n_ids, **sizes)
        self.row_of = row_of

    def forward(self, input_ids, past_key_values=None, use_cache=False, logits_to_keep: int = 0):
        keys = input_ids[:, None, :, None].double()
        if past_key_values is not None:
            keys, _ = past_key_values.update(keys, keys, 0)
        ids = keys[0, 0, :, 0].long().tolist()
        ends = range(len(ids) - input_ids.shape[1] + 1, len(ids) + 1)
        rows = [[float(weight) for weight in self.row_of(tuple(ids[:end]))] for end in ends]
        return SimpleNamespace(logits=torch.tensor([rows], dtype=torch.float64).log()[:, -logits_to_keep:])


def draft_row(seed: int, text: Prefix, zeros: bool) -> Row:
    """Over the draft's ids, some of them shared and some not."""
    rng = random.Random(f"draft {seed} {text}")
    support = sorted({rng.choice(SHARED.draft_ids), *rng.sample(range(N_DRAFT), 2)}) if zeros else list(range(N_DRAFT))
    return random_row(rng, N_DRAFT, support)


def restricted(row: Row) -> Row:
    """The definition: the shared tokens' part of a draft's row, over the target's ids."""
    mass = sum(row[i] for i in SHARED.draft_ids)
    return [row[READS.pairs[i]] / mass if i in READS.pairs else Fraction(0) for i in range(N_TARGET)]


def exact_tables(seed: int, first: int, k: int, zeros: bool) -> Tables:
    """Rows after the prompt [0]: its one certain token `first`, and then anything."""
    tables = Tables(N_TARGET, k, {(): [Fraction(int(i == first)) for i in range(N_TARGET)]}, {})
    for n in range(1, k + 2):
        for later in itertools.product(range(N_TARGET), repeat=n - 1):
            text = (first, *later)
            rng = random.Random(f"target {seed} {text}")
            support = rng.sample(range(N_TARGET), rng.randint(1, N_TARGET)) if zeros else list(range(N_TARGET))
            tables.target[text] = random_row(rng, N_TARGET, sorted(support))
            tables.draft[text] = restricted(draft_row(seed, tuple(READS.prompt([0, *text])), zeros))
    return tables


def centre_of(row: Row, token: int) -> float:
    """The middle of the uniforms that draw this token."""
    return inside((sum(row[:token], Fraction(0)), sum(row[: token + 1], Fraction(0))), Fraction(1, 2))


def first_round(tables: Tables, seed: int, k: int, zeros: bool, uniforms: list[float]):
    """The round after the prompt's, through the loop, the caches and the drafter."""
    given = iter([torch.tensor([0.5]), torch.tensor([uniforms], dtype=torch.float64)])
    target = CachedModel(TableModel(N_TARGET, lambda text: tables.target[text[1:]]))
    draft = CachedModel(TableModel(N_DRAFT, lambda text: draft_row(seed, text, zeros)))
    drafter = IntersectDrafter(draft, SHARED, READS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimized_speculative, "uniforms", lambda *args: next(given))
        rounds = speculative_rounds(target, drafter, torch.tensor([[0]]), k, k + 2, Sampling(1.0))
        return list(itertools.islice(rounds, 2))[1]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("k", "n_seeds"), [(1, 6), (2, 1)])
def test_a_round_emits_the_targets_joint_law(k, n_seeds, zeros):
    """The law of all that the real loop commits, as a sum of exact volumes; the draft shares three tokens of five."""
    counts = {"accepted": 0, "rejected": 0, "outside": Fraction(0)}
    for seed, first in itertools.product(range(n_seeds), (1, 3)):  # a shared token, and one that the draft lacks
        tables = exact_tables(seed, first, k, zeros)
        job = Job(tables, (first,), k)
        law: dict[Prefix, Fraction] = {}
        for path in paths_of(0, job):
            texts = [(first, *path.tokens[:i]) for i in range(k)]
            drawn = [centre_of(tables.draft[text], token) for text, token in zip(texts, path.tokens, strict=True)]
            for cell in itertools.product(*path.sides):
                volume = path.chance
                for low, high in cell:
                    volume *= high - low
                uniforms = [*drawn, *(inside(box, Fraction(1, 2)) for box in cell)]
                round_ = first_round(tables, seed, k, zeros, uniforms)
                law[tuple(round_.tokens)] = law.get(tuple(round_.tokens), Fraction(0)) + volume
                counts["accepted"] += round_.n_accepted
                counts["rejected"] += round_.n_rejected
        counts["outside"] += sum(chance for block, chance in law.items() if 3 in block)
        assert_lossless(job, SimpleNamespace(law=law))
    assert min(counts.values()) > 0, counts


# --- models -----------------------------------------------------------------------------------------------------------


def cousin(target, shared: SharedTokens, n_ids: int, noise: float = 0.05):
    """A draft of another vocabulary that thinks as the target does: shared tokens have the target's rows."""
    other = tiny_llama(9, n_layers=2, vocab_size=n_ids, dtype=target.dtype)
    with torch.no_grad():
        for (name, weight), own in zip(other.named_parameters(), perturbed(target, noise).parameters(), strict=True):
            if "embed" in name or "head" in name:
                weight[shared.draft_ids] = own[shared.target_ids]
            else:
                weight.copy_(own)
    return other


OVERLAP = SharedTokens([0, 1, 2, 5, 7, 8, 9, 11], [3, 1, 6, 0, 9, 2, 8, 5], 12, 10)


class Watched(IntersectDrafter):
    """Compares its cache with a recomputation, and its laws with uncached ones, after every proposal."""

    def prefill(self, target, prompt, sampling):
        self.ids, self.n_prompt, self.n_checked = prompt[0].tolist(), prompt.shape[1], 0
        super().prefill(target, prompt, sampling)

    def propose(self, k, uniforms):
        draft = super().propose(k, uniforms)
        drafted = draft.tokens[0].tolist()
        if drafted:
            fed = self._reads.prompt([*self.ids, *drafted[:-1]])
            assert self.draft.length == len(fed)
            assert worst_difference(self.draft, fed) < 1e-9
            assert set(drafted) <= set(self.shared.target_ids)
            said, _ = self.probs(self.ids[: self.n_prompt], [*self.ids[self.n_prompt :], *drafted], WARM, 12)
            if draft.probs is None:
                assert said[-len(drafted) :].argmax(-1).tolist() == drafted
            else:
                torch.testing.assert_close(draft.probs[0], said[-len(drafted) :])
                assert not draft.probs[0][:, [i for i in range(12) if i not in self.shared.target_ids]].any()
            self.n_checked += len(drafted)
        return draft

    def observe(self, n_accepted, committed):
        super().observe(n_accepted, committed)
        self.ids += committed


@pytest.mark.parametrize("fast", [False, True], ids=["eager", "fast"])
@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_text_cache_and_laws(sampling, fast):
    """Among the target's tokens are some that the draft lacks, and reads as two of its own."""
    target = tiny_llama(0, vocab_size=12)
    other = cousin(target, OVERLAP, 10)
    draft = CachedModel(other, fast=flattened(other) if fast else None)
    drafter, n = Watched(draft, OVERLAP, Pairs(OVERLAP, 10)), [0, 0, 0, 0]
    for seed in range(3):
        prompt = torch.randint(0, 12, (1, 3 + seed), generator=torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        rounds = list(speculative_rounds(CachedModel(target), drafter, prompt, 3, 24, sampling, generator))
        if sampling.greedy:
            assert tokens_of(rounds) == plain_text(CachedModel(target), prompt, 24)
        n[0] += sum(r.n_accepted for r in rounds)
        n[1] += sum(r.n_rejected for r in rounds)
        n[2] += sum(token not in OVERLAP.target_ids for token in tokens_of(rounds))
        n[3] += drafter.n_checked
    assert min(n) > 5, n


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (Sampling(1.0), "block"),
        (Sampling(0.7, top_k=3), "token"),
        (Sampling(1.2, top_p=0.8), "token"),
    ],
    ids=str,
)
def test_joint_law(sampling, rule):
    """Two tokens, chi-square; false alarms have a probability of 1e-6."""
    from scipy.stats import chi2

    target = PlainTransformer(6, seed=3)
    near = perturbed(target, 0.4)
    shared = SharedTokens([0, 2, 3, 5], [4, 1, 0, 2], 6, 5)
    other = PlainTransformer(5, seed=4)
    with torch.no_grad():
        other.tokens[shared.draft_ids], other.head[:, shared.draft_ids] = (
            near.tokens[shared.target_ids],
            near.head[:, shared.target_ids],
        )
        other.qkv.copy_(near.qkv)
        other.positions.copy_(near.positions)
    drafter = IntersectDrafter(CachedModel(other), shared, Pairs(shared, 5))
    prompt, generator = torch.tensor([[1, 4, 0]]), torch.Generator().manual_seed(11)
    seen, n, n_accepted, n_rejected = torch.zeros(6, 6, dtype=torch.float64), 1000, 0, 0
    cached = CachedModel(target)
    for _ in range(n):
        tokens = []
        for r in speculative_rounds(cached, drafter, prompt, 2, 5, sampling, generator, accept=RULES[rule]):
            tokens += r.tokens
            n_accepted, n_rejected = n_accepted + r.n_accepted, n_rejected + r.n_rejected
            if len(tokens) > 2:
                break
        seen[tokens[1], tokens[2]] += 1
    law = torch.zeros(6, 6, dtype=torch.float64)
    with torch.inference_mode():
        for first in range(6):
            start = sampling.probs(target(prompt, use_cache=False).logits[0, -1])[first]
            ids = torch.cat([prompt, torch.tensor([[first]])], dim=1)
            second = sampling.probs(target(ids, use_cache=False).logits[0, -1])
            more = torch.cat([ids.repeat(6, 1), torch.arange(6)[:, None]], dim=1)
            law += start * second[:, None] * sampling.probs(target(more, use_cache=False).logits[:, -1])
    assert seen[law == 0].sum() == 0
    expected = n * law[law > 0]
    rare = expected < 5
    bins = torch.cat([expected[~rare], expected[rare].sum()[None]]) if rare.any() else expected
    counts = seen[law > 0]
    counts = torch.cat([counts[~rare], counts[rare].sum()[None]]) if rare.any() else counts
    assert chi2.sf(((counts - bins) ** 2 / bins).sum().item(), len(bins) - 1) > 1e-6
    assert n_accepted > n / 10
    assert n_rejected > n / 20


# --- two tokenizers ---------------------------------------------------------------------------------------------------


def setup_with(tokenizer, sampling: Sampling = Sampling(), seed: int = 0) -> Setup:
    """A target that hardly reads what stands before the last token, so that a text may be cut in another way."""
    model = tiny_llama(seed, vocab_size=len(tokenizer))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(0.1)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    target = CachedModel(model, len(tokenizer))
    return Setup(target, tokenizer, "tiny", sampling, model.device, model.dtype)


TOKENIZERS = {
    "into pieces": (byte_level(), sentence_piece()),
    "into bytes": (sentence_piece(), byte_level()),
    "two of a kind": (byte_level(400, 2), byte_level()),
}


def drafter_between(tokenizers, setup: Setup) -> IntersectDrafter:
    """A draft with the second tokenizer that is near the target, with the first one."""
    _, own = tokenizers
    other = tiny_llama(1, vocab_size=len(own))
    other.generation_config.eos_token_id = own.eos_token_id
    drafter = intersect(CachedModel(other, len(own)), own, setup, "intersect:own")
    near = cousin(setup.target.model, drafter.shared, len(own), noise=0.02)
    near.generation_config = other.generation_config
    return intersect(CachedModel(near, len(own)), own, setup, "intersect:own")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_greedy_text_of_two_tokenizers(kind):
    """Chains, chosen lengths, a hybrid, and trees."""
    setup = setup_with(TOKENIZERS[kind][0])
    drafter = drafter_between(TOKENIZERS[kind], setup)
    auto = AutoLength(drafter)
    auto.costs[0.0] = RoundCosts((0.0, 0.1, 0.2, 0.3, 0.4), (1.0, 1.0, 1.1, 1.1, 1.1))
    kinds = {
        "chain": drafter,
        "auto": auto,
        "hybrid": HybridDrafter(NgramDrafter(2, 1), drafter),
        "tree": TreeDrafter(drafter, (2, 1)),
        "best tree": BestTreeDrafter(drafter),
    }
    kept = dict.fromkeys(kinds, 0)
    for line in LINES[:3]:
        prompt = setup.tokenizer(line, return_tensors="pt").input_ids
        text = plain_text(setup.target, prompt, 20)
        for name, one in kinds.items():
            rounds = list(speculative_rounds(setup.target, one, prompt, 4, 20))
            assert tokens_of(rounds) == text, name
            kept[name] += sum(r.n_accepted for r in rounds)
    assert min(kept.values()) > 5, kept
    assert "tokens in both vocabularies" in (describe_draft("intersect:own", drafter, "eager") or "")


def test_the_end_of_a_text_is_drafted():
    """Where both models end their texts with a token of their own."""
    setup = setup_with(byte_level())
    drafter = drafter_between(TOKENIZERS["into pieces"], setup)
    pairs = dict(zip(*drafter.shared[:2], strict=True))
    assert pairs[byte_level().eos_token_id] == sentence_piece().eos_token_id
    setup.target.model.generation_config.eos_token_id = None
    assert byte_level().eos_token_id not in drafter_between(TOKENIZERS["into pieces"], setup).shared.target_ids


def test_vocabularies_that_share_next_to_nothing_are_refused():
    setup = setup_with(byte_level())
    own = words(*(f"word{i}" for i in range(50)), "a", "b")
    model = CachedModel(tiny_llama(1, vocab_size=len(own)), len(own))
    with pytest.raises(
        UsageProblem, match=r"both vocabularies: 1 \(.* 52 .* 319\), 1.9% .*retokenize:some/one"
    ) as problem:
        intersect(model, own, setup, "intersect:some/one")
    assert "\n" not in str(problem.value)


def test_the_context_of_the_draft_ends_the_proposals():
    """It counts the draft's own tokens, and there are more of them than the target's."""
    target = CachedModel(tiny_llama(0, vocab_size=12))
    drafter = IntersectDrafter(CachedModel(cousin(target.model, OVERLAP, 10)), OVERLAP, Pairs(OVERLAP, 10))
    drafter.draft.max_length = 9
    drafter.prefill(target, torch.tensor([[3, 4, 0]]), Sampling())  # two of them are two for the draft
    drafter.observe(0, [6])
    assert drafter.room == 9 - 7 + 1
    assert drafter.propose(9, torch.zeros(1, 9)).tokens.shape[1] == 3
    assert drafter.draft.length == 9
    drafter.observe(0, [3, 1])
    assert drafter.propose(9, torch.zeros(1, 9)).tokens.shape[1] == 0
    law, outside = drafter.probs([3, 4, 0], [6, 3, 1, 1], Sampling(), 12)
    assert law.sum(-1).tolist() == [1, 1, 1, 0]
    assert drafter.n_read([3, 4, 0], [6, 3, 1, 1]) == [5, 7, 9, 10]
    assert outside[-1] == 0


def test_rows_of_a_batch_have_caches_of_their_own():
    target = CachedModel(tiny_llama(0, vocab_size=12))
    drafter = IntersectDrafter(CachedModel(cousin(target.model, OVERLAP, 10)), OVERLAP, Pairs(OVERLAP, 10))
    made = batch_drafter(drafter, 2)
    assert not hasattr(made, "draft")
    twin = copy.deepcopy(drafter)
    assert twin.draft is not drafter.draft
    assert twin.draft.model is drafter.draft.model


# --- the lab's own draft ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def renumbered(tmp_path_factory) -> str:
    """The lab's draft in a folder, with its tokenizer's ids in another order."""
    return save_renumbered(tmp_path_factory.mktemp("renumbered"))


@pytest.mark.parametrize("sampling", [Sampling(), WARM, Sampling(0.9, top_k=5, top_p=0.9)], ids=str)
def test_where_all_is_shared_it_is_the_model(renumbered, sampling):
    """Round by round what `model` does: with the same tokenizer, and with the same words under other ids."""
    setup = load_setup(loading.LAB_TARGET, sampling, threads=1, engine="eager")
    names = ("model", f"intersect:{loading.LAB_DRAFT}", f"intersect:{renumbered}")
    drafters = [make_drafter(name, setup) for name in names]
    assert isinstance(drafters[1], IntersectDrafter)
    assert isinstance(drafters[2], IntersectDrafter)
    assert len(drafters[2].shared.target_ids) == len(setup.tokenizer)
    kept = 0
    for prompt in prompts.encode(prompts.standard()[:4], setup.tokenizer):
        rounds = [
            list(speculative_rounds(setup.target, d, prompt.ids, 4, 24, sampling, torch.Generator().manual_seed(3)))
            for d in drafters
        ]
        assert rounds[0] == rounds[1] == rounds[2]
        kept += sum(r.n_accepted for r in rounds[0])
    assert kept > 20


def test_names(renumbered):
    for kind in ("intersect:a/b", "hybrid:suffix+intersect:a/b", "tree:2:intersect:a/b", "merge:suffix+intersect:a/b"):
        check_kind(kind)
    assert drafter_name(f"intersect:{renumbered}") == f"intersect:{loading.short_name(renumbered)}"
    assert drafter_name("hybrid:suffix+intersect:a/b") == "hybrid:suffix+intersect:a/b"
    for kind in ("intersect", "intersect:", "intersect:model", "dial:0.5:intersect:a/b"):
        with pytest.raises(UsageProblem) as problem:
            check_kind(kind)
        assert "\n" not in str(problem.value)
