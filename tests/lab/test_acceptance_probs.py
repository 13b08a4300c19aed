"""Acceptance probabilities and costs against the decoders themselves: what is predicted is what then happens.

The last part is the strongest: on a machine whose clock is a price list, calibration finds the list again, and
predicted and measured speedups are the same number.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from draft_models import NgramDrafter
from optimized_speculative import speculative_decode
from speclab.core.accept import accept_from_logits
from speclab.core.counts import Counts
from speclab.core.drafter import CertainLaw, Law
from speclab.core.rounds import tokens_of
from speclab.core.sampling import GREEDY, Sampling
from speclab.lab.bench import Bench
from speclab.lab.comparison import build_rows
from speclab.lab.harness import measure
from speclab.lab.instruments import LoopFunctions
from speclab.lab.known_texts import calibrated, probs_along
from speclab.models.prompts import Prompt
from speclab.records.rows import BASELINE, Arm
from speclab.theory import attribution
from speclab.theory.formulas import forecast
from tests.decoding import plain_text, speculative_rounds
from tests.lab.test_harness import Machine, make_bench, make_prompt
from tests.tiny_models import PlainTransformer, perturbed

BUDGET = 40
LONGEST = 8


def pair_of(vocab: int) -> tuple:
    target = PlainTransformer(vocab, seed=3)
    return target, perturbed(target, 0.3)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return make_bench(pair_of(12), BUDGET)


def said(bench: Bench, prompt: Prompt, sampling: Sampling = Sampling(), seed: int = 0) -> list[int]:
    """The baseline's text."""
    return plain_text(bench.setup.target, prompt.ids, bench.max_new_tokens, sampling, seed=seed)


def decoded(bench: Bench, draft: str, prompt: Prompt, k: int, sampling=Sampling(), seed: int = 0):
    """One speculative decoding.  -> its text and counts"""
    counts, target, size = Counts(), bench.setup.target, (k, bench.max_new_tokens)
    rounds = list(speculative_rounds(target, bench.drafters[draft], prompt.ids, *size, sampling, seed))
    for round_ in rounds:
        counts.add(round_)
    return tokens_of(rounds), counts


@torch.inference_mode()
def next_probs(model, text: list[int], temperature: float, keep: int) -> Tensor:
    """The distribution after `text` from a pass of its own, in the plainest words.  -> (vocab,)"""
    logits = model(torch.tensor([text])).logits[0, -1].double()
    if temperature == 0:
        return torch.nn.functional.one_hot(logits.argmax(), len(logits)).double()
    weights = (logits / temperature).exp()
    weights[weights.argsort(descending=True)[keep:]] = 0
    return weights / weights.sum()


@pytest.mark.parametrize(("temperature", "keep"), [(0.0, 12), (0.8, 12), (1.0, 4)])
def test_acceptance_probabilities_of_a_model_draft(bench, temperature, keep):
    """min(1, draft / target) for the token that the target said, from passes without any cache."""
    sampling = Sampling(temperature, top_k=keep if keep < 12 else 0)
    target, draft = bench.setup.target.model, bench.drafters["model"].draft.model
    seen = []
    for seed in range(3):
        prompt = make_prompt(seed)
        text = said(bench, prompt, sampling, seed)
        found = probs_along(bench, LONGEST, "model", sampling, prompt, text)
        expected = []
        for t, token in enumerate(text):
            before = [*prompt.id_list, *text[:t]]
            of_target, of_draft = (next_probs(m, before, temperature, keep)[token].item() for m in (target, draft))
            assert of_target > 0
            expected.append(min(1.0, of_draft / of_target))
        for t in range(len(text)):
            assert list(found[t]) == pytest.approx(expected[t:][:LONGEST], rel=1e-9, abs=1e-12)
        seen += expected
    if temperature == 0:
        assert set(seen) == {0.0, 1.0}
    else:
        assert any(0.05 < chance < 0.95 for chance in seen)
        assert 1.0 in seen


def test_a_token_without_mass_does_not_break_the_probabilities(bench):
    """Rounding may leave the target's own token outside of its top-k: no division by zero, a chance all the same."""
    text = [(token + 1) % 12 for token in said(bench, make_prompt())]
    found = probs_along(bench, LONGEST, "model", Sampling(1.0, top_k=1), make_prompt(), text)
    assert set(np.asarray(found[0]).tolist()) <= {0.0, 1.0}


