"""The checks of exercise 6: the best fixed length from costs, and an adaptive rule with a score to reach."""

import itertools
from collections.abc import Callable

import pytest

from exercises import simulator
from exercises.guard import place
from tests.exercises.answers import whole


def predicted(alpha: float, k: int, c: float, v: Callable[[int], float], o: float) -> float:
    return sum(alpha**i for i in range(k + 1)) / (k * c + v(k + 1) + o) if k else 1.0


def test_the_best_of_known_costs(learner):
    """A flat pass: with alpha 0.8 and c 0.1 the best draft is 6 tokens; more expensive drafts are shorter."""
    known = {(0.8, 0.1): 6, (0.8, 0.3): 3, (0.6, 0.1): 3, (0.9, 0.1): 10, (0.95, 0.1): 15}
    for (alpha, c), best in known.items():
        k = learner.best_draft_length(alpha, c, lambda m: 1.0, 0.0, 16)
        assert k != 16, f"alpha {alpha}, c {c}: you got 16, the longest; a formula without the draft's cost only rises"
        assert k == best, f"alpha {alpha}, c {c}, a flat pass: the best k is {best}, you got {k}"


def test_plain_decoding_where_nothing_pays(learner):
    """0 where every draft length is slower than 1.0x, and never more than `longest`."""
    k = learner.best_draft_length(0.3, 0.3, lambda m: 1 + 0.1 * (m - 1), 0.05, 16)
    assert k == 0, f"every length is slower than plain decoding here: the best k is 0, you got {k}"
    k = learner.best_draft_length(0.4, 0.1, lambda m: 0.5 if m == 1 else 1.0, 0.0, 8)
    assert k == 2, (
        f"a pass over one token costs 0.5 here, over more of them 1: the best k is 2, you got {k}; plain decoding is "
        "a token per step by definition, so begin with a speedup of 1 at k = 0 and ask verify_cost only from k = 1 on"
    )
    k = learner.best_draft_length(0.95, 0.0, lambda m: 1.0, 0.0, 5)
    assert k == 5, f"free drafts, a flat pass: the best is `longest`, 5, you got {k}"
    k = learner.best_draft_length(0.95, 0.0, lambda m: 1.0, 0.0, 0)
    assert k == 0, f"longest 0 leaves only plain decoding, you got {k}"


def test_of_equally_fast_lengths_the_shorter_one(learner):
    """Exact ties: with plain decoding, and of two lengths with each other."""
    k = learner.best_draft_length(0.0, 0.0, lambda m: 1.0, 0.0, 8)
    assert k == 0, (
        f"alpha 0: no draft is ever accepted, so no k is faster than plain decoding and the answer is 0, you got {k}; "
        "take a k only where it is strictly faster, > and not >="
    )
    k = learner.best_draft_length(1.0, 1.0, lambda m: 1.0, 0.0, 8)
    assert k == 0, f"a draft at the target's price: every k is exactly as fast as plain decoding, so 0, you got {k}"
    for one, two in ((1, 3), (3, 7)):
        cost = {one + 1: 1.0, two + 1: 2.0}
        k = learner.best_draft_length(1.0, 0.0, lambda m, cost=cost: cost.get(m, 99.0), 0.0, 9)
        assert k == one, (
            f"alpha 1, free drafts: k = {one} and k = {two} are equally fast, the answer is the shorter one, not {k}"
            "; replace the best so far only where the next one is strictly faster, > and not >="
        )


def test_the_pass_is_one_wider_than_the_draft(learner):
    """A pass that turns expensive at width 5: a draft of 4 needs it, a draft of 3 does not."""
    k = learner.best_draft_length(0.8, 0.02, lambda m: 1.0 if m < 5 else 2.0, 0.0, 8)
    assert k != 4, "you got 4: a draft of 4 is verified by a pass over 5 tokens, so ask verify_cost(k + 1)"
    assert k == 3, f"passes over 5 tokens and more cost 2 here: the best k is 3, you got {k}"


def test_after_a_dip_it_may_rise_again(learner):
    """A pass that jumps at width 3 and then stays flat: k 2 is worse than k 1, k 8 better than both."""

    def cost(m: int) -> float:
        return 1.0 if m < 3 else 1.6

    k = learner.best_draft_length(0.9, 0.02, cost, 0.0, 8)
    assert k != 1, "you got 1: the speedup falls at k = 2 and rises again after it; look at every length"
    assert k == 8, f"expected 8, you got {k}"


@pytest.mark.whole
def test_the_best_of_many_costs(learner):
    """Against trying every length, over a grid of costs."""
    grid = itertools.product((0.0, 0.2, 0.5, 0.75, 0.9, 1.0), (0.0, 0.07, 0.4), (0.0, 0.03, 0.2), (0.0, 0.15))
    for alpha, c, slope, o in grid:

        def cost(m: int, slope: float = slope) -> float:
            return 1 + slope * (m - 1)

        best = max(range(11), key=lambda k: predicted(alpha, k, c, cost, o))
        k = learner.best_draft_length(alpha, c, cost, o, 10)
        same = predicted(alpha, k, c, cost, o) == pytest.approx(predicted(alpha, best, c, cost, o), abs=1e-12)
        assert same, f"alpha {alpha}, c {c}, v(m) = 1 + {slope} (m - 1), o {o}: the best k is {best}, you got {k}"


