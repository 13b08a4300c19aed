"""Under load: a window's numbers are those of its requests, and each of its checks fails for what it is about."""

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers.ask import asking, engines, inputs
from speclab.extensions.servers.counters import Look
from speclab.extensions.servers.load import load_screen, users, work
from speclab.extensions.servers.load.levels import LOSES, PAYS, UNCLEAR, Level, side, stops_paying, verdict
from speclab.extensions.servers.load.users import Request, Users, Window
from speclab.extensions.servers.tests.simulated import Simulated
from speclab.system.errors import EnvironmentProblem

N_USERS, TOOK, WAIT, RATE = 3, 2.0, 0.1, 10.0  # seconds of a request, those before its first token, tokens a second


def look(n_waiting=0.0):
    return Look("vLLM", 0, None, 0, n_waiting=n_waiting)


def window(seconds=20.0, n_users=N_USERS, wait=WAIT, pause=0.0, **facts):
    """Users who ask again as soon as they have an answer, or after a pause."""
    n_tokens, found = round(RATE * (TOOK - wait)) + 1, []
    for user in range(n_users):
        for number in range(int(seconds / (TOOK + pause)) + 3):
            sent = (number - 1) * (TOOK + pause) - user * TOOK / n_users
            usual = {"n_tokens": n_tokens, "n_prompt": 40, "n_cached": 0, "prompt": f"{user} {number}", "user": user}
            found.append(Request(sent=sent, first=sent + wait, last=sent + TOOK, ended=sent + TOOK, **usual | facts))
    return Window(n_users=n_users, begin=0.0, end=seconds, requests=found, looks=[look(), look()])


def failed(one):
    return {check.name for check in side(one).checks if not check.good}


@given(st.integers(1, 20), st.floats(12.0, 60.0))
def test_a_steady_load_is_measured_as_it_is(n_users, seconds):
    """A request makes 20 tokens in 2 seconds, at ten a second once it has begun."""
    found = side(window(seconds, n_users))
    assert found.user_tokens_per_second == pytest.approx(RATE)
    n_tokens = RATE * (TOOK - WAIT) + 1
    assert found.tokens_per_second == pytest.approx(n_users * n_tokens / TOOK, rel=TOOK / seconds)
    assert found.first_seconds == pytest.approx(WAIT)
    assert not failed(window(seconds, n_users))


def test_only_tokens_of_the_window_are_counted():
    """A request that is answered before the window and behind it gives the part that lies within it."""
    usual = {"n_tokens": 40, "n_prompt": 9, "n_cached": 0, "prompt": "x", "user": 0}
    one = Request(sent=-6.0, first=-5.0, last=15.0, ended=15.0, **usual)
    found = side(Window(n_users=1, begin=0.0, end=10.0, requests=[one]))
    assert found.tokens_per_second == pytest.approx(2.0)
    assert found.user_tokens_per_second == pytest.approx(39 / 20)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (window(pause=0.5), "offered"),
        (window(seconds=5.0), "window"),
        (window(n_cached=20), "cache"),
        (replace(window(), looks=[look(2.0), look(2.0)]), "queue"),
        (replace(window(wait=1.2), looks=[]), "queue"),
        (window(prompt="always the same"), "prompts"),
        (replace(window(), n_failed=1), "failed"),
    ],
)
def test_each_check_fails_for_what_it_is_about_and_for_nothing_else(wrong, name):
    assert failed(wrong) == {name}
    assert not failed(window())


def test_a_window_is_too_short_where_one_user_has_too_few_answers():
    """However many the others have: of three answers in turn, which begin with the window, two end in it."""
    slow = window()
    one = next(one for one in slow.requests if one.user == 0)
    third = [
        replace(one, sent=at, first=at + WAIT, last=at + 9, ended=at + 9, prompt=str(at)) for at in (0.0, 9.0, 18.0)
    ]
    slow.requests = [*(one for one in slow.requests if one.user), *third]
    assert failed(slow) == {"window"}
    assert slow.n_whole == 2


