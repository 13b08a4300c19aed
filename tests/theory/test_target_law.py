"""Sampled texts are judged in the run's number format: rounding at a filter's edge is explained, nothing else is."""

import copy
import functools

import pytest
import torch

from draft_models import ModelDrafter
from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings
from speclab.core.sampling import Sampling
from speclab.models import checks
from speclab.models.cached import CachedModel
from speclab.models.checks import Reference
from speclab.models.family import distributions
from speclab.theory.losslessness import APART, CHUNK, ZStatistics, known_law, z_statistics
from tests.tiny_models import VOCAB, perturbed, tiny

PROMPT = [5, 9, 2, 40, 7]
SAMPLINGS = {
    "top-k": Sampling(0.8, top_k=5),
    "top-p": Sampling(0.8, top_p=0.9),
    "both": Sampling(0.7, top_k=9, top_p=0.9),
    "no filter": Sampling(1.2),
}
N_TEXTS, LENGTH = 5, 48


@functools.cache
def models(dtype: torch.dtype) -> tuple[torch.nn.Module, torch.nn.Module]:
    return tiny("llama", dtype=dtype), perturbed(tiny("llama", dtype=dtype), 0.3)


@functools.cache
def texts(dtype: torch.dtype, sampling: Sampling, k: int, n: int = N_TEXTS) -> list[list[int]]:
    """Texts of the real loop; k = 0 decodes plainly."""
    target, draft = models(dtype)
    found = []
    for seed in range(n):
        drafter, settings = ModelDrafter(CachedModel(draft)), DecodeSettings(LENGTH, sampling, seed=seed)
        rounds = list(speculative_decode(CachedModel(target), drafter, torch.tensor([PROMPT]), k, settings))
        if k:
            assert 0 < sum(r.n_accepted for r in rounds) < sum(r.n_drafted for r in rounds)
        found.append([token for round_ in rounds for token in round_.tokens])
    return found


def verdict(dtype: torch.dtype, sampling: Sampling, found: list[list[int]]) -> ZStatistics:
    target, draft = models(dtype)
    reference, places = Reference(target), []
    for text in found:
        draft_probs = distributions(CachedModel(draft), PROMPT, text, sampling, VOCAB)
        places += known_law(reference, PROMPT, text, sampling, VOCAB, draft_probs)
    return z_statistics(places)


CASES = [
    *((torch.bfloat16, name, 3) for name in ("top-k", "top-p", "no filter")),
    (torch.bfloat16, "top-k", 0),
    (torch.float32, "both", 3),
]


@pytest.mark.parametrize(("dtype", "name", "k"), CASES, ids=str)
def test_right_texts_raise_no_alarm(dtype, name, k):
    """False-alarm rate 2e-6 for each case: two statistics, each with 1e-6."""
    sampling = SAMPLINGS[name]
    z = verdict(dtype, sampling, texts(dtype, sampling, k))
    assert z.passed, z
    assert z.n_tokens == N_TEXTS * LENGTH
    assert z.n_uncertain < 0.4 * z.n_tokens


def test_a_filter_of_the_judges_own_would_call_right_texts_wrong():
    """Otherwise the test above proves nothing about the edge: in bfloat16 the judge's own filter cuts drawn tokens."""
    sampling, target = SAMPLINGS["top-k"], CachedModel(models(torch.bfloat16)[0])
    found = texts(torch.bfloat16, sampling, 3)
    rows = (distributions(target, PROMPT, text, sampling, VOCAB)[torch.arange(LENGTH), text] for text in found)
    n_cut = sum(int((row == 0).sum()) for row in rows)
    z = verdict(torch.bfloat16, sampling, found)
    assert 0 < n_cut <= z.n_uncertain


@pytest.mark.parametrize(
    ("dtype", "name"), [(dtype, name) for dtype, name, k in CASES if k and name != "no filter"], ids=str
)
def test_a_token_that_no_rounding_explains_is_an_alarm(dtype, name):
    """One token of a right text is exchanged for one far outside the filter."""
    sampling = SAMPLINGS[name]
    found = [list(text) for text in texts(dtype, sampling, 3)]
    probs = distributions(CachedModel(models(dtype)[0]), PROMPT, found[3], Sampling(sampling.temperature), VOCAB)
    found[3][20] = probs[20].argmin().item()
    assert verdict(dtype, sampling, [*found[:3], found[3][:21], *found[4:]]).surprise == float("inf")


