"""Counters of an engine: what a page says, differences, and the ratios that follow."""

import pytest

from speclab.extensions.servers import counters
from speclab.extensions.servers.counters import Look
from speclab.extensions.servers.server_record import EngineCounts
from speclab.extensions.servers.tests.fake_vllm import Fake
from speclab.system.errors import EnvironmentProblem

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
NO_COUNTS = ("many", "NaN", "+Inf", "-Inf", "-3.0", "12.5", "1e300")
NOT_SPECULATIVE = 'vllm:generation_tokens_total{engine="0",model_name="target"} 12.0\n'


def counts(n_drafts, n_drafted, n_accepted, *kept):
    return EngineCounts(n_drafts=n_drafts, n_drafted=n_drafted, n_accepted=n_accepted, accepted_at=list(kept))


def pages(n_drafts, n_drafted, n_accepted, *kept):
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    lines = [
        f"vllm:spec_decode_{name}_total {n}" for name, n in zip(names, (n_drafts, n_drafted, n_accepted), strict=True)
    ]
    per_place = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{per_place}{{position="{place}"}} {n}' for place, n in enumerate(kept)]
    return NOT_SPECULATIVE + "".join(f"{line}\n" for line in lines)


@pytest.fixture
def page():
    """After one answer of 9 tokens: four rounds that drafted 4 and kept 0, 4, 1 and 0."""
    script = {"rounds": {"ngram": {"1,2": [[4, 0], [4, 4], [4, 1], [4, 0]]}}}
    fake = Fake(script, {"method": "ngram", "num_speculative_tokens": 4})
    assert sum(map(len, fake.chunks({"prompt": [1, 2], "max_tokens": 10}))) == 10
    fake.generated = 10
    yield fake.metrics()
    fake.server_close()


def test_a_page_is_read(page):
    assert counters.read(page) == Look(10, counts(4, 16, 5, 2, 1, 1, 1), prefix_cache=False)
    assert counters.read(NOT_SPECULATIVE) == Look(12, None)
    assert counters.read(page.replace("False", "True")).prefix_cache is True


def test_engines_behind_one_page_are_added(page):
    twice = counters.read(page + page.replace('engine="0"', 'engine="1"'))
    assert twice == Look(20, counts(8, 32, 10, 4, 2, 2, 2), prefix_cache=False)


@pytest.mark.parametrize(
    "bad", ["", "<html>", "a 1", NOT_SPECULATIVE[:-1], *(NOT_SPECULATIVE.replace("12.0", one) for one in NO_COUNTS)]
)
def test_a_page_of_something_else_is_a_problem(bad):
    with pytest.raises(EnvironmentProblem, match="/metrics"):
        counters.read(bad)


def test_what_was_counted_is_a_difference():
    before, after = Look(5, counts(3, 12, 4, 3, 1)), Look(15, counts(7, 28, 9, 6, 3))
    assert counters.between(before, after) == counts(4, 16, 5, 3, 2)
    assert counters.between(Look(0, None), Look(5, None)) is None
    with pytest.raises(EnvironmentProblem, match="went back"):
        counters.between(after, before)
    for other in (Look(15, None), Look(15, counts(7, 28, 9, 6, 2, 1))):
        with pytest.raises(EnvironmentProblem, match="came or went"):
            counters.between(before, other)
    with pytest.raises(EnvironmentProblem, match="contradict"):
        counters.between(before, Look(15, counts(4, 28, 9, 6, 3)))


@pytest.mark.parametrize(
    "page",
    [
        pages(1, 4, 5, 5),  # more accepted than drafted
        pages(1, 4, 2, 1, 0),  # the places have other tokens
        pages(2, 8, 3, 1, 2),  # a later place kept more often than an earlier one
        pages(1, 4, 2, 2),  # kept more often than drafted
    ],
)
def test_counters_that_contradict_each_other_are_one_line(page):
    with pytest.raises(EnvironmentProblem, match="contradict each other"):
        counters.read(page)


def test_sums_have_all_places():
    assert counters.total([counts(1, 2, 1, 1), counts(1, 4, 3, 1, 1, 1), counts(0, 0, 0)]) == counts(2, 6, 4, 2, 1, 1)
    assert counters.total([]) == counts(0, 0, 0)


def test_the_drafted_fraction_is_not_the_acceptance_rate():
    """Four drafts of 4, which kept 0, 4, 1 and 0: 5 of 16 drafted tokens; tested were 1 + 4 + 2 + 1 = 8."""
    some = counts(4, 16, 5, 2, 1, 1, 1)
    assert counters.as_counts(some, 4).drafted_fraction == 5 / 16
    assert counters.acceptance_rate(some, 4) == 5 / 8
    assert counters.acceptance_length(some) == 1 + 5 / 4
    assert (counters.as_counts(some, 4).n_rejected, counters.whole(some, 4)) == (3, True)


def test_of_shorter_drafts_it_is_not_known_what_was_tested():
    short = counts(4, 14, 5, 2, 1, 1, 1)
    assert not counters.whole(short, 4)
    assert counters.acceptance_rate(short, 4) is None
    assert counters.as_counts(short, 4).drafted_fraction == 5 / 14


def test_nothing_drafted_has_no_ratio():
    none = counts(0, 0, 0, 0, 0)
    assert counters.acceptance_rate(none, 2) is counters.acceptance_length(none) is None
    assert counters.as_counts(none, 2).drafted_fraction is None