def test_a_request_is_in_flight_until_the_server_has_ended_it():
    """Behind its last token the server works once more, to find that nothing follows; the user waits for that."""
    late = window(pause=0.5)
    for place, one in enumerate(late.requests):
        late.requests[place] = replace(one, ended=one.last + 0.5)
    assert failed(window(pause=0.5)) == {"offered"}
    assert not failed(late)
    assert side(late).tokens_per_second == side(window(pause=0.5)).tokens_per_second


def level(n_users, *speedups, plain=100.0):
    """One load, with the speedup of each pass."""
    good = side(window())
    sides = [replace(good, tokens_per_second=plain * speedup) for speedup in speedups]
    return Level(n_users=n_users, speculative=sides, plain=[replace(good, tokens_per_second=plain)] * len(speedups))


def test_repeats_that_are_apart_are_named():
    assert all(check.good for check in level(1, 1.5, 1.6).checks)
    assert [check.name for check in level(1, 1.5, 1.8).checks if not check.good] == ["repeats"]
    assert level(1, 1.0, 2.0).speedup == pytest.approx(1.5)


def test_a_check_that_fails_in_one_window_is_not_hidden_by_the_others():
    bad = replace(side(window(n_cached=30)), tokens_per_second=100.0)
    found = replace(level(1, 1.0, 1.0), plain=[level(1, 1.0).plain[0], bad])
    assert [check.name for check in found.checks if not check.good] == ["cache"]


@pytest.mark.parametrize(
    ("speedups", "verdicts", "last", "behind"),
    [
        (((1.5, 1.4), (1.2, 1.1), (0.9, 0.8)), (PAYS, PAYS, LOSES), 2, 4),
        (((1.5, 1.4), (1.1, 0.9), (0.9, 0.8)), (PAYS, UNCLEAR, LOSES), 1, 4),
        (((1.5, 1.4), (1.1, 1.05), (1.1, 0.9)), (PAYS, PAYS, UNCLEAR), 2, None),
        (((0.9, 0.9), (0.8, 0.8)), (LOSES, LOSES), None, 1),
        (((0.9, 0.9), (1.2, 1.2)), (LOSES, PAYS), 2, None),
        (((1.2, 1.2), (1.02, 1.3), (0.9, 0.9)), (PAYS, UNCLEAR, LOSES), 1, 4),
    ],
)
def test_where_it_stops_paying(speedups, verdicts, last, behind):
    found = [level(2**place, *each) for place, each in enumerate(speedups)]
    assert tuple(map(verdict, found)) == verdicts
    one, other = stops_paying(found)
    assert (one and one.n_users, other and other.n_users) == (last, behind)
    said = load_screen.answer(found)
    assert all(f"{each.speedup:.2f}x" in said for each in (one, other) if each)
    advice = load_screen.advice(found)
    assert (f"more than {last} requests" in advice) == (last is not None and behind is not None)
    assert (f"--load {2 * found[-1].n_users}," in advice) == (last is not None and behind is None)


@given(st.integers(1, 30), st.integers(16, 400), st.integers(0, 5000))
def test_no_two_requests_of_the_labs_own_are_the_same(n_prompts, n_tokens, start):
    prompts = [asking.Prompt("x", f"prompt {place}") for place in range(n_prompts)]
    found = list(itertools.islice(work.work(prompts, n_tokens, itertools.count(start), alter=True), 60))
    assert len({text for text, _ in found}) == 60
    assert {n for _, n in found} <= set(range(2, n_tokens + 1))
    assert len({n for _, n in found}) > 1, "answers of one length end in waves"
    as_given = itertools.islice(work.work(prompts, n_tokens, itertools.count(start), alter=False), n_prompts)
    assert sorted(text for text, _ in as_given) == sorted(prompt.text for prompt in prompts)


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(users, "LOOK_SECONDS", 0.02)


def orders(n_tokens=20):
    return work.work(inputs.prompts_of(None), n_tokens, itertools.count(), alter=True)


