"""The table of servers that are wrong on purpose: what it counts as right and as named, and what it does not mix."""

import contextlib
import importlib.util
import json
import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import causes, shapes
from speclab.extensions.servers.ask import engines
from speclab.extensions.servers.ask.client import Order
from speclab.extensions.servers.curves.measuring import Lab
from speclab.extensions.servers.diagnosis import (
    COST,
    LOAD,
    MORE,
    NOTHING,
    REJECTED,
    TEXT_WRONG,
    Diagnosis,
    diagnose,
)
from speclab.extensions.servers.engine_counts import EngineCounts
from speclab.extensions.servers.load import users
from speclab.extensions.servers.measured import Measured
from speclab.extensions.servers.start import starting
from speclab.extensions.servers.start.programs import LlamaServer, Vllm
from speclab.extensions.servers.tests.simulated import Simulated
from speclab.extensions.servers.wrong import __main__ as command
from speclab.extensions.servers.wrong import asking_wrong, wrong_views
from speclab.extensions.servers.wrong.__main__ import CASES, NAMES, SETS
from speclab.extensions.servers.wrong.cases import DROPPED
from speclab.extensions.servers.wrong.makers import Both, Found, Place
from speclab.extensions.servers.wrong.third_set import THIRD
from speclab.extensions.servers.wrong.vllm_set import with_weights
from speclab.extensions.servers.wrong.wrong_record import WrongRun, WrongServer
from speclab.models import prompts
from speclab.models.loading import LAB_TARGET
from speclab.models.outside import written_gguf
from speclab.models.setup import load_setup
from speclab.records import files
from speclab.system.errors import EnvironmentProblem, UsageProblem
from speclab.system.paths import ROOT

RECORD = ROOT / "results" / "cpu-2-cores-wrong-servers.json"
RECORDS = sorted((ROOT / "results").glob("*wrong-servers.json"))
CLOSED = {value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}


@pytest.fixture
def run() -> WrongRun:
    return files.read(RECORD, WrongRun)


def test_every_case_expects_an_answer_and_a_cause_that_the_command_can_give():
    assert len(CASES) == sum(map(len, SETS.values())), "each has a name of its own"
    for case in CASES.values():
        assert case.answer in ("", REJECTED, COST, LOAD, NOTHING, TEXT_WRONG, DROPPED)
        if case.answer not in (NOTHING, DROPPED):
            assert case.cause in CLOSED


def test_a_cause_counts_as_named_where_it_is_one_of_those_that_are_shown(run):
    right, no_cause = run.wrong[0], run.wrong[1]
    right = replace(right, half="third", cause="a", causes=["b", "a"], named=True, right=True)
    missed = replace(right, name="missed", causes=["b", "c"], named=False)
    fine = replace(no_cause, half="third", cause="", causes=[], named=True, right=True)
    run.wrong = [right, missed, fine]
    assert [wrong_views.place(one) for one in run.wrong] == ["2nd", "NO", "-"]
    both, chance = wrong_views.score(run, "third")
    assert both.startswith("3 of 3 answers are right, 1 of 2 true causes")
    assert "1 of 1 sound" in both
    run.wrong = [right, missed, replace(fine, named=False)]
    assert "1 of 2 true causes" in wrong_views.score(run, "third")[0], "a cause beside a sound server is none of them"
    assert "0 of 1 sound" in wrong_views.score(run, "third")[0]
    run.wrong = [right, missed]
    assert "sound" not in wrong_views.score(run, "third")[0]
    assert chance.endswith("one pair of causes for 2")


ANSWERS_OF_TODAY = {"wrong layers": MORE, "wrong layers in vLLM": MORE}  # the records are older than this answer
SHAPES = {shape.name: shape for shape in vars(shapes).values() if isinstance(shape, shapes.Shape)}


def judged_again(one: WrongServer) -> Diagnosis:
    """Return what today's rules say of a recorded server. What its record has on the screen alone is read there."""
    text = "\n".join(one.screen)
    kept = re.search(r"kept of all rounds that draft([ .\d]+)", text)
    at = [round(float(rate) * one.n_drafts) for rate in kept[1].split()] if kept else []
    counts = EngineCounts(n_drafts=one.n_drafts, n_drafted=one.n_drafted, n_accepted=one.n_accepted, accepted_at=at)
    others, tau = re.search(r"(\d+) other requests", text), one.tokens_per_round
    n_rounds = max(one.n_drafts, one.n_accepted / (tau - 1)) if tau > 1.05 else one.n_drafts
    found = Measured(
        counts=counts,
        n_rounds=n_rounds,
        n_tokens=n_rounds * tau,
        draft_length=one.n_drafted / one.n_drafts,
        plain_seconds=1.0,
        seconds=1 / one.speedup,
        round_seconds=one.round_cost,
        n_running=int(others[1]) if others else 0,
    )
    return diagnose(found, [SHAPES[name] for name in one.shapes])