HOT, TOP_K, TOP_P = Sampling(1.2), Sampling(1.2, top_k=5), Sampling(1.2, top_p=0.9)
WRONG = {  # what tokens were drawn from, and the law that was asked for
    "temperature twice": (Sampling(1.44), HOT),
    "no top-k": (HOT, TOP_K),
    "no top-p": (HOT, TOP_P),
    "top-k + 1": (Sampling(1.2, top_k=6), TOP_K),
    "top-k - 2": (Sampling(1.2, top_k=3), TOP_K),
}


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG)
def test_texts_of_another_law_are_an_alarm(name):
    """Two thousand tokens; of top-k - 1 it would take eight thousand."""
    drawn, asked = WRONG[name]
    assert not verdict(torch.bfloat16, asked, texts(torch.bfloat16, drawn, 0, n=40)).passed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shift", [0.0, -100.0])
def test_differences_of_two_logits_of_cached_passes_lie_within_the_bound(dtype, shift):
    """Between the likely tokens of every place, with passes over three tokens; and the bound is not loose."""
    target, text = shifted(dtype, shift), texts(torch.bfloat16, SAMPLINGS["no filter"], 3)[0]
    right, deviations = Reference(target).with_deviations(PROMPT, text, VOCAB)
    cached = CachedModel(target)
    with torch.inference_mode():
        rows = [cached.prefill(torch.tensor([PROMPT]))[0, -1:]]
        rows += [cached.forward(torch.tensor([text[i : i + 3]]))[0] for i in range(0, LENGTH, 3)]
    likely = right.topk(16).indices
    off = (torch.cat(rows).double() - right.double()).gather(-1, likely)
    apart = off.amax(-1) - off.amin(-1)
    assert (apart <= APART * deviations).all()
    assert (apart > deviations / 20).any()


def shifted(dtype: torch.dtype, shift: float) -> torch.nn.Module:
    """The target, with the same number added to all its logits: in bfloat16 large numbers are rounded more."""
    model = copy.deepcopy(models(dtype)[0])
    own = model.lm_head
    model.lm_head = torch.nn.Linear(own.in_features, own.out_features, dtype=dtype)
    with torch.no_grad():
        model.lm_head.weight.copy_(own.weight)
        model.lm_head.bias.fill_(shift)
    return model


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("shift", [0.0, 40.0, -50.0])
def test_tokens_are_tested_however_large_the_logits_are(shift, copied, monkeypatch):
    """Drawn evenly they are an alarm, and drawn from the law they are none: most of them are tested."""
    if not copied:
        monkeypatch.setattr(Reference, "_higher", property(lambda reference: reference._model))
    target, sampling = shifted(torch.bfloat16, shift), Sampling(0.9, top_k=20)
    reference = Reference(target)
    text = texts(torch.bfloat16, SAMPLINGS["no filter"], 3)[0]
    probs = distributions(CachedModel(target), PROMPT, text, sampling, VOCAB)
    generator = torch.Generator().manual_seed(5)
    even = torch.full((LENGTH, VOCAB), 1 / VOCAB)
    places_of = [places for _, *places in known_law(reference, PROMPT, text, sampling, VOCAB, even)]
    found = []
    for law in (probs, even):
        drawn = [torch.multinomial(part, 40, replacement=True, generator=generator) for part in law.split(CHUNK)]
        found.append(z_statistics((row, *p) for part, p in zip(drawn, places_of, strict=True) for row in part.T))
    right, wrong = found
    assert right.passed
    assert right.n_uncertain < right.n_tokens / 2
    assert not wrong.passed


def test_without_a_copy_two_right_texts_may_differ_by_four_units_of_the_top_logit(monkeypatch):
    monkeypatch.setattr(Reference, "_higher", property(lambda reference: reference._model))
    own, deviation = Reference(models(torch.bfloat16)[0]).with_deviations(PROMPT, PROMPT, VOCAB)
    units = torch.finfo(torch.bfloat16).eps * own.amax(-1).abs()
    assert torch.allclose(APART * deviation, 4 * units)


def test_what_stands_for_never_this_token_is_no_rounding():
    """The lowest number of a dtype is another one in the next wider dtype; -infinity may be a finite number there."""
    own = torch.tensor([[3.0, 1.0, torch.finfo(torch.bfloat16).min, -torch.inf]], dtype=torch.bfloat16)
    right = torch.tensor([[3.0, 1.0, torch.finfo(torch.float32).min, -1e30]])
    assert checks.deviations(own, right).item() < 1
