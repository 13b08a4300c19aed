"""Bugs in the plans: intervals and advice that promise too much."""

from speclab.extensions.plan import given, intervals, plan_views, plans
from speclab.theory import fitting
from tests.mutants.bugs import mutant


@mutant(30, "lengths_that_share_their_noise_are_told_apart", file="test_intervals")
def resamples_every_length_apart() -> None:
    """holds one prompt's seconds at a length against another prompt's at the best length"""
    right = intervals.ratio_interval
    intervals.ratio_interval = lambda tops, bottoms: right(tops, bottoms[::-1])


@mutant(30, "each_prompt_is_left_out_with_its_calibration", file="test_plan")
def takes_calibrated_costs_as_known() -> None:
    """leaves a prompt's text out and keeps its calibration"""
    plans.without_each_prompt = lambda measured: {
        index: fitting.fit(measured.rounds, measured.steps) for index in {one.prompt for one in measured.rounds}
    }


@mutant(30, "a_gain_that_may_be_none_is_called_that", file="test_plan")
def recommends_a_gain_within_noise() -> None:
    """recommends a gain whose interval includes 1"""
    plan_views._pays = lambda fact, entries: fact.speedup > 1


@mutant(30, "the_tokens_of_a_round_are_the_profiles", file="test_given_acceptance")
def takes_marginal_rates_for_conditional_ones() -> None:
    """takes the share of all rounds that kept a position for the share of those that reached it"""
    given.conditional_rates = lambda n_rounds, kept: [one / n_rounds for one in kept]


@mutant(30, "a_share_of_the_places_drafts", file="test_given_acceptance")
def drafts_in_every_round_of_a_lookup() -> None:
    """takes a profile of a lookup for one of a draft that drafts in every round"""
    given.probs_of_profile = lambda profile, n_tokens: [given.rates(profile)] * n_tokens