@pytest.mark.parametrize("record", RECORDS, ids=[path.stem for path in RECORDS])
def test_every_recorded_server_gets_the_answer_that_stands_beside_it(record):
    """All sets, so that no rule is made for one of them alone."""
    for one in files.read(record, WrongRun).wrong:
        if one.tokens_per_round:
            said = judged_again(one).answer
            assert said == ANSWERS_OF_TODAY.get(one.name, one.answer.removeprefix(f"{TEXT_WRONG}, and of its speed: "))


@given(st.integers(1, 200), st.floats(0, 1))
def test_the_ends_of_the_interval_are_1_96_errors_from_what_was_seen(n, share):
    """By the definition of Wilson: with the spread that the end itself would have."""
    n_right = round(n * share)
    low, high = wrong_views.interval(n_right, n)
    assert -1e-9 <= low <= n_right / n <= high <= 1 + 1e-9
    for end in (low, high):
        assert abs(n_right / n - end) == pytest.approx(1.96 * (max(0, end * (1 - end)) / n) ** 0.5, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("expected", "of_speed", "shown", "right"),
    [
        (COST, COST, COST, True),
        (COST, REJECTED, REJECTED, False),
        (REJECTED, REJECTED, f"{TEXT_WRONG}, and of its speed: {REJECTED}", True),
        (TEXT_WRONG, NOTHING, f"{TEXT_WRONG}, and of its speed: {NOTHING}", True),
        (TEXT_WRONG, NOTHING, NOTHING, False),
    ],
)
def test_an_answer_is_right_where_it_is_the_expected_one(expected, of_speed, shown, right):
    assert asking_wrong.is_right(expected, of_speed, shown) == right


def test_a_cause_is_named_by_name_alone():
    assert asking_wrong.is_named("a", ("b", "a"), right=False)
    assert not asking_wrong.is_named("a", ("b", "c"), right=True)
    assert asking_wrong.is_named("", (), right=True)
    assert not asking_wrong.is_named("", ("a",), right=True), "a cause is shown where nothing is wrong"
    assert not asking_wrong.is_named("", (), right=False)


@pytest.mark.parametrize("part", ["machine", "versions", "settings", "thresholds"])
def test_records_of_different_runs_are_not_added(run, part):
    other = files.read(RECORD, WrongRun)
    value = getattr(other, part)
    first = next(iter(value if isinstance(value, dict) else vars(value)))
    setattr(other, part, value | {first: 7} if isinstance(value, dict) else replace(value, **{first: "another"}))
    with pytest.raises(UsageProblem, match=f"other {part}"):
        command.add(run, other, "other.json")


def test_an_unknown_server_is_named(run):
    other = files.read(RECORD, WrongRun)
    other.wrong[0] = replace(other.wrong[0], name="nobody")
    with pytest.raises(UsageProblem, match="nobody"):
        command.add(run, other, "other.json")


def test_only_takes_servers_and_sets_and_names_them_where_it_does_not_know_one():
    known = [name for names in NAMES.values() for name in names]
    assert command.chosen_names(None) == known
    assert command.chosen_names(",".join(known)) == known, "no name has a comma"
    assert set(command.chosen_names("third, k = 12,users")) == {*NAMES["third"], "k = 12", *NAMES["users"]}
    with pytest.raises(UsageProblem, match="k = 13") as caught:
        command.chosen_names("third,k = 13")
    assert all(name in str(caught.value) for name in (*known, *NAMES))
    assert "\n" not in str(caught.value)
    assert all(name in command.make_parser().format_help() for name in NAMES)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    setup = load_setup(LAB_TARGET, engine="eager", threads=1)
    found = prompts.encode([("code", "def area(self):"), ("prose", "The old man")], setup.tokenizer)
    return Place(
        Lab(setup, found, 12, 0), LlamaServer("/no/llama"), Vllm("/no/vllm"), None, tmp_path_factory.mktemp("place")
    )


OWN = [case for case in THIRD if "others" not in case.name]


@pytest.mark.parametrize("case", OWN, ids=[case.name for case in OWN])
def test_a_fault_of_the_draft_changes_no_text_and_any_other_one_does(case, place):
    with case.servers.started(place) as both:
        orders = [Order(one.text, 40, chat=False) for one in place.lab.prompts]
        one, other = ([server.client.ask(order).text for order in orders] for server in both[:2])
    assert (one == other) == (case.answer != TEXT_WRONG)


def test_servers_whose_program_is_not_there_are_left_out_and_the_others_are_asked(place, capsys):
    names = command.chosen_names("vllm,third")
    assert command.those_here(names, place) == [case.name for case in OWN]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, "one line for each program"
    assert any("/no/vllm" in line and "make vllm" in line for line in lines)
    with pytest.raises(EnvironmentProblem, match="make vllm"):
        command.those_here(NAMES["vllm"], place)


class Simulation(Both):
    """Two simulated servers in the place of others."""

    @contextlib.contextmanager
    def started(self, place):
        with Simulated(rates=(0.5,)) as one, Simulated() as other:
            yield Found(engines.find(one.url, None), engines.find(other.url, None), "simulated")


