"""What a /metrics page says: real pages of vLLM and llama-server, simulated ones, and lies."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import counters
from speclab.extensions.servers.counters import EngineCounts, between, read
from speclab.extensions.servers.tests.simulated import Simulated
from speclab.system.errors import EnvironmentProblem
from speclab.system.paths import ROOT

RECORDED = Path(__file__).parent / "recorded"


def test_a_real_page_of_vllm():
    """As two servers of vLLM 0.32 have sent them, which chapter 17 reads, too."""
    pages = json.loads((ROOT / "exercises" / "serving_transcript.json").read_text())["speculative"]["pages"]
    first, last = (read("\n".join(page) + "\n") for page in (pages[0], pages[-1]))
    found = between(first, last)
    kept = [0, 0, 0, 0]
    for prompt in json.loads((ROOT / "exercises" / "serving_transcript.json").read_text())["prompts"]:
        for _, n in prompt["own_rounds"]:
            kept = [count + (n > place) for place, count in enumerate(kept)]
    assert (first.engine, found.speculation.accepted_at) == ("vLLM", kept), "the lab's own rounds of these prompts"
    assert found.round_seconds == pytest.approx(0.0208, abs=1e-4)


def test_a_label_may_hold_what_ends_a_line_elsewhere():
    page = 'vllm:generation_tokens_total{model_name="a\x0cb\x85c\u2028d"} 30\n'
    assert read(page).n_generated == read(page.replace("\n", "\r\n")).n_generated == 30


def test_a_real_page_of_llama_server():
    """As it came from a server with the target as its own draft, k = 4."""
    look = read((RECORDED / "llama-server.txt").read_text())
    assert (look.engine, look.n_generated, look.n_running) == ("llama-server", 507, 0)
    assert look.speculation == EngineCounts(n_drafts=106, n_drafted=394, n_accepted=388, accepted_at=[105, 95, 94, 94])


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
        ("vllm:generation_tokens_total NaN\n", "no count"),
        ("vllm:generation_tokens_total -1\n", "no count"),
        ("vllm:generation_tokens_total 1.5\n", "no count"),
        ("vllm:generation_tokens_total +Inf\n", "no count"),
        ("vllm:generation_tokens_total 1e300\n", "no count"),
        ("vllm:generation_tokens_total\n", "no metric"),
        ('vllm:generation_tokens_total{a="b 3\n', "no metric"),
        ("llamacpp:tokens_predicted_total 1.23457e+06\n", "six digits"),
        (GOOD + DRAFTS.format(4, 8, 9), "contradict each other"),
        (GOOD + DRAFTS.format(9, 8, 4), "contradict each other"),
        (GOOD + DRAFTS.format(4, 8, 4) + PLACE.format(0, 1) + PLACE.format(1, 3), "contradict each other"),
        (GOOD + DRAFTS.format(4, 8, 4) + PLACE.format(0, 3), "contradict each other"),
        (GOOD + DRAFTS.format(4, 8, 3) + PLACE.format("x", 3), "which is none"),
        (GOOD + DRAFTS.format(4, 8, 3) + PLACE.format(10**9, 3), "which is none"),
        ("vllm:num_requests_running NaN\n" + GOOD, "no amount"),
    ],
)
def test_a_page_that_lies_is_one_line(page, words):
    with pytest.raises(EnvironmentProblem, match=words):
        read(page)


@given(st.text('vllm:generation_tokens_total{}"=,.0123456789eE+-\\# \n', max_size=200))
def test_any_page_is_read_or_refused(noise):
    for page in (noise + "\n", GOOD + "vllm:generation_tokens_total" + noise + "\n"):
        with contextlib.suppress(EnvironmentProblem):
            assert read(page).n_generated >= 0


def looked(generated, counts=None, engine="vLLM"):
    return counters.Look(engine, generated, counts, 0)


ONE = EngineCounts(n_drafts=2, n_drafted=4, n_accepted=2, accepted_at=[2, 0])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (looked(9), looked(8), "went back"),
        (
            looked(9, ONE),
            looked(12, EngineCounts(n_drafts=1, n_drafted=2, n_accepted=1, accepted_at=[1, 0])),
            "went back",
        ),
        (looked(9, ONE), looked(12), "went away"),
        (looked(9), looked(12, engine="llama-server"), "went back"),
        (
            looked(9, ONE),
            looked(12, EngineCounts(n_drafts=3, n_drafted=5, n_accepted=4, accepted_at=[2, 2])),
            "differences of speculation contradict",
        ),
    ],
)
def test_two_looks_that_do_not_belong_together_are_one_line(before, after, words):
    with pytest.raises(EnvironmentProblem, match=words):
        between(before, after)


def test_engines_behind_one_page_are_added_up():
    page = 'vllm:generation_tokens_total{engine="0"} 3\nvllm:generation_tokens_total{engine="1"} 4\n'
    assert read(page).n_generated == 7
