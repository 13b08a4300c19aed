"""Requests: a stream is counted by ids, and whatever is no such stream is one line."""

import pytest

from speclab.core.sampling import GREEDY, Sampling
from speclab.lab.serving import client, turns
from speclab.lab.serving.client import Answer, Client, ConnectionProblem, Order
from speclab.lab.serving.servers import Server
from speclab.records.samples import BASELINE, BASELINE_REPEAT, Arm
from speclab.system.errors import EnvironmentProblem, UsageProblem
from tests.lab.serving.fake_vllm import Fake

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
ORDER = Order([5, 6], 9, GREEDY, seed=3)
NGRAM = {"method": "ngram", "num_speculative_tokens": 2}


@pytest.fixture
def fake():
    with Fake(speculation=NGRAM) as server:
        yield server


@pytest.fixture
def plain():
    with Fake() as server:
        yield server


def test_tokens_are_counted_by_ids_not_by_chunks(fake):
    answer = Client(fake.url, "target").ask(ORDER)
    assert answer.tokens == list(range(1, 10))
    assert answer.n_chunks < 1 + 4, "a chunk carries the tokens of two rounds"
    assert 0 < answer.n_first < 9
    assert answer.first_seconds > 0
    assert answer.seconds_per_token == answer.decode_seconds / (9 - answer.n_first)


def test_a_first_chunk_may_carry_several_tokens(monkeypatch):
    """They were there at its time, so none of them belongs to the time per token."""
    monkeypatch.setattr(Client, "_chunks", lambda self, body: iter([[1, 2, 3], [], [4, 5], [6, 7, 8, 9]]))
    answer = Client("http://127.0.0.1:1").ask(ORDER)
    assert (answer.tokens, answer.n_first, answer.n_chunks) == ([*range(1, 10)], 3, 3)
    assert answer.seconds_per_token == answer.decode_seconds / 6


def test_what_is_asked(fake):
    Client(fake.url, "some model").ask(ORDER)
    Client(fake.url).ask(Order([7], 4, Sampling(0.8, 20, 0.9)))
    first, second = fake.asked
    assert first["prompt"] == [5, 6]
    assert first["model"] == "some model"
    assert (first["max_tokens"], first["temperature"], first["seed"]) == (9, 0.0, 3)
    assert first["stream"]
    assert first["ignore_eos"]
    assert first["return_token_ids"]
    assert "top_k" not in first
    assert (second["temperature"], second["top_k"], second["top_p"]) == (0.8, 20, 0.9)


def test_one_chunk_has_no_time_between_tokens():
    assert Answer([1, 2], 2, 1, 0.5, 0.0).seconds_per_token == 0


def test_what_a_server_says_of_itself(fake, plain):
    at = Client(fake.url + "/v1".removesuffix("/v1"))
    assert at.healthy()
    assert at.served_model() == "target"
    assert at.version() == "0.32.0"
    assert at.look().speculation is not None
    assert Client(plain.url).look().speculation is None
    plain.script["sick"] = [""]
    assert not Client(plain.url).healthy()


def test_counters_may_be_a_moment_late(fake, monkeypatch):
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0)
    at = Client(fake.url)
    before = at.look()
    answer = at.ask(ORDER)
    fake.late = 3
    after = at.settled(before, len(answer.tokens))
    assert after.n_generated == 9
    assert after.speculation.n_drafts == 4


def test_counters_of_somebody_elses_requests_are_noticed(fake, monkeypatch):
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0)
    at = Client(fake.url)
    before = at.look()
    at.ask(ORDER)
    at.ask(ORDER)
    with pytest.raises(EnvironmentProblem, match="counted 18 tokens where 9 were asked for"):
        at.settled(before, 9)