def replaced(monkeypatch, name, **changes):
    """Put simulated servers into a case."""
    monkeypatch.setitem(CASES, name, replace(CASES[name], servers=Simulation(), others=0, **changes))


def test_a_server_that_dies_is_in_no_count_and_the_others_are_asked(monkeypatch, tmp_path, capsys):
    """The one that dies first is the one of which any answer of speed would be right."""
    names, asked = ["cached", "one kind", "slow host"], []
    usual = asking_wrong.running.find_out

    def find_out(*args):
        asked.append(args)
        if len(asked) == 1:
            raise EnvironmentProblem("it went away")
        return usual(*args)

    monkeypatch.setattr(asking_wrong.running, "find_out", find_out)
    for name in names:
        replaced(monkeypatch, name)
    words = ["--only", ",".join(names), "--limit", "1", "--max-new-tokens", "16", "--name", "x"]
    assert command.main([*words, "--out-dir", str(tmp_path)]) == 3
    found = files.read(tmp_path / "results" / "x-wrong-servers.json", WrongRun)
    assert {one.name for one in found.wrong} == set(names[1:])
    assert found.interrupted
    assert "cached is not measured: it went away" in capsys.readouterr().err


def test_a_line_that_refuses_a_server_is_its_answer_where_the_case_expects_it(monkeypatch, place):
    def find_out(*_):
        raise EnvironmentProblem(f"the server {DROPPED}")

    monkeypatch.setattr(asking_wrong.running, "find_out", find_out)
    [name] = [case.name for case in CASES.values() if case.answer == DROPPED]
    replaced(monkeypatch, name)
    found = asking_wrong.asked(CASES[name], "before", place, 16)
    assert (found.answer, found.right) == (DROPPED, True)
    replaced(monkeypatch, name, answer="")
    with pytest.raises(EnvironmentProblem, match=DROPPED):
        asking_wrong.asked(CASES[name], "before", place, 16)


def test_a_package_and_a_head_that_are_not_there_are_missing(monkeypatch, place, tmp_path):
    here = replace(place, llama=LlamaServer(sys.executable), vllm=Vllm(sys.executable), smollm2=tmp_path)
    heads = with_weights(tmp_path / "feature")
    assert "feature" in heads.missing(here)
    (tmp_path / "feature").mkdir()
    (tmp_path / "feature" / "config.json").write_text("{}")
    assert heads.missing(here) == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "pip install gguf" in CASES["as it is"].servers.missing(here)
    assert CASES["a draft as large as its target"].servers.missing(here) == "", "it writes no file"


def test_vllm_is_told_to_draft_for_few_requests_and_for_none_beyond():
    """In nothing else do the two servers under load differ, and no size of the batch is left out."""
    users = [asking_wrong.LOADS[name] for name in ("users of vLLM", "users of vLLM with drafts for two")]
    usual, few = (json.loads(one.draft(None)(Vllm(), 3)[1]) for one in users)
    schedule = few.pop("num_speculative_tokens_per_batch_size")
    assert few == usual
    [(first, few_users, k), (next_users, most, none)] = schedule
    assert (first, k, next_users, none) == (1, 3, few_users + 1, 0)
    assert few_users in asking_wrong.USERS
    assert most >= max(asking_wrong.USERS)


def test_every_file_is_written_once(monkeypatch, place, tmp_path):
    written = []

    @contextlib.contextmanager
    def started(commands, port):
        with Simulated(rates=(0.5,)) as one:
            yield [one.url for _ in commands]

    monkeypatch.setattr(written_gguf, "write", lambda folder, path, *_: written.append(path.name) or path)
    monkeypatch.setattr(starting, "started", started)
    here = replace(place, folder=tmp_path, _written={})
    for name in ("as it is", "k = 12"):
        with CASES[name].servers.started(here):
            pass
    assert sorted(written) == ["draft.gguf", "target.gguf"]


def test_a_record_says_that_users_were_interrupted(monkeypatch, tmp_path, capsys):
    """Ctrl-C comes when two users ask. What was measured before stays, and nothing is asked after it."""
    usual, asked = users.Users.ask, []

    def ask(self, n_users, work, seconds):
        asked.append(n_users)
        if n_users > 1:
            raise KeyboardInterrupt
        return usual(self, n_users, work, 0.1)

    monkeypatch.setattr(users.Users, "ask", ask)
    for name in NAMES["users"]:
        monkeypatch.setitem(asking_wrong.LOADS, name, Simulation())
    assert command.main(["--only", "users", "--limit", "1", "--name", "x", "--out-dir", str(tmp_path)]) == 0
    found = files.read(tmp_path / "results" / "x-wrong-servers.json", WrongRun)
    assert found.interrupted
    assert [one.ended_early for one in found.loads] == [True]
    assert asked == [1] * 4 + [2]
    assert "\n".join(found.loads[0].screen) in capsys.readouterr().out
