"""Under load: a window's numbers are those of its requests, and each of its checks fails for what it is about."""

import argparse
import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speclab.extensions.servers import client, load
from speclab.extensions.servers.counters import Counted, Look
from speclab.extensions.servers.load import LOSES, PAYS, UNCLEAR, Level, Request, Side, Window, side
from speclab.system.errors import EnvironmentProblem

N_USERS, TOOK, WAIT, RATE = 3, 2.0, 0.1, 10.0  # seconds of a request, those before its first token, tokens a second


def look(n_waiting=0.0):
    return Look("vLLM", Counted(0, None), 0, n_waiting, {("", "generation_tokens"): 0.0})


def window(seconds=20.0, n_users=N_USERS, wait=WAIT, pause=0.0, late=0.0, looks=(look(), look())):
    """Users who ask again as soon as they have an answer, or after a pause. late: until the server ends an answer."""
    n_tokens, found = round(RATE * (TOOK - wait)) + 1, []
    for user in range(n_users):
        for number in range(int(seconds / (TOOK + pause)) + 3):
            sent = (number - 1) * (TOOK + pause) - user * TOOK / n_users
            last = sent + TOOK
            found.append(Request(sent, sent + wait, last, last + late, n_tokens, user))
    return Window(n_users, 0.0, seconds, found, list(looks))


@given(st.integers(1, 20), st.floats(12.0, 60.0))
def test_a_steady_load_is_measured_as_it_is(n_users, seconds):
    """A request makes 20 tokens in 2 seconds, at ten a second once it has begun."""
    found = side(window(seconds, n_users))
    assert found.of_user == pytest.approx(RATE)
    n_tokens = RATE * (TOOK - WAIT) + 1
    assert found.together == pytest.approx(n_users * n_tokens / TOOK, rel=TOOK / seconds)
    assert not found.wrong


def test_only_tokens_of_the_window_are_counted():
    """A request that is answered before the window and behind it gives the part that lies within it."""
    found = side(Window(1, 0.0, 10.0, [Request(-6.0, -5.0, 15.0, 15.0, 40, 0)]))
    assert found.together == pytest.approx(2.0)
    assert found.of_user == pytest.approx(39 / 20)


def slow_user():
    """Of three answers in turn, which begin with the window, two end in it, however many the others have."""
    found = window()
    third = [Request(at, at + WAIT, at + 9, at + 9, 20, 0) for at in (0.0, 9.0, 18.0)]
    found.requests = [*(one for one in found.requests if one.user), *third]
    return found


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (window(), set()),
        (window(pause=0.5), {"offered"}),
        (window(10.0, wait=1.9, pause=0.5, late=0.5), set()),  # in flight until the server has ended it
        (window(seconds=5.0), {"window"}),
        (slow_user(), {"window"}),
        (window(looks=[look(2.0), look(2.0)]), {"queue"}),
    ],
)
def test_each_check_fails_for_what_it_is_about_and_for_nothing_else(wrong, names):
    assert set(side(wrong).wrong) == names


def level(n_users, *speedups):
    return Level(n_users, [Side(100 * one, 1.0, None, {}) for one in speedups], [Side(100.0, 1.0, None, {})] * 2)


def test_a_check_that_fails_in_one_window_is_not_hidden_by_the_others():
    good, bad = side(window()), side(window(pause=0.5))
    for speculative, plain in (([good, good], [good, bad]), ([bad, good], [good, good])):
        assert "offered" in Level(3, speculative, plain).wrong
    assert list(level(1, 1.0, 1.2).wrong) == ["repeats"]


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
    assert tuple(one.verdict for one in found) == verdicts
    said, advice = load.answer(found)
    by_users = {one.n_users: one for one in found}
    assert all(f"{by_users[each].speedup:.2f}x" in said for each in (last, behind) if each)
    assert said.startswith(f"it stops paying between {last} and {behind} ") == bool(last and behind)
    assert (f"more than {last} requests" in advice) == (last is not None and behind is not None)
    assert (f"--load {2 * found[-1].n_users}," in advice) == (last is not None and behind is None)


@given(st.integers(1, 30), st.integers(16, 400), st.integers(0, 5000))
def test_no_two_requests_are_the_same(n_prompts, n_tokens, start):
    prompts = [client.Prompt("x", f"prompt {place}") for place in range(n_prompts)]
    found = list(itertools.islice(load.work(prompts, n_tokens, start), 60))
    assert len({text for text, _ in found}) == 60
    assert {n for _, n in found} <= set(range(2, n_tokens + 1))
    assert len({n for _, n in found}) > 1, "answers of one length end in waves"


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(load, "LOOK_SECONDS", 0.02)


