"""One budget for all rows: its decisions by hand, one row beside `-k auto`, and the law of two rows, enumerated."""

import functools
import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baseline_autoregressive import autoregressive_decode
from draft_models import ModelDrafter
from speclab.core.accept import accept_from_logits
from speclab.core.rounds import DecodeSettings, Draft, tokens_of
from speclab.drafts.lengths import PAUSE, WEIGHT, AutoLength, RoundCosts
from speclab.extensions.batch.decoding import texts
from speclab.extensions.batch.decoding.batched_model import BatchedModel
from speclab.extensions.batch.decoding.budget import EACH, OWN, PUBLISHED, RULES, Budget, StepCosts
from speclab.extensions.batch.decoding.loops import speculative_decode_batch
from speclab.extensions.batch.decoding.texts import Request
from speclab.extensions.batch.tests.test_batch_loops import alone, by_text, of_batch, pair, requests, with_drafter
from tests import test_filtered_laws as laws
from tests.test_exact import token_pieces
from tests.test_filtered_laws import ENDS, KINDS, PROMPT, SETTINGS

TEXTS = (PROMPT, torch.tensor([[3, 1, 0, 2, 2, 4, 1, 0]]))


def costs(verify: float, draft: float, n: int = 200, pads: bool = False) -> StepCosts:
    """A pass takes a second, and so much more for every token but the first."""
    passes = (1 + verify * np.maximum(0, np.arange(n) - 1)).tolist()
    return StepCosts(0.1, passes, [0.0] * n, (draft * np.arange(n)).tolist(), pads)


@pytest.mark.parametrize("pads", [False, True])
@given(
    st.lists(st.floats(0.05, 1), min_size=9, max_size=9),
    st.lists(st.floats(0, 0.3), min_size=12, max_size=12),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_no_other_lengths_of_the_rows_are_worth_more(pads, accepts, steps, most):
    """Costs with steps, and all lengths of three rows: expected tokens less the rate times the seconds. Where rows are
    padded, all rows pay for the longest one, and tokens come by falling survival."""
    price = replace(costs(0, 0.03, pads=pads), target=[1.0] * 4 + (1 + np.cumsum(steps)).tolist())
    budget = Budget(price, longest=3)
    budget.begin(most, 3)
    budget.accepts = [accepts[:3], accepts[3:6], accepts[6:]]

    def worth(lengths) -> float:
        gained = sum(np.cumprod(budget.accepts[row][:n]).sum() for row, n in enumerate(lengths))
        paid = 3 * max(lengths) if pads else sum(lengths)
        return gained - budget.rate * (price.target[3 + paid] + 0.03 * paid)

    tokens = [(-np.prod(budget.accepts[row][: n + 1]), row) for row, of_row in enumerate(most) for n in range(of_row)]
    rows = [row for _, row in sorted(tokens, key=lambda one: one[0])]
    surest = ([rows[:n].count(row) for row in range(3)] for n in range(len(rows) + 1))
    best = max(map(worth, surest if pads else itertools.product(*(range(n + 1) for n in most))))
    assert worth(budget.lengths()) == pytest.approx(best)


def test_what_never_pays_is_tried_now_and_then():
    """One token of one row; what it teaches counts."""
    budget, tried = Budget(costs(2.0, 2.0)), []
    for step in range(2 * PAUSE):
        budget.begin([3, 3], 2)
        if any(budget.drafting):
            tried.append(step)
            assert budget.admits([0.97, 0.5]) == [True, False]
            assert not any(budget.drafting)
            budget.observe({0: SimpleNamespace(n_accepted=1, n_drafted=1)})
        assert sum(budget.verified()) == (step in tried)
    assert tried == [PAUSE - 1, 2 * PAUSE - 1]
    assert budget.seen.given(0.97).tested == WEIGHT + 2 == budget.seen.depths[0].tested


@pytest.mark.parametrize("rule", RULES)
def test_a_drafter_that_is_not_asked_tries_now_and_then(rule):
    budget, made = Budget(costs(2.0, 0.0), rule), []
    for _ in range(2 * PAUSE):
        budget.begin([0, 0], 2)
        assert budget.lengths() == [0, 0], "nothing could be drafted: no reason to try"
    for _ in range(2 * PAUSE):
        budget.begin([3, 3], 2)
        made.append(budget.lengths())
    assert made == 2 * [*[[0, 0]] * (PAUSE - 1), [1, 0]]


def test_a_draft_that_never_pays_keeps_up_in_every_row():
    """A tried token is drafted by all rows. A row that is not asked for long would have more to read than fits."""
    target, drafter = pair()[0], of_batch(ModelDrafter(pair()[1]), 2)
    drafter.budget = Budget(costs(2.0, 2.0))
    asked = [Request(request.prompt, DecodeSettings(128)) for request in requests()[:2]]
    found = by_text(speculative_decode_batch(BatchedModel(target, 2), drafter, asked, 8), 2)
    assert list(map(tokens_of, found)) == [tokens_of(autoregressive_decode(target, *one[:2])) for one in asked]


def test_one_row_goes_as_far_as_auto_does():
    """A batch of one text, where verifying is free: the same rounds as with the rule of one text."""
    target, draft = pair()
    auto, drafter = AutoLength(ModelDrafter(draft)), of_batch(ModelDrafter(draft), 1)
    auto.costs[0.0], drafter.budget = RoundCosts(tuple(0.12 * n for n in range(9)), (1.1,) * 9), Budget(costs(0, 0.12))
    asked = requests()[1:2]
    expected = alone(target, auto, asked, 8)
    assert by_text(speculative_decode_batch(BatchedModel(target, 1), drafter, asked, 8), 1) == expected
    assert len({made.n_drafted for made in expected[0]}) > 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["model", "ngram", "feature", "hybrid"])