def test_the_users_of_a_server_get_what_it_has_counted(fake, soon):
    found = Users(engines.find(fake.url, None), chat=True).ask(3, orders(), 0.3)
    assert found.n_users == 3
    assert found.end > found.begin
    assert sum(one.n_tokens for one in found.requests) == fake.generated
    assert len(found.looks) > 1
    assert len({body["messages"][0]["content"] for body in fake.asked}) == len(fake.asked) == len(found.requests)
    said = side(found)
    drawn = 1 + sum(kept for _, kept in fake.rounds) / len(fake.rounds)
    assert said.tokens_per_round == pytest.approx(drawn, rel=0.15), "the window is a part of all rounds"


def test_so_many_requests_are_in_flight_and_no_more(fake, soon):
    """Counted by the server itself, where answers are made."""
    now, most, usual = [0], [0], fake.chunks

    def chunks(words):
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            return usual(words)
        finally:
            now[0] -= 1

    fake.chunks = chunks
    Users(engines.find(fake.url, None), chat=True).ask(1, orders(), 0.1)
    assert most[0] == 1


def slowly(fake, seconds=0.05):
    usual = fake.text_of
    fake.text_of = lambda prompt, n: time.sleep(seconds) or usual(prompt, n)
    return engines.find(fake.url, None)


def test_a_window_lasts_until_it_holds_enough_whole_answers(fake, soon):
    """At the end of its seconds it holds none, since an answer takes longer than they are: three for each user, or the
    window is eight times as long."""
    found = Users(slowly(fake), chat=True).ask(2, orders(), 0.02)
    enough = found.n_whole >= 3
    assert enough or found.end - found.begin >= 8 * 0.02
    assert enough == ("window" not in failed(found))


def test_a_window_ends_however_few_whole_answers_it_holds(fake, soon, monkeypatch):
    monkeypatch.setattr(users, "LEAST_ANSWERS", 10**6)
    found = Users(slowly(fake), chat=True).ask(1, orders(), 0.02)
    assert found.end - found.begin >= users.LONGEST * 0.02


@pytest.mark.parametrize("data", [b"data: {oops\n\n", b"", b'data: {"choices": [{"text": "x"}]}\n\n' * 1000])
def test_a_server_that_lies_under_load_is_one_line(fake, data, soon):
    server = engines.find(fake.url, None)
    fake.answer = (200, data)
    with pytest.raises(EnvironmentProblem) as caught:
        Users(server, chat=True).ask(2, orders(), 0.2)
    assert "\n" not in str(caught.value)


def test_a_server_that_begins_to_fail_ends_the_window(fake, soon):
    usual, count = fake.text_of, itertools.count()

    def text_of(prompt, n):
        if next(count) == 30:
            fake.answer = (500, b"out of memory")
        return usual(prompt, n)

    fake.text_of, server = text_of, engines.find(fake.url, None)
    with pytest.raises(EnvironmentProblem, match="out of memory"):
        Users(server, chat=True).ask(2, orders(), 30.0)


def test_a_server_that_does_not_end_its_answers_is_left(fake, soon, monkeypatch):
    monkeypatch.setattr(users, "WARM_UP_SECONDS", 0.2)
    monkeypatch.setattr(fake, "chunks", lambda words: __import__("time").sleep(1.0) or ([words], []))
    with pytest.raises(EnvironmentProblem, match="--load 1,2"):
        Users(engines.find(fake.url, None), chat=True).ask(1, orders(), 0.2)


def test_what_was_measured_before_a_failure_stays(fake, plain):
    """The third load fails: the first two are there."""
    servers = engines.find(fake.url, None), engines.find(plain.url, None)

    def ask(server, n_users, orders, seconds):
        if n_users == 4:
            raise EnvironmentProblem("it went away")
        return window(n_users=n_users)

    found, stop = work.measure(*servers, [1, 2, 4], 1.0, lambda first: orders(), True, ask)
    assert [one.n_users for one in found] == [1, 2]
    assert "went away" in str(stop)
    with pytest.raises(EnvironmentProblem, match="went away"):
        work.measure(*servers, [4], 1.0, lambda first: orders(), True, ask)