def test_probabilities_of_drawn_and_certain_tokens_by_hand():
    """min(1, q / p), as far as a draft may go. Where the target has no mass, only what the draft has counts."""
    p, q = torch.tensor([[0.5, 0.5], [0.0, 1.0], [0.0, 1.0], [0.25, 0.75]]), torch.tensor([[0.25, 0.75]] * 4)
    q[2] = torch.tensor([0.0, 1.0])
    law, nothing = Law([q, q[1:], q[2:]].__getitem__, [1, 3, 2, 1]), Law([q].__getitem__, [])
    assert law.accept_probs(lambda: p, [0] * 4) == [[0.5], [1, 0, 1], [0, 1], [1]]
    assert torch.equal(law.drawn_from([(1, 0, 3), (1, 1, 3)]), q[1:3])
    assert nothing.accept_probs(lambda: p[:0], []) == []
    assert nothing.drawn_from([]).shape == (0, 2)
    certain = CertainLaw([[0, 0, 1], [1], [], [0, 0]], 2)
    assert certain.accept_probs(lambda: p, [0] * 4) == [[1, 1, 0], [0], [], [1]]
    assert certain.drawn_from([(0, 2, 3), (0, 2, 2)]).tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize("draft", ["model", "ngram"])
def test_greedy_forecast_is_exact(bench, draft):
    """No average, no tolerance: rounds, drafted, tested, accepted tokens of every decoding, at every k."""
    total = Counts()
    for seed in range(4):
        prompt = make_prompt(seed)
        text = said(bench, prompt)
        rows = probs_along(bench, LONGEST, draft, Sampling(), prompt, text)
        for k in range(LONGEST + 1):
            spoken, counts = decoded(bench, draft, prompt, k)
            assert spoken == text
            expected = forecast(rows, k)
            found = counts.n_rounds, counts.n_drafted, counts.n_accepted, counts.n_accepted + counts.n_rejected
            right = expected.n_rounds, expected.n_drafted, expected.n_accepted, expected.n_tested
            assert found == right, f"k = {k}, prompt {seed}"
            assert counts.n_emitted == BUDGET - 1
            total.merge(counts)
    assert total.n_accepted > 50
    assert total.n_rejected > 50
    assert total.n_drafted > total.n_accepted + total.n_rejected, "no draft stood behind a refusal"


def test_sampled_forecast_holds_on_average():
    """Rounds of 100 speculative decodings against forecasts from 100 other texts, the baseline's.

    Two means of independent samples: 4.9 standard errors of their difference, false-alarm rate 10^-6 for another seed.
    The sharper half: given the text that a decoding happened to write, the forecast is its exact expectation, so the
    difference of the two has mean 0 and the spread of the acceptance alone.
    """
    bench, prompt, sampling, k, n = make_bench(pair_of(5), 12), make_prompt(5, n=12, vocab=5), Sampling(0.7), 3, 100

    def expected(text: list[int]) -> np.ndarray:
        found = forecast(probs_along(bench, k, "model", sampling, prompt, text), k)
        return np.array([found.n_rounds, found.n_drafted, found.n_accepted])

    forecasts = np.array([expected(said(bench, prompt, sampling, seed)) for seed in range(n)])  # (n, 3)
    happened, given_text = [], []
    for seed in range(n, 2 * n):
        text, counts = decoded(bench, "model", prompt, k, sampling, seed)
        happened.append([counts.n_rounds, counts.n_drafted, counts.n_accepted])
        given_text.append(expected(text))
    happened, given_text = np.array(happened), np.array(given_text)
    error = np.sqrt((forecasts.var(0, ddof=1) + happened.var(0, ddof=1)) / n)
    assert (np.abs(happened.mean(0) - forecasts.mean(0)) < 4.9 * error).all()
    rest = happened - given_text
    assert (rest.std(0) > 0.1).all()
    assert (np.abs(rest.mean(0)) < 4.9 * rest.std(0, ddof=1) / math.sqrt(n)).all()
    assert happened[:, 2].sum() > 100


def test_lookups_are_those_of_the_text_so_far():
    """At the place of each token: only what stands before it."""
    target = SimpleNamespace(vocab_size=10)
    law = NgramDrafter().law(target, [1, 2, 3, 1, 2], [3, 1, 9], GREEDY, 2)
    rows = law.drawn_from([(start, depth, 2) for start in range(3) for depth in range(2)])
    assert rows.nonzero().tolist() == [[0, 3], [1, 1], [2, 1], [3, 2], [4, 2], [5, 3]]
    assert law.drawn_from([(0, 1, 1)]).sum() == 0  # a round that asks for one token has no second one
    assert NgramDrafter().law(target, [1, 2], [3, 4], GREEDY, 2).drawn_from([(0, 0, 2), (1, 1, 2)]).sum() == 0


