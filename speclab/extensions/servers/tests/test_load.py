"""Many requests at a time: how many, both orders of the servers, what counts as good, and the end of all of them."""

import gc
import threading

import pytest

from speclab.core.sampling import GREEDY
from speclab.extensions.servers import load
from speclab.extensions.servers.client import Answer, Client, Order
from speclab.extensions.servers.connection import ConnectionProblem
from speclab.extensions.servers.load import Level, Pass
from speclab.extensions.servers.server_record import Limits
from speclab.extensions.servers.servers import Server

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
ORDER = Order([5, 6], 9, GREEDY, seed=3)


def nothing():
    pass


def test_at_most_so_many_are_asked_at_a_time():
    running, most, lock, gate = [], [], threading.Lock(), threading.Barrier(3)

    def ask(order):
        assert gc.get_freeze_count(), "a long collection would be in the seconds"
        with lock:
            running.append(order)
            most.append(len(running))
        gate.wait(120)  # three are there at the same time, in every round of three
        with lock:
            running.remove(order)
        return Answer([order.seed], 1, 1, 0.1, 0.0)

    orders = [Order([1], 1, GREEDY, seed) for seed in range(9)]
    answers, seconds = load.at_once(ask, orders, 3, nothing)
    assert [answer.tokens for answer in answers] == [[seed] for seed in range(9)], "in the orders' order"
    assert max(most) == 3
    assert seconds > 0


def test_what_ends_one_request_under_load_ends_all():
    asked = []

    def ask(order):
        asked.append(order)
        if len(asked) == 3:
            raise ConnectionProblem("gone")
        return Answer([1], 1, 1, 0.1, 0.0)

    with pytest.raises(ConnectionProblem, match="gone"):
        load.at_once(ask, [ORDER] * 50, 2, nothing)
    assert len(asked) < 50


def test_a_request_that_waits_for_its_answer_is_ended_with_the_others(fake):
    """One is answered with garbage after another one has got its first chunk and no more: nobody waits for that."""
    fake.wait = threading.Event()
    at, ended, waits = Client(fake.url), [], threading.Event()

    def ask(order):
        if order.seed:
            assert waits.wait(120)
            raise ConnectionProblem("gone")
        chunks = at.chunks(order)
        next(chunks)
        waits.set()
        try:
            list(chunks)
        except ConnectionProblem as problem:
            ended.append(str(problem))
            raise

    try:
        with pytest.raises(ConnectionProblem, match="gone"):
            load.at_once(ask, [ORDER._replace(seed=0), ORDER], 2, at.abort)
        assert len(ended) == 1, "it has ended before the problem was raised"
    finally:
        fake.wait.set()


def test_under_load_tokens_and_counters_are_of_all_requests(fake):
    server = Server("ngram", Client(fake.url))
    both = ORDER, Order([7], 5, GREEDY)
    found = load.under_load(server, [both[i] for i in load.asked(2, 4)], 4)
    assert sum(len(answer.tokens) for answer in found.answers) == 4 * 9 + 4 * 5
    assert found.counts.n_drafts == 4 * 4 + 4 * 2
    assert found.rate == (4 * 9 + 4 * 5) / found.seconds


def test_a_level_is_warmed_up_and_measured_in_both_orders(monkeypatch):
    asked = []

    def under_load(server, orders, concurrency):
        asked.append(server)
        return Pass([len(asked)], 1.0, None)

    monkeypatch.setattr(load, "under_load", under_load)
    plain, other = load.level("plain", "other", [ORDER], 1)
    assert asked == [*("plain", "other"), *("plain", "other"), *("other", "plain")]
    assert [one.answers for one in plain] == [[3], [6]]
    assert [one.answers for one in other] == [[4], [5]]


def passed(n_tokens, seconds):
    return Pass([Answer([1] * n_tokens, 1, 2, 0.1, 1.0)], seconds, None)


@pytest.mark.parametrize(
    ("plain", "other", "speedups", "speedup", "verdict"),
    [
        ((2, 2), (1, 1), [2, 2], 2, "faster"),
        ((1, 1), (2, 4), [0.5, 0.25], 1 / 3, "slower"),
        ((1, 4), (2, 2), [0.5, 2], 1.25, "unclear"),
        ((1, 2), (1, 1), [1, 2], 1.5, "unclear"),
    ],
)
def test_the_speedup_of_a_level_and_whether_its_passes_agree(plain, other, speedups, speedup, verdict):
    level = Level([passed(10, one) for one in plain], [passed(10, one) for one in other])
    assert level.speedups == speedups
    assert level.speedup == pytest.approx(speedup)
    assert level.verdict == verdict


def test_a_side_in_numbers():
    answers = [Answer([1] * 11, 1, 11, first / 10, first) for first in range(1, 21)]
    limits = Limits(first=1.0, token=0.8, given=True)  # the first 10 meet the first one, 8 of them the second
    side = load.side([Pass(answers[:10], 4.0, None), Pass(answers[10:], 6.0, None)], limits, [[1] * 11] * 9 + [[2]])
    assert (side.n_tokens, side.seconds, side.n_good, side.n_same) == (220, 10.0, 8, 18)
    assert (side.first_p50, side.first_p95) == pytest.approx((1.05, 1.9))
    assert (side.token_p50, side.token_p95) == pytest.approx((1.05, 1.9))
    assert load.side([Pass(answers, 4.0, None)], limits, None).n_same is None


def test_usual_limits_are_multiples_of_the_medians_alone():
    alone = [Answer([1] * 11, 1, 11, first, 10 * first) for first in (0.1, 0.2, 0.9)]
    limits = load.usual_limits(alone)
    assert (limits.first, limits.token, limits.given) == (pytest.approx(0.8), pytest.approx(0.4), False)