def test_a_server_that_dies_under_load_leaves_the_finished_loads_and_ends_with_3(fake, soon, command, monkeypatch):
    usual = users.Users.ask

    def ask(self, n_users, orders, seconds):
        if n_users > 1:
            raise EnvironmentProblem("it went away")
        return usual(self, n_users, orders, seconds)

    monkeypatch.setattr(users.Users, "ask", ask)
    words = ["--load", "1,2,4", "--load-seconds", 0.2, "--max-new-tokens", 16]
    code, out, err = command("--url", fake.url, *words)
    assert code == 3
    assert "ANSWER" in out
    [line] = [line for line in err.splitlines() if "it went away" in line]
    assert "2, 4" in line, "the loads that are lost"


@pytest.mark.parametrize("good", [True, False])
def test_after_ctrl_c_the_exit_code_is_that_of_the_finished_loads(fake, plain, command, monkeypatch, good):
    """As in a comparison: 1 where a check of theirs fails."""

    def ask(self, n_users, orders, seconds):
        if n_users > 1:
            raise KeyboardInterrupt
        return window(n_users=n_users) if good else window(n_users=n_users, pause=0.5)

    monkeypatch.setattr(users.Users, "ask", ask)
    code, out, err = command("--url", fake.url, "--plain-url", plain.url, "--load", "1,2,4")
    assert (code, "ANSWER" in out) == (int(not good), True)
    assert "these loads are lost, 2, 4: stopped" in err


def test_ctrl_c_before_the_first_load_is_whole_leaves_nothing(fake, command, monkeypatch):
    def ask(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(users.Users, "ask", ask)
    code, out, _ = command("--url", fake.url, "--load", 1)
    assert (code, "ANSWER" in out) == (130, False)


def test_servers_take_turns_and_get_the_same_work(fake, plain):
    servers = engines.find(fake.url, None), engines.find(plain.url, None)
    turns, asked = [], []

    def ask(server, n_users, orders, seconds):
        turns.append(server is servers[0])
        asked.append(list(itertools.islice(orders, 5)))
        return window(n_users=n_users)

    def of(first):
        return work.work(inputs.prompts_of(None), 32, itertools.count(first), alter=True)

    work.measure(*servers, [1, 2], 1.0, of, True, ask)
    assert turns == [False, True, True, False] * 2
    assert asked[0::2] == asked[1::2], "both servers of a pass"
    assert not {text for text, _ in asked[0]} & {text for text, _ in asked[2]}, "no pass repeats another one's prompts"


def test_the_command_shows_one_screen(fake, plain, soon, command):
    words = ["--load", "2,1", "--load-seconds", 0.3, "--max-new-tokens", 16]
    code, out, err = command("--url", fake.url, "--plain-url", plain.url, *words)
    assert code in (0, 1), err
    assert len(out.splitlines()) <= 25
    assert max(map(len, out.splitlines())) <= 130
    assert "ANSWER" in out
    rows = [line.split() for line in out.splitlines() if line.split()[-1:] == ["fine"] or line[:5].strip().isdecimal()]
    assert [row[0] for row in rows] == ["1", "2"]
    assert code == any(row[-1] != "fine" for row in rows)


def test_one_server_alone_has_no_speedup_and_that_is_said(fake, soon, command):
    _, out, _ = command("--url", fake.url, "--load", 1, "--load-seconds", 0.2, "--max-new-tokens", 16)
    assert "--plain-url" in out[out.index("ANSWER") :]


def test_a_page_says_how_many_wait():
    with Simulated("llama", (0.5,)) as fake:
        usual = fake.metrics
        fake.metrics = lambda: usual() + "llamacpp:requests_deferred 3\n"
        assert engines.find(fake.url, None).look().n_waiting == 3
