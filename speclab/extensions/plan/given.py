"""Acceptance from a speculation profile, in the place of what a draft would have proposed along the texts. Pure.

A profile knows rates by position and no text. So every place of a text gets the same rates, and the plan has what the
profile was measured on, with the costs that are calibrated here.
"""

from speclab.core.proposals import AcceptProbs
from speclab.extensions.plan.profiles import Profile
from speclab.theory.positions import conditional_rates


def rates(profile: Profile) -> list[float]:
    """Return the share of the rounds that reached each position which kept it, 0 where none reached it.

    Where drafts ended before the last position, those behind the first look worse than they are.
    """
    return [rate or 0.0 for rate in conditional_rates(profile.n_drafts, profile.accepted_at)]


def probs_of_profile(profile: Profile, n_tokens: int) -> AcceptProbs:
    """Return a row of acceptance probabilities for each of `n_tokens` states. A lookup drafts in a share of all rounds:
    so many states have these rates, evenly spread, and the others draft nothing."""
    row, share = rates(profile), profile.n_drafts / profile.n_rounds
    return [row if int((state + 1) * share) > int(state * share) else [] for state in range(n_tokens)]
