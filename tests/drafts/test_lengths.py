"""Lengths that choose themselves: the rule, what it learns from, and that nothing drawn is dropped."""

import copy
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import draft_models
from draft_models import ModelDrafter, NgramDrafter
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.core.sampling import Sampling
from speclab.drafts.feature import FeatureDrafter
from speclab.drafts.hybrid import HybridDrafter
from speclab.drafts.lengths import (
    EDGES,
    FIRST_GUESS,
    LONGEST,
    PAUSE,
    WEIGHT,
    Acceptance,
    AutoLength,
    RoundCosts,
    Tally,
    best_length,
    expected_tokens,
)
from speclab.lab import round_costs
from speclab.lab.bench import SPECULATIVE
from speclab.lab.round_costs import measure_costs
from speclab.models.cached import CachedModel
from tests.decoding import plain_text, speculative_rounds
from tests.heads import keeping, tiny_head
from tests.tiny_models import VOCAB, perturbed, tiny

PROMPT = torch.randint(0, VOCAB, (1, 9), generator=torch.Generator().manual_seed(1))
FREE = RoundCosts((0.0,) * 9, (1.0,) * 9)
DEAR = RoundCosts(tuple(10.0 * n for n in range(9)), (1.0,) * 9)


def pair(noise: float = 0.1) -> tuple[CachedModel, ModelDrafter]:
    model = tiny("llama", dtype=torch.float64)
    return CachedModel(model), ModelDrafter(CachedModel(perturbed(model, noise)))


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8),
    st.lists(st.floats(0, 2), min_size=9, max_size=9),
    st.floats(0, 3),
    st.integers(0, 8),
)
def test_expectation_and_choice_are_the_definitions(chain, seconds, rate, drawn):
    drawn = min(drawn, len(chain))
    expected = expected_tokens(chain, drawn, 0.5)
    for n, tokens in enumerate(expected):
        products, survival = 0.0, 0.5
        for acceptance in chain[drawn:n]:
            survival *= acceptance
            products += survival
        assert tokens == pytest.approx(1 + products)
    costs = RoundCosts((0.0,) * 9, tuple(seconds))
    chosen = best_length(costs, expected, rate, drawn, len(chain))
    gains = [expected[n] - rate * costs.seconds(n) for n in range(drawn, len(chain) + 1)]
    assert gains[chosen - drawn] == max(gains)
    assert max(gains) not in gains[: chosen - drawn]


def test_all_lengths_are_compared_since_costs_have_steps():
    """A rule that looks one step ahead stays at 1."""
    steps = RoundCosts((0.0,) * 5, (1.0, 1.0, 1.9, 1.9, 1.9))
    assert best_length(steps, expected_tokens([0.9] * 4), 1.5, 0, 4) == 4


def test_a_drawn_token_counts_only_where_those_before_it_are_kept():
    """After .3 and .99 the draft survives with their product: it stops where it goes on after .99 alone."""
    target, drafter = pair()
    auto = AutoLength(drafter)
    auto.costs[0.0] = RoundCosts((0.0,) * 9, tuple(1 + 0.15 * n for n in range(9)))
    auto.prefill(target, PROMPT, Sampling())
    for probabilities, pays in (((0.3, 0.99), False), ((0.99, 0.3), False), ((0.99, 0.99), True)):
        auto.propose(0, torch.zeros(1, 0))
        auto._last = 4
        assert [auto._pays(probability) for probability in probabilities][-1] == pays


