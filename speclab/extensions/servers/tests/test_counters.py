"""What a /metrics page says: a real one of llama-server, simulated ones in the form of vLLM, and lies."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import counters
from speclab.extensions.servers.counters import EngineCounts, along, between, of_rounds, read, total
from speclab.extensions.servers.tests.simulated import Simulated
from speclab.system.errors import EnvironmentProblem


def test_engines_are_added_up_and_a_label_may_hold_what_ends_a_line_elsewhere():
    line = 'vllm:generation_tokens_total{{engine="{}",model_name="a\x0cb\x85c\u2028d"}} {}\n'
    page = line.format(0, 13) + line.format(1, 17)
    assert read(page).total == read(page.replace("\n", "\r\n")).total == counters.Counted(30, None)


def test_a_real_page_of_llama_server():
    """As it came from a server with the target as its own draft, k = 4."""
    look = read((Path(__file__).parent / "recorded" / "llama-server.txt").read_text())
    assert (look.engine, look.total.n_generated, look.n_running) == ("llama-server", 507, 0)
    counts = EngineCounts(n_drafts=106, n_drafted=394, n_accepted=388, accepted_at=[105, 95, 94, 94])
    assert look.total.speculation == counts


@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_alpha_and_f_are_those_of_the_rounds(seed, one, other):
    fake = Simulated(rates=(one, other), seed=seed)
    fake.server_close()
    before = read(fake.metrics())
    fake.chunks(fake.text_of("x", 30))
    counts = between(before, read(fake.metrics())).speculation
    assert replace(counts, n_drafted=counts.n_drafted - 1).acceptance_rate is None, "a draft was shorter"
    tested = sum(min(kept + 1, drafted) for drafted, kept in fake.rounds)
    assert counts.acceptance_rate == sum(kept for _, kept in fake.rounds) / tested
    assert counts.drafted_fraction == sum(kept for _, kept in fake.rounds) / (2 * len(fake.rounds))


GOOD = "vllm:generation_tokens_total 30\n"
DRAFTS = "vllm:spec_decode_num_drafts_total {}\nvllm:spec_decode_num_draft_tokens_total {}\n"
DRAFTS += "vllm:spec_decode_num_accepted_tokens_total {}\n"
PLACE = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{}"}} {}\n'


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("", "middle of a line"),
        ("vllm:generation_tokens_total 12", "middle of a line"),
        ("python_gc_objects 3\n", "no counters of vLLM"),
        ("vllm:num_requests_running 0\n", "switched off"),
        *(
            (f"vllm:generation_tokens_total{end}\n", "no metric")
            for end in (" NaN", " -1", " 1.5", " +Inf", " 1e300", "", '{a="b 3')
        ),
        ("llamacpp:tokens_predicted_total 1.23457e+06\n", "six digits"),
        *((GOOD + DRAFTS.format(*counts), "contradict each other") for counts in ((4, 8, 9), (9, 8, 4))),
        (GOOD + DRAFTS.format(4, 8, 4) + PLACE.format(0, 1) + PLACE.format(1, 3), "contradict each other"),
        (GOOD + DRAFTS.format(4, 8, 4) + PLACE.format(0, 3), "contradict each other"),
        *((GOOD + DRAFTS.format(4, 8, 3) + PLACE.format(place, 3), "no metric") for place in ("x", 10**9)),
        ("vllm:num_requests_running NaN\n" + GOOD, "no metric"),
    ],
)
def test_a_page_that_lies_is_one_line(page, words):
    with pytest.raises(EnvironmentProblem, match=words):
        read(page)


@given(st.text('vllm:generation_tokens_total{}"=,.0123456789eE+-\\# \n', max_size=200))
def test_any_page_is_read_or_refused(noise):
    for page in (noise + "\n", GOOD + "vllm:generation_tokens_total" + noise + "\n"):
        with contextlib.suppress(EnvironmentProblem):
            assert read(page).total.n_generated >= 0


def page(n, *counts):
    return GOOD.replace("30", f"{n}") + (DRAFTS.format(*counts) if counts else "")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (page(9), page(8), "went back"),
        (page(9), "llamacpp:tokens_predicted_total 50\n", "went back"),  # another engine is another server
        (page(9, 2, 4, 2), page(12, 1, 2, 1), "went back"),
        (page(9, 2, 4, 2), page(12), "went back"),
        (page(9, 2, 4, 2), page(12, 4, 5, 2), "contradict each other"),
    ],
)
def test_two_looks_that_do_not_belong_together_are_one_line(before, after, words):
    with pytest.raises(EnvironmentProblem, match=words):
        between(read(before), read(after))


ROUNDS = st.lists(st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=40)


@given(ROUNDS, ROUNDS, st.integers(1, 4))
def test_what_was_tested_is_known_of_rounds_and_of_their_sums(some, others, n_parts):
    """A round tests the tokens that it keeps, and one more where its draft has one."""
    both = total([of_rounds(some, 5), of_rounds(others, 5)])
    assert (both, both.tested) == (of_rounds(some + others, 5), of_rounds(some + others, 5).tested)
    n_tested = sum(min(kept + 1, n) for n, kept in some + others)
    assert sum(both.tested) == n_tested
    assert both.acceptance_rate == (both.n_accepted / n_tested if n_tested else None)
    assert all(kept <= tested for kept, tested in zip(both.accepted_at, both.tested, strict=True))
    parts = along(some, 5, n_parts)
    assert (len(parts), total(parts)) == (n_parts, of_rounds(some, 5))
