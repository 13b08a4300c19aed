"""The checks of exercise 5: counts to alpha, alpha to tokens, tokens and costs to a speedup."""

import itertools

import pytest


def near(value: float, other: float) -> bool:
    return value == pytest.approx(other, abs=1e-9)


def test_alpha_counts_tested_drafts_only(learner):
    """Five rounds of four drafts: 13 accepted, 3 rejected, 4 never tested."""
    rounds = [(4, 3), (4, 4), (4, 0), (4, 4), (4, 2)]
    alpha = learner.acceptance_rate(rounds)
    known = {
        13 / 20: "that is accepted / drafted. Drafts after a rejected one were never tested: leave them out",
        13 / 18: "that counts one more test in every round; a fully accepted round rejected nothing",
        13 / 5: "that is accepted tokens per round",
        2 / 5: "that is the share of rounds that accepted everything",
    }
    for wrong, why in known.items():
        assert not near(alpha, wrong), f"you got {alpha:.3f}: {why}"
    assert near(alpha, 13 / 16), f"13 of 16 tested drafts were accepted: expected {13 / 16:.4f}, you got {alpha:.4f}"


def test_alpha_is_not_the_drafted_fraction(learner):
    """A longer draft after the same rejection changes accepted / drafted, and must not change alpha."""
    short, long = [(3, 2)] * 4, [(12, 2)] * 4
    found = learner.acceptance_rate(short), learner.acceptance_rate(long)
    assert not near(found[1], 2 / 12), (
        "you got 0.167 for (12, 2): accepted / drafted falls when more is drafted after a rejection; alpha does not"
    )
    assert near(found[0], found[1]), f"(3, 2) and (12, 2) tested the same 3 drafts, you got {found[0]} and {found[1]}"
    assert near(found[0], 2 / 3), f"2 of 3 tested drafts were accepted, you got {found[0]:.4f}"


def test_drafts_of_any_length_count(learner):
    """Rounds may draft more, less or nothing."""
    alpha = learner.acceptance_rate([(2, 2), (4, 1), (0, 0), (3, 3), (1, 0)])
    assert not near(alpha, 6 / 9), (
        f"you got {alpha:.3f}: a round that drafted nothing tested nothing, and neither did it reject anything"
    )
    assert not near(alpha, (1 + 1 / 4 + 1 + 0) / 4), (
        f"you got {alpha:.3f}: that is a mean of the rounds' shares; sum the counts first, then divide once"
    )
    assert near(alpha, 6 / 8), f"6 accepted and 2 rejected make 0.75, you got {alpha:.4f}"


def test_nothing_tested_has_no_alpha(learner):
    """ValueError where no draft was tested; 0.0 would say that every draft was rejected."""
    for rounds in ([], [(0, 0), (0, 0)]):
        try:
            alpha = learner.acceptance_rate(rounds)
        except ValueError:
            continue
        except ZeroDivisionError:
            pytest.fail(f"acceptance_rate({rounds}) divides by zero; raise ValueError instead", pytrace=False)
        pytest.fail(f"acceptance_rate({rounds}) should raise ValueError, you returned {alpha}", pytrace=False)
    assert learner.acceptance_rate([(4, 0)]) == 0.0, "one test, rejected: alpha is 0.0"


def test_expected_tokens_of_known_rounds(learner):
    """The edges, and the value every paper quotes: alpha 0.8, k 8."""
    try:
        sure = learner.expected_tokens(1.0, 4)
    except ZeroDivisionError:
        pytest.fail("alpha = 1 divides by zero in the closed form; take the sum, or treat 1 apart", pytrace=False)
    assert not near(sure, 4), (
        "alpha 1, k 4: you got 4; the last term, alpha^k, is missing (range(k) ends before k), "
        "or the target's own token on top of the accepted ones"
    )
    assert near(sure, 5), f"alpha 1, k 4: four drafts and the bonus token, you got {sure}"
    none = learner.expected_tokens(0.0, 4)
    assert near(none, 1), f"alpha 0: a round still makes the target's own token, expected 1, you got {none}"
    plain = learner.expected_tokens(0.8, 0)
    assert near(plain, 1), f"k 0 is plain decoding, one token per round, you got {plain}"
    tau = learner.expected_tokens(0.8, 8)
    known = {
        1 + 0.8 * 8: "1 + alpha k lets a draft count although one before it was rejected",
        (1 - 0.8**8) / (1 - 0.8): "the last term, alpha^k, is missing: the powers go from 0 to k, both included",
        1 / (1 - 0.8): "that is a draft without an end; yours stops after k",
        0.8 * (1 - 0.8**8) / (1 - 0.8): "these are the accepted drafts; the target adds one token of its own",
    }
    for wrong, why in known.items():
        assert not near(tau, wrong), f"alpha 0.8, k 8: you got {tau:.3f}; {why}"
    assert tau == pytest.approx(4.3289, abs=1e-4), f"alpha 0.8, k 8: expected 4.3289, you got {tau:.4f}"