def test_what_was_tested_is_booked_where_it_belongs():
    """In the range that holds its probability, begun at its middle; after its match; all far depths are one."""
    seen, ends = Acceptance(), (0.0, *EDGES, 1.0)
    for low, high, tally in zip(ends, ends[1:], seen.ranges, strict=False):
        assert seen.given(low) is seen.given(math.nextafter(high, 0)) is tally
        assert tally.rate == pytest.approx((low + high) / 2)
    assert seen.given(1.0) is seen.ranges[-1]
    assert [seen.matches.index(seen.after(matched)) for matched in (1, 2, 99)] == [0, 1, len(seen.matches) - 1]
    seen.depths = [Tally(depth / 10) for depth in range(LONGEST)]
    assert seen.chain(LONGEST + 2) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.7, 0.7])
    assert RoundCosts((1.0, 2.0), (30.0, 40.0)).seconds(1) == 42
    auto = AutoLength(NgramDrafter())
    auto.prefill(None, torch.arange(20).repeat(1, 2), Sampling())
    auto.propose(LONGEST + 2, torch.zeros(1, LONGEST + 2))
    auto.observe(LONGEST + 1, list(range(LONGEST + 2)))
    depths, ranges = auto.acceptance.depths, auto.acceptance.ranges
    assert [tally.tested - WEIGHT for tally in depths] == [*[1] * (LONGEST - 1), 3]
    assert depths[-1].accepted == pytest.approx(FIRST_GUESS * WEIGHT + 2)
    auto.propose(3, torch.zeros(1, 3))
    auto._probabilities = [0.1, 0.5, 0.97]
    auto.observe(1, [10, 0])
    assert [tally.tested - WEIGHT for tally in ranges] == [1, 0, 1, *[0] * (len(ranges) - 3)]


class Counted(NgramDrafter):
    """A lookup that gets a random number for each token."""

    def propose(self, k, uniforms):
        assert uniforms.shape == (1, k)
        return super().propose(k, uniforms)


def test_a_draft_that_is_not_asked_again_has_the_best_length():
    """2.53 tokens in 1.6 s are the best at .2 s and .7 accepted of each; what never pays is tried in every eighth round
    without a draft."""
    auto = AutoLength(Counted())
    auto.prefill(None, torch.arange(20).repeat(1, 2), Sampling())

    def lengths(cost: float, n_rounds: int, k: int = LONGEST) -> list[int]:
        auto.costs[0.0] = RoundCosts(tuple(cost * n for n in range(LONGEST + 1)), (1.0,) * (LONGEST + 1))
        return [auto.propose(k, torch.zeros(1, k)).tokens.shape[1] for _ in range(n_rounds)]

    assert lengths(10.0, PAUSE) == [*[0] * (PAUSE - 1), 1]
    assert lengths(0.0, 1) + lengths(0.2, 1) + lengths(0.2, 1, k=2) == [LONGEST, 3, 2]
    assert lengths(10.0, 3) + lengths(0.2, 1) == [0, 0, 0, 3]
    assert lengths(10.0, 2 * PAUSE) == [*[0] * (PAUSE - 1), 1] * 2


def decoded(drafter, k: int = LONGEST, n: int = 40, how: Sampling | None = None):
    target, _ = pair()
    target.hidden_layers = (0, 1)
    return list(speculative_rounds(target, drafter, PROMPT, k, n, *([how] if how else [])))


def test_the_text_is_the_baselines_where_costs_are_unknown():
    """Where they are known, tests/drafts/test_contract.py looks."""
    rounds = decoded(AutoLength(pair()[1]))
    assert tokens_of(rounds) == plain_text(pair()[0], PROMPT, 40)
    assert sum(r.n_drafted for r in rounds) > 0


def test_free_drafts_are_as_long_as_they_may_be_and_dear_ones_are_tried_now_and_then():
    lengths = {}
    for name, costs in (("free", FREE), ("dear", DEAR)):
        auto = AutoLength(pair()[1])
        auto.costs[0.0] = costs
        lengths[name] = [r.n_drafted for r in decoded(auto) if not r.prefill]
    assert all(n == LONGEST for n in lengths["free"][:-3])
    assert set(lengths["dear"]) == {0, 1}
    tried = [i for i, n in enumerate(lengths["dear"]) if n]
    assert tried
    assert all(after - before == PAUSE for before, after in itertools.pairwise(tried))


