"""Rounds along a known text: they are those of the decoding that wrote it, and nothing of a timed round is used."""

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.suffix import SuffixDrafter
from speclab.lab.bench import Bench
from speclab.lab.known_texts import KnownText, rounds_along
from speclab.models.cached import CachedModel
from speclab.models.prompts import Prompt
from speclab.models.setup import Setup
from speclab.records.rows import AUTO, Arm, RoundCounts
from tests.decoding import plain_text, speculative_rounds
from tests.heads import trained
from tests.tiny_models import perturbed

N_NEW, K = 40, 6
COSTS = RoundCosts(tuple(0.1 * n for n in range(9)), tuple(1 + 0.1 * n for n in range(9)))


@pytest.fixture(scope="module")
def learnt():
    """A target in float64 with a head that drafts it well, and the prompts of their texts."""
    model, head, texts = trained()
    target = CachedModel(model)
    target.hidden_layers = head.config.layers
    return target, head, [texts[i : i + 1, :5] for i in range(3)]


def drafter_of(kind: str, target: CachedModel, head):
    """A drafter that learns while it drafts."""
    name, auto, _ = kind.partition(AUTO)
    drafter = FeatureDrafter(head) if "feature" in name else ModelDrafter(CachedModel(perturbed(target.model, 0.05)))
    drafter = AutoLength(drafter) if auto else drafter
    if "+" in name:
        drafter = HybridDrafter(NgramDrafter() if "ngram" in name else SuffixDrafter(), drafter)
    drafter.costs[0.0] = COSTS
    return drafter


@pytest.mark.parametrize("kind", ["model auto", "ngram+model", "suffix+feature auto"])
def test_replayed_rounds_are_those_of_the_decodings(learnt, kind, monkeypatch):
    target, head, prompts = learnt
    passes, honest = [], type(target.model).forward
    own = lambda self, *a, **kw: passes.append(self is target.model) or honest(self, *a, **kw)  # noqa: E731
    monkeypatch.setattr(type(target.model), "forward", own)
    seen = replayed(target, lambda: drafter_of(kind, target, head), prompts, before=passes.clear)
    assert sum(passes) == (len(prompts) if "feature" in kind else 0), "one over each text, for what heads read"
    assert len(seen) > 2, "rounds of one kind alone would show nothing"
    assert {one.looked_up for one in seen} == ({True, False} if "+" in kind else {False})


def replayed(target, make, prompts, k: int = K, before=lambda: None) -> set[RoundCounts]:
    """The rounds of a drafter over several texts in a row, learning included: those that another one like it makes
    along the known texts, whatever it was taught. before: is called before these are made."""
    timed, taught, made = make(), make(), []
    texts = [tuple(plain_text(target, prompt, N_NEW)) for prompt in prompts]
    for prompt in prompts:
        rounds = map(timed.described, speculative_rounds(target, timed, prompt, k, N_NEW))
        made.append([RoundCounts(r.n_drafted, r.n_accepted, r.looked_up) for r in rounds if not r.prefill])
    list(speculative_rounds(target, taught, prompts[0], k, N_NEW))
    setup = Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    bench, arm = Bench(setup, {"draft": taught}, N_NEW, seed=0), Arm("draft", "draft", k)
    before()
    along = [rounds_along(bench, arm, Prompt("code", "", ids), text) for ids, text in zip(prompts, texts, strict=True)]
    assert along == made
    assert KnownText(CachedModel(target.model, 4), torch.tensor([[5, 3]]), [2]).prefill(prompts[0][:, :2]).argmax() == 2
    return {one for rounds in made for one in rounds}
