"""A speculation profile: counts that were written are read, and what is no profile is one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.records import profiles
from speclab.records.profiles import Profile
from speclab.system.errors import EnvironmentProblem


@st.composite
def made(draw):
    """A profile of whole drafts, with rounds that drafted nothing."""
    n_drafts, kept = draw(st.integers(1, 5000)), []
    for _ in range(draw(st.integers(1, 8))):
        kept.append(draw(st.integers(0, kept[-1] if kept else n_drafts)))
    idle = draw(st.integers(0, 5000))
    return Profile(n_drafts + idle, n_drafts, n_drafts * len(kept), kept)


def text_of(found: Profile, **more) -> str:
    reached = [found.n_drafts, *found.accepted_at, 0]
    histogram = {str(n + 1): reached[n] - reached[n + 1] for n in range(len(reached) - 1)}
    about = {"n_rounds": found.n_rounds, "n_drafted_tokens": found.n_drafted}
    return json.dumps({"acceptance_length_histogram": histogram, "measurement_conditions": about} | more)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("profile") / "speculation_profile.json"


@given(made())
def test_counts_that_were_written_are_read(file, found):
    file.write_text(text_of(found))
    assert profiles.read(file, "--flag") == found
    file.write_text(text_of(found, measurement_conditions={}))
    assert profiles.read(file, "--flag") == found._replace(n_rounds=found.n_drafts), "whole drafts, one each round"


NUMBERS = st.one_of(st.integers(-3, 10**20), st.floats(), st.none(), st.text(max_size=3), st.booleans())
KEYS = st.one_of(st.integers(-2, 400).map(str), st.text(max_size=3))


@given(
    st.dictionaries(KEYS, NUMBERS, max_size=4),
    st.dictionaries(st.sampled_from(["n_rounds", "n_drafted_tokens"]), NUMBERS),
)
def test_what_somebody_writes_is_counts_that_fit_together_or_one_line(file, histogram, about):
    file.write_text(json.dumps({"acceptance_length_histogram": histogram, "measurement_conditions": about}))
    said, found = "--flag", None
    try:
        found = profiles.read(file, "--flag")
    except EnvironmentProblem as problem:
        said = str(problem)
    assert said.startswith("--flag")
    assert "\n" not in said
    if found is None:
        return
    assert 0 < found.n_drafts <= found.n_rounds
    assert max(found.n_accepted, found.n_drafts) <= found.n_drafted <= found.n_drafts * found.draft_length
    assert sorted(found.accepted_at, reverse=True) == found.accepted_at
    assert found.accepted_at[0] <= found.n_drafts


@given(st.binary(max_size=60))
def test_any_file_is_read_or_refused_in_one_line(file, data):
    file.write_bytes(data)
    with pytest.raises(EnvironmentProblem) as caught:
        profiles.read(file, "--flag")
    assert "\n" not in str(caught.value)