@pytest.mark.parametrize(
    ("status", "data", "words"),
    [
        (400, b'{"error": {"message": "max_tokens is too large"}}', "refuses the request: max_tokens is too large"),
        (500, b"", "refuses the request: no reason given"),
        (200, b"data: {oops\n\n", "no JSON"),
        (200, b'data: {"choices": [{"index": 0, "text": "x"}]}\n\n', "must know return_token_ids"),
        (200, b'data: {"error": {"message": "engine dead"}}\n\n', "ends its answer: engine dead"),
        (200, b'data: {"choices": [{"token_ids": [1]}]}\n\n', "ended its answer in the middle"),
        (200, b'data: {"choices": [{"token_ids": [1]}]}\n\ndata: [DONE]\n\n', "sent 1 of 9 tokens"),
    ],
)
def test_what_is_no_answer_is_one_line(fake, status, data, words):
    fake.answer = (status, data)
    with pytest.raises(EnvironmentProblem, match=words):
        Client(fake.url).ask(ORDER)


def test_nobody_there_is_one_line():
    with Fake() as gone:
        url = gone.url
    with pytest.raises(ConnectionProblem, match="does not answer"):
        Client(url).ask(ORDER)
    assert not Client(url).healthy()


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:nine", "http://x:99999"])
def test_an_address_is_checked_before_anything_starts(url):
    with pytest.raises(UsageProblem, match="is no address"):
        client.check_url(url)


def test_an_address_is_cut_to_where_all_pages_are():
    assert client.check_url("http://127.0.0.1:8000/v1/") == "http://127.0.0.1:8000"


# --- in turns, and many at a time -------------------------------------------------------------------------------------


def test_turns_rotate_and_count_every_request_alone(fake, plain):
    arm, done = Arm("ngram", "ngram", 2), []
    orders = {2: ORDER, 0: Order([7], 5, GREEDY), 1: Order([8], 5, GREEDY)}
    servers = Server("baseline", Client(plain.url)), Server("ngram", Client(fake.url))
    sent = turns.in_turns(*servers, arm, orders, 2, lambda: done.append(1))
    assert [one.index for one in sent] == [2] * 3 + [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3 + [1] * 3
    first = [sent[i].arm for i in range(0, 18, 3)]
    assert first[:3] == [BASELINE, arm, BASELINE_REPEAT]
    assert first[3:] == [arm, BASELINE_REPEAT, BASELINE], "another one begins in the next repeat"
    assert {one.turns_of for one in sent} == {arm}
    assert len(done) == 6
    assert [one.counts.n_drafts for one in sent if one.arm == arm] == [4, 2, 2, 4, 2, 2]
    assert {one.counts for one in sent if one.arm != arm} == {None}


def test_at_most_so_many_are_asked_at_a_time():
    import threading

    running, most, lock, gate = [], [], threading.Lock(), threading.Barrier(3)

    def ask(order):
        with lock:
            running.append(order)
            most.append(len(running))
        gate.wait(120)  # three are there at the same time, in every round of three
        with lock:
            running.remove(order)
        return Answer([order.seed], 1, 1, 0.1, 0.0)

    orders = [Order([1], 1, GREEDY, seed) for seed in range(9)]
    answers, seconds = turns.at_once(ask, orders, 3)
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
        turns.at_once(ask, [ORDER] * 50, 2)
    assert len(asked) < 50


def test_a_side_in_numbers():
    answers = [Answer([1] * 11, 1, 11, first / 10, first) for first in range(1, 21)]
    side = turns.side(answers, 4.0)
    assert (side.n_tokens, side.seconds) == (220, 4.0)
    assert (side.first_p50, side.first_p95) == pytest.approx((1.05, 1.9))
    assert (side.token_p50, side.token_p95) == pytest.approx((1.05, 1.9))


def test_under_load_tokens_and_counters_are_of_all_requests(fake):
    server = Server("ngram", Client(fake.url))
    orders = turns.orders_for([None] * 3, [ORDER, Order([7], 5, GREEDY)], 4)
    assert len(orders) == 8
    side, counts = turns.under_load(server, orders, 4)
    assert side.n_tokens == 4 * 9 + 4 * 5
    assert counts.n_drafts == 4 * 4 + 4 * 2
