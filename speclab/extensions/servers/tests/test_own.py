"""The lab's own rounds beside an engine's counts: what is equal, and what is not."""

import pytest

from speclab.core.rounds import Round
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.extensions.servers.referee import own

# Three rounds of four, which kept 3, 1 and 2: the last one kept 2.
OWN = own.OwnRounds([1, 2, 3], EngineCounts(n_drafts=3, n_drafted=12, n_accepted=6, accepted_at=[3, 2, 1, 0]), 4, 2)


def judged(engine, tokens=(1, 2, 3), mine=OWN):
    return own.judged(4, engine, mine, list(tokens))


def counts(n_drafts, n_drafted, *kept):
    return EngineCounts(n_drafts=n_drafts, n_drafted=n_drafted, n_accepted=sum(kept), accepted_at=list(kept))


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (counts(3, 12, 3, 2, 1, 0), "equal"),
        (counts(3, 12, 2, 1, 1, 0), "last round"),  # it kept none
        (counts(3, 12, 3, 1, 1, 0), "last round"),  # it kept 1
        (counts(3, 12, 3, 2, 2, 1), "last round"),  # it kept all 4
        (counts(3, 10, 3, 2, 1, 0), "last round"),  # it drafted 2 and kept both
        (counts(3, 9, 3, 2, 1, 0), "different"),  # it would have drafted 1 and kept 2
        (counts(3, 8, 2, 1, 1, 0), "different"),  # it would have drafted none
        (counts(3, 12, 3, 3, 1, 0), "different"),  # 3 kept, but not those of the first places
        (counts(3, 12, 3, 3, 0, 0), "different"),  # as many as the lab: another round differs
        (counts(3, 12, 3, 3, 3, 0), "different"),  # another round kept more
        (counts(3, 13, 3, 2, 1, 0), "different"),  # it would have drafted 5
        (counts(4, 16, 3, 2, 1, 0), "different"),  # a round more
    ],
)
def test_only_the_last_round_may_differ(engine, expected):
    assert judged(engine)[0] == expected


def test_a_lookup_whose_last_round_drafted_nothing_has_no_slack():
    """The last round that drafted lies in the middle of the text: it is held to the token."""
    mine = own.OwnRounds([1, 2, 3], OWN.counts, last_drafted=0, last_accepted=0)
    assert judged(counts(3, 12, 3, 2, 1, 0), mine=mine) == ("equal", "")
    assert judged(counts(3, 12, 3, 1, 1, 0), mine=mine)[0] == "different"


def test_what_differs_is_said_and_nothing_about_why():
    assert judged(counts(4, 16, 3, 2, 1, 0)) == ("different", "the same text in another number of rounds that draft")
    assert judged(counts(3, 20, 3, 2, 1, 0)) == ("different", "as many rounds, but another number of drafted tokens")
    assert judged(counts(3, 12, 3, 3, 3, 0))[1] == "as many rounds and drafted tokens, but others are accepted"
    assert judged(OWN.counts, tokens=(1, 2, 4)) == ("different", "another text from token 2 on")


def test_the_rounds_that_draft_are_counted():
    """The prompt's own pass and a round that drafts nothing are no drafts."""
    rounds = [
        Round([7], prefill=True),
        Round([1, 2, 3], n_drafted=4, n_accepted=2),
        Round([4]),
        Round([5, 6], n_drafted=3, n_accepted=1),
    ]
    found = own.counted(rounds, 6, 4)
    assert found.tokens == [7, 1, 2, 3, 4, 5]
    assert found.counts == counts(2, 7, 2, 1, 0, 0)
    assert (found.last_drafted, found.last_accepted) == (3, 1)
    middle = own.counted(rounds[:3], 6, 4)
    assert (middle.last_drafted, middle.last_accepted) == (0, 0)


def test_the_first_match_wins_as_in_vllm():
    import torch

    from draft_models import NgramDrafter

    text = torch.tensor([[1, 2, 7, 1, 2, 8, 1, 2]])
    for drafter, expected in ((own.FirstMatch(), [7, 1]), (NgramDrafter(), [8, 1])):
        drafter.prefill(None, text, None)
        assert drafter.lookup(2) == expected
    drafter = own.FirstMatch()
    drafter.prefill(None, text[:, :4], None)
    drafter.observe(0, [2])
    assert drafter.lookup(1) == [7]
