"""Rounds along a known text: they are those of the decoding that wrote it, and nothing of a timed round is used."""

import copy

import pytest
import torch

from draft_models import ModelDrafter, NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import AutoLength, RoundCosts
from speclab.drafts.suffix import SuffixDrafter
from speclab.lab.bench import Bench
from speclab.lab.harness import Measurement
from speclab.lab.instruments import LoopFunctions
from speclab.lab.known_texts import replay_rounds, rounds_of_texts
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


KINDS = ("model auto", "ngram+model", "suffix+feature auto")


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_rounds_are_those_of_the_decoding(learnt, kind):
    """Drafted and accepted tokens of every round of several texts in a row, learning included."""
    target, head, prompts = learnt
    seen = replayed(target, lambda: drafter_of(kind, target, head), prompts)
    assert len(seen) > 2, "rounds of one kind alone would show nothing"
    assert {made.looked_up for made in seen} == ({True, False} if "+" in kind else {False})


def replayed(target, make, prompts, k: int = K) -> set[RoundCounts]:
    """The rounds of a drafter, which are those that another one like it makes along the known texts."""
    (timed, other), seen = (make(), make()), set()
    for prompt in prompts:
        rounds = list(map(timed.described, speculative_rounds(target, timed, prompt, k, N_NEW)))
        made = [RoundCounts(r.n_drafted, r.n_accepted, r.looked_up) for r in rounds if not r.prefill]
        text = plain_text(target, prompt, N_NEW)
        assert replay_rounds(LoopFunctions(speculative_decode), target, other, prompt, tuple(text), k) == made
        seen |= set(made)
    return seen


def test_no_pass_of_the_target_is_made_but_one_over_the_text(learnt, monkeypatch):
    target, head, prompts = learnt
    text = tuple(plain_text(target, prompts[0], N_NEW))
    passes, honest = [], type(target.model).forward
    monkeypatch.setattr(
        type(target.model), "forward", lambda self, *a, **kw: passes.append(1) or honest(self, *a, **kw)
    )
    drafter = drafter_of("suffix+feature", target, head)
    assert replay_rounds(LoopFunctions(speculative_decode), target, drafter, prompts[0], text, K)
    assert len(passes) == 1


def test_a_replay_learns_from_its_own_rounds_alone(learnt):
    """What the timed rounds have taught a draft changes nothing, and the draft is left as it was."""
    target, head, prompts = learnt
    setup = Setup(target, None, "tiny", Sampling(), torch.device("cpu"), torch.float64)
    found = []
    for taught in (False, True):
        drafter = drafter_of("feature auto", target, head)
        if taught:
            for _ in range(50):
                drafter.seen.setdefault(0.0, type(drafter.acceptance)()).depths[0].add(False)
        bench = Bench(setup, {"feature auto": drafter}, N_NEW, seed=0)
        before = copy.deepcopy(drafter.seen[0.0].depths[0]) if taught else None
        of_texts = rounds_of_texts(Measurement(bench, [Prompt("code", "", p) for p in prompts]))
        arm = Arm("feature auto", "feature auto", 8)
        texts = [tuple(plain_text(target, prompt, N_NEW)) for prompt in prompts]
        found.append([of_texts(arm, i, text) for i, text in enumerate(texts)])
        assert not taught or drafter.seen[0.0].depths[0].tested == before.tested
    assert found[0] == found[1]
