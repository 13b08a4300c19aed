"""A plan from a speculation profile: the tokens of its rounds are the profile's, and what is no profile is one line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speclab.extensions.plan import profiles
from speclab.extensions.plan.__main__ import main
from speclab.extensions.plan.given import probs_of_profile, rates
from speclab.extensions.plan.plan_record import PlanRun
from speclab.extensions.plan.profiles import Profile
from speclab.models import prompts
from speclab.records.files import read
from speclab.system.errors import EnvironmentProblem
from speclab.theory.forecast import forecast

TEXTS = [("code", "((("), ("code", "return x"), ("prose", "x + 1, x + 1,")]


@st.composite
def made(draw, always=False):
    """A profile of whole drafts, with rounds that drafted nothing."""
    n_drafts, kept = draw(st.integers(1, 5000)), []
    for _ in range(draw(st.integers(1, 8))):
        kept.append(draw(st.integers(0, kept[-1] if kept else n_drafts)))
    idle = 0 if always else draw(st.integers(0, 5000))
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


@settings(max_examples=30)
@given(made(always=True), st.integers(1, 8))
def test_the_tokens_of_a_round_are_the_profiles(found, k):
    """Without an end of the text, and at every length that the profile knows."""
    k = min(k, found.draft_length)
    expected = forecast(probs_of_profile(found, 400), 400, k, capped=False)
    tau = 1 + sum(found.accepted_at[:k]) / found.n_drafts
    assert expected.n_emitted / expected.n_rounds == pytest.approx(tau, rel=1e-9)


@given(made(), st.integers(1, 500))
def test_a_share_of_the_places_drafts(found, n):
    rows = probs_of_profile(found, n)
    assert len(rows) == n
    drafting = sum(bool(row) for row in rows)
    assert abs(drafting - n * found.n_drafts / found.n_rounds) <= 1
    assert all(list(row) in ([], rates(found)) for row in rows)


@pytest.fixture
def command(pair_folder, tmp_path, capsys, monkeypatch):
    """The command on the tiny pair; returns (exit code, stdout, stderr)."""
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    monkeypatch.setattr("speclab.extensions.plan.plan_views.picture", lambda *args: tmp_path)
    models = ["--target", str(pair_folder / "target"), "--draft", str(pair_folder / "draft")]
    size = ["--max-new-tokens", "32", "--repeats", "1", "--threads", "1", "--engine", "eager"]

    def call(*words):
        return main([*models, *size, "--out-dir", str(tmp_path), *map(str, words)]), *capsys.readouterr()

    return call


def test_a_plan_takes_acceptance_from_a_profile_and_costs_from_here(command, file, tmp_path):
    """A draft that is never accepted here has the acceptance that was counted elsewhere."""
    found = Profile(1000, 1000, 3000, [900, 810, 729])
    file.write_text(text_of(found))
    code, out, err = command("--acceptance-profile", file, "-k", "0,1,2,3,5")
    assert code == 0, err
    run = read(tmp_path / "results" / "local-plan.json", PlanRun)
    assert [entry.draft_length for entry in run.plan] == [0, 1, 2, 3], "no length that the profile does not know"
    for entry in run.plan[1:]:
        assert entry.acceptance_rate == pytest.approx(0.9, abs=0.01)
        tau = 1 + sum(found.accepted_at[: entry.draft_length]) / 1000
        assert entry.tokens_per_round == pytest.approx(tau, rel=0.1), "the end of a text costs a little"
    assert run.facts.acceptance_profile == {**found._asdict()}
    assert "1000 rounds of at most 3 tokens" in " ".join(out.split())
    assert "drafts of 3 tokens" in err


def test_a_plan_without_a_profile_says_nothing_of_one(command, tmp_path):
    code, out, _ = command("-k", "0,2")
    assert code == 0
    assert read(tmp_path / "results" / "local-plan.json", PlanRun).facts.acceptance_profile is None
    assert "speculation profile" not in out


@pytest.mark.parametrize(
    ("content", "words", "code", "says"),
    [
        (None, "", 3, "give another file"),
        ("{}", "", 3, "speculation_profile.json"),
        ('{"acceptance_length_histogram": {"1": 3, "2": NaN}}', "", 3, "speculation_profile.json"),
        ("[" * 10**5, "", 3, "speculation_profile.json"),
        ("good", "--draft model,ngram", 2, "--draft model"),
        ("good", "-k 9", 2, "give -k 2"),
    ],
)
def test_a_bad_profile_is_one_line(command, tmp_path, content, words, code, says):
    path = tmp_path / "p.json"
    if content:
        path.write_text(text_of(Profile(10, 10, 20, [5, 2])) if content == "good" else content)
    found, _, err = command("--acceptance-profile", path, *words.split())
    assert found == code
    assert says in err.strip().splitlines()[-1]
    assert not list(tmp_path.rglob("*-plan.json")), "nothing was measured"