def ask(fake, n_users, seconds):
    orders = load.work(client.prompts_of(None), 20, 0)
    return load.ask(client.find(fake.url), n_users, orders, seconds, chat=True)


def test_the_users_of_a_server_get_what_it_has_counted(fake, soon):
    """And so many requests are in flight and no more, counted by the server itself, where answers are made."""
    now, most, usual = [0], [0], fake.chunks

    def chunks(words):
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            return usual(words)
        finally:
            now[0] -= 1

    fake.chunks = chunks
    found = ask(fake, 3, 0.3)
    assert most[0] <= 3
    assert found.end > found.begin
    assert sum(one.n_tokens for one in found.requests) == fake.generated
    assert len(found.looks) > 1
    assert len({body["messages"][0]["content"] for body in fake.asked}) == len(fake.asked) == len(found.requests)
    drawn = 1 + sum(kept for _, kept in fake.rounds) / len(fake.rounds)
    assert side(found).tokens_per_round == pytest.approx(drawn, rel=0.15), "the window is a part of all rounds"


@pytest.mark.parametrize("at", [0, 30])
def test_a_server_that_fails_or_hangs_under_load_is_one_line(fake, at, soon, monkeypatch):
    """At once, or after thirty answers."""
    usual, count = fake.text_of, itertools.count()

    def text_of(prompt, n):
        fake.answer = (500, b"out of memory") if next(count) == at else fake.answer
        return usual(prompt, n)

    fake.text_of = text_of
    with pytest.raises(EnvironmentProblem, match="out of memory") as caught:
        ask(fake, 2, 30.0)
    assert "\n" not in str(caught.value)
    fake.answer, fake.text_of = None, usual
    monkeypatch.setattr(load, "WARM_UP_SECONDS", 0.2)
    monkeypatch.setattr(fake, "chunks", lambda words: time.sleep(1.0) or ([words], []))
    with pytest.raises(EnvironmentProblem, match="--load 1,2"):
        ask(fake, 1, 0.2)


@pytest.mark.parametrize(
    ("problem", "last", "pause", "code", "answered"),
    [
        (EnvironmentProblem("it went away"), 1, 0.0, 3, True),
        (EnvironmentProblem("it went away"), 0, 0.0, 3, False),
        (KeyboardInterrupt(), 1, 0.0, 0, True),
        (KeyboardInterrupt(), 1, 0.5, 1, True),  # a check of the finished loads fails
        (KeyboardInterrupt(), 0, 0.0, 130, False),
    ],
)
def test_what_was_measured_before_an_end_stays(fake, plain, command, monkeypatch, problem, last, pause, code, answered):
    """Users are not asked; from the load behind `last` on, this problem ends them."""

    def one(server, n_users, orders, seconds, chat):
        if n_users > last:
            raise problem
        return window(n_users=n_users, pause=pause)

    monkeypatch.setattr(load, "ask", one)
    found, out, err = command("--url", fake.url, "--plain-url", plain.url, "--load", "1,2,4")
    assert (found, "ANSWER" in out) == (code, answered)
    assert (f"these loads are lost, 2, 4: {problem or 'stopped'}" in err) == answered


def test_servers_take_turns_and_get_the_same_work(fake, plain, monkeypatch):
    servers, turns, asked = (client.find(fake.url), client.find(plain.url)), [], []

    def one(server, n_users, orders, seconds, chat):
        turns.append(server is servers[0])
        asked.append(list(itertools.islice(orders, 5)))
        return window(n_users=n_users)

    monkeypatch.setattr(load, "ask", one)
    args = argparse.Namespace(load=[1, 2], load_seconds=1.0, max_new_tokens=32, raw=False)
    assert load.show(args, *servers, client.prompts_of(None), []) == 0
    assert turns == [False, True, True, False] * 2
    assert asked[0::2] == asked[1::2], "both servers of a pass"
    assert not {text for text, _ in asked[0]} & {text for text, _ in asked[2]}, "no pass repeats another one's prompts"


def test_the_command_shows_one_screen(fake, plain, soon, command):
    words = ["--load", "2,1", "--load-seconds", 0.3, "--max-new-tokens", 16]
    code, out, err = command("--url", fake.url, "--plain-url", plain.url, *words)
    assert code in (0, 1), err
    assert out.startswith("ANSWER")
    assert len(out.splitlines()) <= 25
    assert max(map(len, out.splitlines())) <= 130
    rows = [line.split() for line in out.splitlines() if line[:5].strip().isdecimal()]
    assert [row[0] for row in rows] == ["1", "2"]
    assert code == any(row[-1] != "fine" for row in rows)
    _, out, _ = command("--url", fake.url, "--load", 1, "--load-seconds", 0.2, "--max-new-tokens", 16)
    assert "--plain-url" in out, "one server alone has no speedup"