def after_zero(learner, longest: int) -> str:
    """What a rule that has answered 0 does next."""
    if learner.next_draft_length(0, 0, 0, longest) == 0:
        return "nothing will be drafted, seen or accepted ever again, because to 0 it answers 0"
    return "a round without a draft shows nothing of the text and costs as much as plain decoding; answer 1 or more"


def test_the_rule_stays_in_range(learner):
    """From 1 to longest, whatever happened; also after a round that was asked to draft nothing, k = 0."""
    for longest in (1, 3, 16):
        for k in [*range(1, longest + 1), 0]:
            for n_drafted in range(k + 1):
                for n_accepted in range(n_drafted + 1):
                    answer = learner.next_draft_length(k, n_drafted, n_accepted, longest)
                    what = f"next_draft_length({k}, {n_drafted}, {n_accepted}, {longest})"
                    found = whole(answer)
                    assert found is not None, f"{what} returned {answer!r}, not a whole number"
                    if found == 0:
                        pytest.fail(f"{what} is 0: {after_zero(learner, longest)}", pytrace=False)
                    assert 1 <= found <= longest, f"{what} is {found}, outside of 1 to {longest}"
    assert learner.next_draft_length(0, 0, 0, 0) == 0, "longest 0 leaves only 0"


def test_what_was_not_drafted_was_not_rejected(learner):
    """A draft that was cut short and accepted whole is no failure."""
    for k, n_drafted in ((8, 3), (8, 0), (5, 4), (2, 1)):
        found = learner.next_draft_length(k, n_drafted, n_drafted, 16)
        assert found >= k, (
            f"all {n_drafted} drafted tokens were accepted and k was {k}: you went down to {found}; compare "
            "n_accepted with n_drafted, not with k"
        )


def test_the_rule_reaches_bronze(learner):
    """At most 0.842 target steps per token in the simulation, as the best fixed length."""
    found = simulator.score(learner.next_draft_length)
    assert found <= simulator.BRONZE, (
        f"your rule needs {found:.3f} target steps per token in the simulation; bronze is {simulator.BRONZE}, and even "
        f"a rule that always answers 2 needs only {simulator.fixed(2):.3f}"
    )


@pytest.mark.whole
def test_the_rule_reaches_silver(learner):
    """At most 0.73: no fixed length does. An oracle needs 0.589, and no rule can be better."""
    found = simulator.score(learner.next_draft_length)
    assert found <= simulator.SCORE, (
        f"your rule needs {found:.3f} target steps per token in the simulation, silver is {simulator.SCORE}. An oracle "
        f"that knows every round in advance needs {simulator.oracle():.3f}. Easy stretches want long drafts and "
        "hard ones short drafts: let the last round decide"
    )


def test_the_simulator_takes_whole_numbers_only():
    """Of any kind; the complaint is not placed in the simulator, which is the lab's own file."""
    right = simulator.text(0)[:200]

    class Two:
        def __index__(self) -> int:
            return 2

    assert simulator.steps_per_token(lambda *_: Two(), right) == simulator.steps_per_token(lambda *_: 2, right)
    for answer in (2.0, -1, simulator.LONGEST + 1, None):
        with pytest.raises(ValueError, match="the rule answered") as caught:
            simulator.steps_per_token(lambda *_, answer=answer: answer, right)
        assert place(caught.value) == ""


def test_no_fixed_length_reaches_the_score():
    """The bound asks for a rule: what the chapter says of the simulation."""
    scores = [simulator.fixed(k) for k in range(simulator.LONGEST + 1)]
    assert min(scores) == scores[2] == pytest.approx(0.840, abs=5e-4)
    assert scores[0] == pytest.approx(1.05, abs=1e-3)
    assert scores[5] < 1 < scores[6]
    assert scores[4] == pytest.approx(0.917, abs=5e-4)
    assert scores[16] == pytest.approx(1.678, abs=5e-4)
    assert simulator.score(lambda *_: 2) <= simulator.BRONZE < min(scores[:2] + scores[3:])
    assert min(scores) > simulator.SCORE


def test_the_oracle_is_the_bound():
    """No sequence of lengths is cheaper than the oracle's; tried in full on short texts, and for known rules."""
    right = [True, True, False, True, True, True, False, False, True, True]

    def cheapest(rest: list[bool]) -> float:
        if not rest:
            return 0.0
        costs = []
        for k in range(min(5, len(rest))):
            n = next((i for i in range(k) if not rest[i]), k)
            costs.append(simulator.round_cost(k) + cheapest(rest[n + 1 :]))
        return min(costs)

    assert simulator._cheapest(right) == pytest.approx(cheapest(right) / len(right))
    assert simulator.oracle() == pytest.approx(0.589, abs=5e-4)
    assert simulator.medal(0.9) == "no medal"
    assert simulator.medal(simulator.fixed(2)) == "bronze"
    assert simulator.medal(simulator.SCORE) == "silver"