def test_texts_are_the_baselines(kind, rule):
    target, one = with_drafter(kind)
    drafter = of_batch(one, 3)
    drafter.budget = Budget(costs(0.15, 0.02), rule, longest=4)
    found = by_text(speculative_decode_batch(BatchedModel(target, 3), drafter, requests(), 4))
    expected = [tokens_of(autoregressive_decode(target, *request[:2])) for request in requests()]
    assert [tokens_of(rounds) for rounds in found] == expected
    made = [of_text for rounds in found for of_text in rounds]
    assert len({one.n_drafted for one in made}) > 2
    tested = sum(tally.tested - WEIGHT for tally in drafter.budget.seen.depths)
    assert 0 < tested <= sum(one.n_accepted + one.n_rejected for one in made), "a text's last round is not counted"


# Of the published rule with a step, behind which the rate rises again.
PRICES = {OWN: costs(0.18, 0.1), EACH: costs(0.17, 0.08)}
PRICES[PUBLISHED] = replace(costs(0, 0.1), target=[1, 1, 1, 1.4, 1.7, 1.75, 2.05])


def asked(monkeypatch, rule: str, n: int, first: float, numbers: tuple) -> tuple:
    """The texts before the second round, and what it asks the accept rule: (texts, draft, logits), drafted with these
    numbers. Before it all random numbers are `first`. n: tokens of the longest draft."""
    target, draft = map(laws.cached, laws.models())
    drafter = of_batch(ModelDrafter(draft), 2)
    drafter.budget = Budget(PRICES[rule], rule, n)
    requests = [Request(prompt, DecodeSettings(laws.LONG, SETTINGS)) for prompt in TEXTS]
    decode = functools.partial(speculative_decode_batch, BatchedModel(target, 2), drafter, requests, n)
    before, given = laws.second_round(monkeypatch, texts, first, numbers, accept_from_logits, decode)
    new = [tokens_of(made for own, made in before if own == row) for row in range(len(TEXTS))]
    return [(*prompt[0].tolist(), *tokens) for prompt, tokens in zip(TEXTS, new, strict=True)], *given[:2]


@pytest.mark.parametrize("rule", PRICES)
def test_each_of_two_rows_keeps_the_targets_law(rule, monkeypatch):
    """All numbers that draft for both rows, at both ends of every piece; then those of the accept rule. How many tokens
    of a row are verified depends on what both have drawn; with `each`, on what it has drawn itself, so its numbers may
    stand beside any ones of the other row."""
    tally, sizes = Counter(), set()
    n, beside = (3, itertools.zip_longest) if rule == EACH else (2, itertools.product)
    for first, end in itertools.product((0.2, 0.5), ENDS):
        before = asked(monkeypatch, rule, n, first, ())[0]
        found = [Counter(), Counter()]
        for both in beside(*(laws.drawn(n, laws.draft_row, text) for text in before)):
            numbers = [[piece.at(end) for piece in one.numbers] if one else [] for one in both]
            _, draft, logits = asked(monkeypatch, rule, n, first, numbers)
            sizes.add(tuple(draft.size.tolist()))
            for row, one in ((row, one) for row, one in enumerate(both) if one):
                chance, size = one.chance if rule == EACH else both[0].chance * both[1].chance, int(draft.size[row])
                probs = None if draft.probs is None else draft.probs[[row], :size]  # None: no row drafts
                own = Draft(draft.tokens[[row], :size], draft.size[[row]], probs)
                assert tuple(own.tokens[0].tolist()) == one.tokens[:size]
                sides = laws.sides_of(before[row], own, one.laws[:size], token_pieces)
                given = accept_from_logits, own, logits[[row], : size + 1], SETTINGS
                for tokens, of_block, happened in laws.judged(*given, sides, end):
                    found[row][tokens] += chance * of_block
                    tally.update(happened)
        for law, text in zip(found, before, strict=True):
            laws.assert_targets_law(law, text)
    assert min(tally[kind] for kind in KINDS) > 0, tally
    assert len(sizes) > 2
    assert all(len(set(of_row)) > 1 for of_row in zip(*sizes, strict=True))
