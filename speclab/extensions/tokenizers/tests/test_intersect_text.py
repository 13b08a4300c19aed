"""A draft by the tokens that two vocabularies share: texts, caches and laws of models, and the names it goes by.

Where all tokens are shared it is what a model drafts.
"""

import pytest
import torch

from draft_models import NgramDrafter
from speclab.core.rounds import tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.registry import make, read
from speclab.extensions.tokenizers import register
from speclab.extensions.tokenizers.intersect import IntersectDrafter, intersect
from speclab.extensions.tokenizers.tests.vocabularies import (
    OVERLAP,
    TOKENIZERS,
    Pairs,
    cousin,
    drafter_between,
    setup_with,
)
from speclab.models import loading, prompts
from speclab.models.cached import CachedModel
from speclab.models.family import Room
from speclab.models.setup import Setup, load_setup
from speclab.system.errors import UsageProblem
from tests.decoding import plain_text, speculative_rounds
from tests.heads import keeping
from tests.llamas import tiny_llama
from tests.renumbered import save_renumbered
from tests.small_tokenizers import LINES, byte_level, sentence_piece, words

WARM = Sampling(0.8)


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_text_cache_and_laws(sampling):
    """Among the target's tokens are some that the draft lacks, and reads as two of its own. What is drafted is drawn
    from the law of one uncached pass."""
    target = tiny_llama(0, vocab_size=12)
    draft, n = CachedModel(cousin(target, OVERLAP, 10)), [0, 0, 0, 0]
    drafter = keeping(IntersectDrafter)(draft, OVERLAP, Pairs(OVERLAP, 10))
    others = [i for i in range(12) if i not in OVERLAP.target_ids]
    for seed in range(3):
        prompt = torch.randint(0, 12, (1, 3 + seed), generator=torch.Generator().manual_seed(seed))
        rounds = list(speculative_rounds(CachedModel(target), drafter, prompt, 3, 24, sampling, seed=seed))
        if sampling.greedy:
            assert tokens_of(rounds) == plain_text(CachedModel(target), prompt, 24)
        for so_far, draft in drafter.proposed:
            if drafted := draft.tokens[0].tolist():
                said = drafter.probs(prompt[0].tolist(), [*so_far[3 + seed :], *drafted], WARM, 12)[-len(drafted) :]
                assert not said[:, others].any()
                if draft.probs is None:
                    assert said.argmax(-1).tolist() == drafted
                else:
                    torch.testing.assert_close(draft.probs[0], said)
                n[3] += len(drafted)
        n[0] += sum(r.n_accepted for r in rounds)
        n[1] += sum(r.n_rejected for r in rounds)
        n[2] += sum(token in others for token in tokens_of(rounds))
    assert min(n) > 5, n


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
        "tree": pytest.importorskip("speclab.extensions.trees.fixed").TreeDrafter(drafter, (2, 1)),
        "best tree": pytest.importorskip("speclab.extensions.trees.best").BestTreeDrafter(drafter),
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
    assert "tokens in both vocabularies" in (drafter.describe("intersect:own", "eager") or "")


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
    drafter.draft.room = Room(9)
    drafter.prefill(target, torch.tensor([[3, 4, 0]]), Sampling())  # two of them are two for the draft
    drafter.observe(0, [6])
    assert drafter.room == 9 - 7 + 1
    assert drafter.propose(9, torch.zeros(1, 9)).tokens.shape[1] == 3
    assert drafter.draft.length == 9
    drafter.observe(0, [3, 1])
    assert drafter.propose(9, torch.zeros(1, 9)).tokens.shape[1] == 0
    law = drafter.probs([3, 4, 0], [6, 3, 1, 1], Sampling(), 12)
    assert law.sum(-1).tolist() == [1, 1, 1, 0]
    assert drafter.n_read([3, 4, 0], [6, 3, 1, 1]) == [5, 7, 9, 10]


@pytest.fixture(scope="module")
def renumbered(tmp_path_factory) -> str:
    """The lab's draft in a folder, with its tokenizer's ids in another order."""
    return save_renumbered(tmp_path_factory.mktemp("renumbered"))


@pytest.mark.parametrize(
    "sampling", [Sampling(), pytest.param(Sampling(0.9, top_k=5, top_p=0.9), marks=pytest.mark.full)], ids=str
)
def test_where_all_is_shared_it_is_the_model(renumbered, sampling):
    """Round by round what `model` does: with the same tokenizer, and with the same words under other ids."""
    setup = load_setup(loading.LAB_TARGET, sampling, threads=1, engine="eager")
    names = ("model", f"intersect:{loading.LAB_DRAFT}", f"intersect:{renumbered}")
    drafters = [make(name, setup) for name in names]
    assert isinstance(drafters[1], IntersectDrafter)
    assert isinstance(drafters[2], IntersectDrafter)
    assert len(drafters[2].shared.target_ids) == len(setup.tokenizer)
    kept = 0
    for prompt in prompts.encode(prompts.standard()[:2], setup.tokenizer):
        rounds = [list(speculative_rounds(setup.target, d, prompt.ids, 4, 24, sampling, seed=3)) for d in drafters]
        assert rounds[0] == rounds[1] == rounds[2]
        kept += sum(r.n_accepted for r in rounds[0])
    assert kept > 10


def test_names(renumbered):
    for kind in ("tree:2:intersect:a/b", "merge:suffix+intersect:a/b"):
        read(kind)
    assert read(f"intersect:{renumbered}").name == f"intersect:{loading.short_name(renumbered)}"
    assert read("hybrid:suffix+intersect:a/b").name == "hybrid:suffix+intersect:a/b"
    assert read(f"retokenize:{loading.LAB_DRAFT}").name == "retokenize:models/lab-pair/draft"
    wrong = [f"{word}{rest}" for word in ("retokenize", "intersect") for rest in ("", ":")]
    for kind in (*wrong, "hybrid:suffix+retokenize:a/b", "tree:2:retokenize:a/b", "dial:0.5:intersect:a/b"):
        with pytest.raises(UsageProblem) as problem:
            read(kind)
        assert "\n" not in str(problem.value)


@pytest.mark.parametrize("kind", ["retokenize", "intersect"])
def test_they_need_models_of_one_text(kind, monkeypatch):
    """The target must be decoder-only, and the family of the draft is asked, too."""
    assert not read(f"{kind}:some/model").any_family
    asked, cached = [], Setup.cached
    monkeypatch.setattr(register, "check_family", lambda model, what, advice: asked.append(what))
    monkeypatch.setattr(Setup, "cached", lambda *given, **how: asked.append(how) or cached(*given, **how))
    make(f"{kind}:{loading.LAB_DRAFT}", load_setup(loading.LAB_TARGET, threads=1, engine="eager"))
    assert asked == [f"--draft {kind}", {"graphs": False}], "its passes have any width"