@pytest.mark.whole
def test_expected_tokens_equal_a_full_enumeration(learner):
    """Every way that k drafts can come out, weighed by its chance."""
    for alpha, k in itertools.product((0.1, 0.5, 0.7), (1, 2, 3, 5)):
        expected = 0.0
        for passes in itertools.product((True, False), repeat=k):
            chance, n_accepted = 1.0, 0
            for passed in passes:
                chance *= alpha if passed else 1 - alpha
            while n_accepted < k and passes[n_accepted]:
                n_accepted += 1
            expected += chance * (n_accepted + 1)
        found = learner.expected_tokens(alpha, k)
        assert not near(found, expected - alpha**k), (
            f"alpha {alpha}, k {k}: you got {found:.4f}; the last term, alpha^k, is missing: that round accepts all k"
        )
        assert near(found, expected), (
            f"alpha {alpha}, k {k}: over all {2**k} outcomes a round makes {expected:.4f}, you got {found:.4f}"
        )


def test_speedup_is_tokens_over_steps(learner):
    """alpha 0.8, k 4, c 0.1, v 1.2, o 0.05: 3.36 tokens for 1.65 steps."""
    alpha, k, c, v, o = 0.8, 4, 0.1, 1.2, 0.05
    tau = sum(alpha**i for i in range(k + 1))
    speedup = learner.predicted_speedup(alpha, k, c, v, o)
    known = {
        (tau - alpha**k) / (k * c + v + o): "your expected_tokens leaves out the last term, alpha^k",
        1 / (1 - alpha + alpha / k): "that is the book's formula: it knows no costs and no bonus token",
        tau / (1 + k * c + v + o): "v is the whole pass already, so no 1 is added to it",
        tau / (1 + k * c): "v and o are missing: a wide pass and the rest of the round cost something",
        tau / (c + v + o): "every one of the k drafts costs c",
        tau / (k * c + v): "the overhead o is missing",
        tau / (1 + k * c + o): "v is missing: a pass over k + 1 tokens is no plain step",
        tau / (k * c + (k + 1) * v + o): "verify_cost is the whole pass, not a price per token",
        (k * c + v + o) / tau: "that is steps per token; you want tokens per step",
    }
    for wrong, why in known.items():
        assert not near(speedup, wrong), f"you got {speedup:.3f}: {why}"
    expected = tau / (k * c + v + o)
    assert near(speedup, expected), f"3.3616 tokens / 1.65 steps = {expected:.4f}, you got {speedup:.4f}"


def test_speedup_may_be_a_slowdown(learner):
    """A poor and expensive draft is slower than plain decoding, and the prediction says so."""
    speedup = learner.predicted_speedup(0.2, 8, 0.2, 1.5, 0.1)
    expected = sum(0.2**i for i in range(9)) / (8 * 0.2 + 1.5 + 0.1)
    assert speedup < 1, f"1.25 tokens for 3.2 steps are slower than plain decoding, you got {speedup:.2f}"
    assert not near(speedup, expected * 3.2 / 3.1), f"you got {speedup:.4f}: the overhead o is missing"
    assert near(speedup, expected), f"1.25 tokens / 3.2 steps = {expected:.6f}, you got {speedup:.6f}"
    plain = learner.predicted_speedup(0.7, 0, 0.3, 1.0, 0.0)
    assert near(plain, 1), f"k 0 with no overhead is plain decoding: expected 1, you got {plain}"