def test_every_token_that_is_drawn_is_handed_over(monkeypatch):
    """And the draft ends where the rule says so, not only at the longest length."""
    drawn, right = [], draft_models.draw_draft
    monkeypatch.setattr(draft_models, "draw_draft", lambda *asked: drawn.append(1) or right(*asked))
    kept = keeping(AutoLength)(pair(0.3)[1])
    kept.costs[0.9] = RoundCosts(tuple(0.15 * n for n in range(9)), tuple(1 + 0.05 * n for n in range(9)))
    decoded(kept, how=Sampling(0.9))
    lengths = [draft.tokens.shape[1] for _, draft in kept.proposed]
    assert sum(lengths) == len(drawn)
    assert len(set(lengths)) > 2


def test_confidence_decides_on_a_cpu_alone():
    """A step drafter is asked after every token; with uniforms of another device the length is decided before."""
    _, drafter = pair()
    assert drafter.asks_to_go_on
    assert FeatureDrafter(tiny_head()).asks_to_go_on
    auto, asked = AutoLength(drafter), []
    auto.costs[0.0] = FREE
    auto._pays = lambda probability: asked.append(probability) or True
    decoded(auto)
    assert asked
    assert all(0 < probability <= 1 for probability in asked)
    assert drafter.keep_drafting is None
    n_asked = len(asked)
    auto.propose(3, torch.zeros(1, 3, device="meta"))
    assert len(asked) == n_asked


def test_acceptance_is_counted_for_tested_tokens_alone():
    auto = AutoLength(pair(0.3)[1])
    auto.costs[0.0] = FREE
    rounds, begun, seen = decoded(auto), Acceptance(), auto.seen[0.0]
    n_accepted, n_rejected = (sum(getattr(r, name) for r in rounds) for name in ("n_accepted", "n_rejected"))
    assert min(n_accepted, n_rejected) > 0
    for tallies, before in ((seen.ranges, begun.ranges), (seen.depths, begun.depths)):
        assert sum(t.tested for t in tallies) - sum(t.tested for t in before) == n_accepted + n_rejected
        assert sum(t.accepted for t in tallies) - sum(t.accepted for t in before) == pytest.approx(n_accepted)


def test_what_was_accepted_is_kept_by_copies_and_by_the_next_text():
    auto = AutoLength(pair()[1])
    auto.costs[0.0] = FREE
    seen = [WEIGHT]
    for one in (copy.deepcopy(auto), auto):
        decoded(one)
        seen.append(auto.seen[0.0].depths[0].tested)
    assert seen == sorted(set(seen))
    assert copy.deepcopy(auto).drafter is not auto.drafter


def test_costs_are_measured_for_every_length():
    target, drafter = pair()
    auto = AutoLength(drafter)
    measure_costs(SPECULATIVE, target, auto, [PROMPT], DecodeSettings(40, Sampling(0.8)))
    costs = auto.costs[0.8]
    assert len(costs.draft) == len(costs.rest) == LONGEST + 1
    assert min(costs.rest) > 0
    assert costs.draft[-1] > costs.draft[0]


@pytest.mark.parametrize("chooses", [True, False])
def test_rounds_that_cost_are_asked_as_the_run_asks_and_have_random_numbers_of_their_own(chooses, monkeypatch):
    """A draft is asked after each token where lengths are chosen, and never in a hybrid whose length stands. Lengths
    must not depend on the uniforms of the text that they are chosen in."""
    target, drafter = pair()
    asked, seeds, propose, with_phases = [], [], ModelDrafter.propose, round_costs.with_phases
    watched = lambda one, *args: asked.append(one.keep_drafting is not None) or propose(one, *args)  # noqa: E731
    monkeypatch.setattr(ModelDrafter, "propose", watched)
    monkeypatch.setattr(round_costs, "with_phases", lambda *args: seeds.append(args[-1].seed) or with_phases(*args))
    monkeypatch.setattr(round_costs, "ROUNDS_OF_EACH", 1)
    whole = AutoLength(drafter) if chooses else HybridDrafter(NgramDrafter(), drafter)
    measure_costs(SPECULATIVE, target, whole, [PROMPT], DecodeSettings(40, Sampling(0.8), seed=7))
    assert set(asked) == {chooses}
    assert min(seeds) > 2**49, "texts have smaller seeds"