BY_WIDTH = {1: 1.0, 2: 1.1, 3: 1.3, 4: 1.35, 5: 1.6}
PRICES = {"slope": 0.01, "draft": 0.125, "catch": 0.03}
ACCEPT, EACH, LOOKUP = 0.05, 0.004, 0.02


@pytest.fixture
def priced(monkeypatch):
    """A bench on a machine whose clock is a price list, and the machine."""
    bench = make_bench(pair_of(12), 24)
    machine = Machine(monkeypatch, bench.setup.target.model, by_width=BY_WIDTH.get, **PRICES)
    honest_lookup = NgramDrafter.lookup

    def accept(draft, logits, sampling, uniforms):
        machine.seconds += ACCEPT + EACH * draft.tokens.shape[1]
        return accept_from_logits(draft, logits, sampling, uniforms)

    def lookup(drafter, k):
        machine.seconds += LOOKUP
        return honest_lookup(drafter, k)

    bench.functions = LoopFunctions(speculative_decode, accept)
    monkeypatch.setattr(NgramDrafter, "lookup", lookup)
    return bench, machine


ARMS = [BASELINE, *(Arm(name, name, k) for name in ("model", "ngram") for k in (0, 2, 4))]
TOOLS = {name: [0, 1, 2, 3, 4, 2, 4] for name in ("model", "ngram")}


def test_calibration_finds_the_price_list(priced):
    bench, _ = priced
    prompts = [make_prompt(seed) for seed in range(4)]
    prices = calibrated(measure(bench, [BASELINE], [0.0, 0.7], prompts, 1, TOOLS))
    assert set(prices) == {(name, temperature) for name in ("model", "ngram") for temperature in (0.0, 0.7)}
    for (name, _), costs in prices.items():
        for context in (9, 30, 48):
            assert costs.step_seconds(context) == pytest.approx(1.0 + 0.01 * context, rel=1e-9)
            for width, seconds in BY_WIDTH.items():
                assert costs.verify_seconds(width, context) == pytest.approx(seconds + 0.01 * context, rel=1e-9)
            for n in (1, 2, 3, 4):
                draft = LOOKUP if name == "ngram" else 0.125 * n
                assert costs.draft_seconds(n, context) == pytest.approx(draft, rel=1e-9)
        assert costs.draft_seconds(0, 9) == pytest.approx(LOOKUP if name == "ngram" else 0.0)
        assert costs.draft_catch == pytest.approx(0.0 if name == "ngram" else 0.03, abs=1e-9)
        for n in range(5):
            assert costs.overhead_seconds(n) == pytest.approx(ACCEPT + EACH * n, rel=1e-9)


def test_on_a_machine_that_keeps_its_prices_predictions_are_measurements(priced):
    """Calibrated in the same run. Greedy: both predictions, every row, every kind. Sampled: accounting, and the
    forecast is off by chance alone."""
    bench, _ = priced
    prompts = [make_prompt(seed, "code" if seed % 2 else "prose") for seed in range(3)]
    found = measure(bench, ARMS, [0.0, 0.7], prompts, 1, TOOLS)
    rows = build_rows(found, calibrated(found))
    speculative = [row for row in rows if row.draft]
    assert len(speculative) == 6 * 2 * len({row.prompt_kind for row in rows})
    for row in speculative:
        assert row.accounting == pytest.approx(row.speedup, rel=1e-9), row.method
        if row.temperature == 0:
            assert row.same_as_baseline is True
            assert row.forecast == pytest.approx(row.speedup, rel=1e-9), (row.method, row.draft_length)
            assert row.forecast_tokens_per_round == pytest.approx(row.tokens_per_round, rel=1e-9)
        if row.ladder and row.temperature == 0:
            assert attribution.factors(row)["all else"] == pytest.approx(1.0, rel=1e-9)
    models = [row for row in speculative if row.method == "model" and row.draft_length > 1]
    assert all(row.ladder for row in models)
    assert any(abs(row.forecast / row.speedup - 1) > 1e-3 for row in models if row.temperature)
