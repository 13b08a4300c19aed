"""Requests: a stream is counted by ids, and whatever is no such stream is one line."""

import contextlib
import gc
import socket
import threading
import time

import pytest

from speclab.core.sampling import GREEDY, Sampling
from speclab.extensions.servers import client, connection, load, server_turns, servers
from speclab.extensions.servers.client import Answer, Client, Order
from speclab.extensions.servers.connection import ConnectionProblem
from speclab.extensions.servers.servers import Server
from speclab.extensions.servers.tests.fake_vllm import Fake
from speclab.records.arms import BASELINE, BASELINE_REPEAT, Arm
from speclab.system.errors import EnvironmentProblem, UsageProblem

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
ORDER = Order([5, 6], 9, GREEDY, seed=3)


@pytest.fixture
def plain():
    with Fake() as server:
        yield server


def test_tokens_are_counted_by_ids_not_by_chunks(fake):
    answer = Client(fake.url, "target").ask(ORDER)
    assert answer.tokens == list(range(1, 10))
    assert answer.n_chunks == 4, "five rounds, and one chunk carries the tokens of two"
    assert 0 < answer.n_first < 9
    assert answer.first_seconds > 0
    assert answer.seconds_per_token == answer.decode_seconds / (9 - answer.n_first)


def test_a_first_chunk_may_carry_several_tokens(monkeypatch):
    """They were there at its time, so none of them belongs to the time per token."""
    monkeypatch.setattr(Client, "chunks", lambda self, body: iter([[1, 2, 3], [], [4, 5], [6, 7, 8, 9]]))
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
    neutral = {"min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    assert first.items() >= ({"top_k": 0, "top_p": 1} | neutral).items(), "nothing is left to the checkpoint's file"
    assert second.items() >= ({"temperature": 0.8, "top_k": 20, "top_p": 0.9} | neutral).items()


def test_one_chunk_has_no_time_between_tokens():
    assert Answer([1, 2], 2, 1, 0.5, 0.0).seconds_per_token == 0


def test_what_a_server_says_of_itself(fake, plain):
    at = Client(fake.url)
    assert at.healthy()
    assert at.served_model() == ("target", "some/target")
    assert at.version() == "0.32.0"
    assert at.look().speculation is not None
    assert Client(plain.url).look().speculation is None
    plain.script["sick"] = [""]
    assert not Client(plain.url).healthy()


def test_counters_may_be_a_moment_late(fake, monkeypatch):
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0)
    at = Client(fake.url)
    before = at.look()
    fake.old, fake.late = fake.metrics(), 3
    answer = at.ask(ORDER)
    after = at.settled(before, len(answer.tokens))
    assert fake.late == 0
    assert after.n_generated == 9
    assert after.speculation.n_drafts == 4


def test_counters_of_speculation_may_be_later_than_those_of_tokens(fake, monkeypatch):
    """The page that has all tokens is not believed until the next look says the same."""
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0)
    at = Client(fake.url)
    before, half = at.look(), at.look()
    answer = at.ask(ORDER)
    looks = iter([before, half._replace(n_generated=9), *[at.look()] * 2])
    monkeypatch.setattr(Client, "look", lambda self: next(looks))
    assert at.settled(before, len(answer.tokens)).speculation.n_drafts == 4


def test_a_page_that_stays_behind_is_said_to_be_behind(fake, monkeypatch):
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0)
    at = Client(fake.url)
    before = at.look()
    fake.old, fake.late = fake.metrics(), 1000
    at.ask(ORDER)
    with pytest.raises(EnvironmentProblem, match=r"has counted 0 of 9 tokens .* too far behind"):
        at.settled(before, 9)


def test_counters_of_somebody_elses_requests_are_noticed(fake, monkeypatch):
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0)
    at = Client(fake.url)
    before = at.look()
    at.ask(ORDER)
    at.ask(ORDER)
    with pytest.raises(EnvironmentProblem, match="counted 18 tokens where 9 were asked for"):
        at.settled(before, 9)


def chunk(ids):
    return b'data: {"choices": [{"token_ids": ' + ids.encode() + b"}]}\n\n"


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
        (200, chunk("null"), "must know return_token_ids"),
        (200, chunk('"abc"'), "must know return_token_ids"),
        (200, chunk('{"0": 1}'), "must know return_token_ids"),
        (200, chunk("true"), "must know return_token_ids"),
        (200, chunk("[1, true]"), "a token id of type bool"),
        (200, chunk("[null]"), "a token id of type NoneType"),
        (200, chunk("[1.0]"), "a token id of type float"),
        (200, chunk("[NaN]"), "a token id of type float"),
        (200, chunk('["1"]'), "a token id of type str"),
        (200, chunk("[[1]]"), "a token id of type list"),
        (200, chunk("[-1]"), "a token id -1"),
        (200, chunk("[8]"), "a token id 8, which the target does not have"),
        (200, chunk("[1" + "0" * 30 + "]"), "a token id 1000"),
        (200, chunk("1" * 5000), "no JSON"),
        (200, b"data: " + b"[" * 100_000 + b"\n\n", "no JSON"),
        (500, b"[" * 100_000, r"refuses the request: \[\["),
        (200, b"data: 7\n\n", "must know return_token_ids"),
        (200, b'data: {"choices": {"a": 1}}\n\n', "must know return_token_ids"),
        (200, chunk("[1,1,1,1,1,1,1,1,1]") + b"data: [DONE]\n\n", "sent all 9 tokens at one moment"),
        (200, chunk("[1,1,1,1,1,1,1,1]") * 1000, "sent more than 9 tokens"),
        (200, b"data: " + b" " * (2**20 + 1) + b"\n\n", "a line of more than 1048576 bytes"),
        (400, b'{"error": {"message": "one\\ntwo"}}', "refuses the request: one two"),
        (400, (b" " * 2**19 + b"\n") * 40, "a page of more than 16777216 bytes"),
    ],
)
def test_what_is_no_answer_is_one_line(fake, status, data, words):
    fake.answer = (status, data)
    with pytest.raises(EnvironmentProblem, match=words) as caught:
        Client(fake.url).ask(ORDER._replace(n_ids=8))
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("page", "ask"),
    [
        (b"[" * 100_000, Client.served_model),
        (b'{"data": [{"id": 5}]}', Client.served_model),
        (b'{"data": [7]}', Client.served_model),
        (b"7", Client.served_model),
        (b"[" * 100_000, Client.version),
        (b"vllm:generation_tokens_total NaN", Client.look),
    ],
)
def test_a_page_that_says_nothing_is_one_line(fake, page, ask, monkeypatch):
    monkeypatch.setattr(connection.Response, "read", lambda self: page)
    with pytest.raises(EnvironmentProblem):
        ask(Client(fake.url))


def test_an_answer_that_takes_too_long_is_ended(fake, monkeypatch):
    """The server is alive, and its answer never ends."""
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(client, "TOKEN_SECONDS", 0.0)
    fake.wait = threading.Event()
    with pytest.raises(ConnectionProblem, match=r"did not end its answer within 0\.1 s"):
        Client(fake.url).ask(ORDER)
    fake.wait.set()


PAGE = b"vllm:generation_tokens_total 1234567\n"
LENGTH, CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
)


@contextlib.contextmanager
def says(answer: bytes, ends: threading.Event | None = None):
    """The address of a server that answers once with these bytes, and closes the connection when `ends` is set."""
    with socket.create_server(("127.0.0.1", 0)) as place:

        def serve() -> None:
            with place.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(answer)
                if ends:
                    ends.wait(60)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"


@pytest.mark.parametrize("left", range(1, len(PAGE)))
def test_a_page_that_is_cut_anywhere_is_not_taken_for_a_whole_one(left):
    cut = PAGE[:-left]
    whole_chunk = CHUNKED + b"%x\r\n%s\r\n" % (len(cut), cut)  # and the last one is not there
    for answer in (LENGTH % len(PAGE) + cut, CHUNKED + b"%x\r\n" % len(PAGE) + cut, whole_chunk):
        with says(answer) as url, pytest.raises(ConnectionProblem):
            Client(url).metrics()
    with says(b"HTTP/1.0 200 OK\r\n\r\n" + cut) as url, pytest.raises(EnvironmentProblem):  # nothing says how long
        Client(url).look()


@pytest.mark.parametrize("size", [b"F" * 20, b"-1", b"", b"zz", b"9" * 5000])
def test_the_size_of_a_chunk_may_be_anything(size):
    with says(CHUNKED + size + b"\r\n" + PAGE) as url, pytest.raises(ConnectionProblem):
        Client(url).look()


@pytest.mark.parametrize("head", [LENGTH % 10**6, CHUNKED + b"%x\r\n" % len(PAGE), b"HTTP/1.0 200 OK\r\n\r\n"])
def test_a_page_that_the_time_limit_ended_is_late_and_says_nothing_of_the_server(head, monkeypatch):
    monkeypatch.setattr(client, "PAGE_SECONDS", 0.1)
    ends = threading.Event()
    with says(head + PAGE, ends) as url, pytest.raises(ConnectionProblem, match="did not end its answer within"):
        Client(url).look()
    ends.set()


def test_a_counter_of_tokens_that_goes_back_is_no_page_that_is_behind(fake, monkeypatch):
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0)
    at = Client(fake.url)
    with pytest.raises(EnvironmentProblem, match="counts fewer tokens than before"):
        at.settled(at.look()._replace(n_generated=10), 9)


def test_nobody_there_is_one_line():
    with Fake() as gone:
        url = gone.url
    with pytest.raises(ConnectionProblem, match="does not answer"):
        Client(url).ask(ORDER)
    assert not Client(url).healthy()


ODD = ["http://[::1", "http://a..b", f"http://{'x' * 70}.de", "http://x/ä", "http://a b", "http://u:p@x", "http://x?y"]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:nine", "http://x:99999", *ODD])
def test_an_address_is_checked_before_anything_starts(url):
    with pytest.raises(UsageProblem, match="is no address"):
        connection.check_url(url)


def test_an_address_is_cut_to_where_all_pages_are():
    assert connection.check_url("http://127.0.0.1:8000/v1/") == "http://127.0.0.1:8000"


# --- in turns ---------------------------------------------------------------------------------------------------------


def test_turns_rotate_and_count_every_request_alone(fake, plain):
    arm, done = Arm("ngram", "ngram", 2), []
    orders = {2: ORDER, 0: Order([7], 5, GREEDY), 1: Order([8], 5, GREEDY)}
    servers = Server("baseline", Client(plain.url)), Server("ngram", Client(fake.url))
    sent = server_turns.in_turns(*servers, arm, orders, 2, lambda: done.append(gc.get_freeze_count()))
    assert [one.index for one in sent] == [2] * 3 + [0] * 3 + [1] * 3 + [2] * 3 + [0] * 3 + [1] * 3
    first = [sent[i].arm for i in range(0, 18, 3)]
    assert first[:3] == [BASELINE, arm, BASELINE_REPEAT]
    assert first[3:] == [arm, BASELINE_REPEAT, BASELINE], "another one begins in the next repeat"
    assert {one.turns_of for one in sent} == {arm}
    assert len(done) == 6
    assert all(done), "a long collection would be in the seconds"
    assert [one.counts.n_drafts for one in sent if one.arm == arm] == [4, 2, 2, 4, 2, 2]
    assert {one.counts for one in sent if one.arm != arm} == {None}


def test_a_request_waits_until_the_other_server_is_idle(fake, plain, monkeypatch):
    done, seconds_to_idle, real_sleep = [], 0.0123, time.sleep

    def sleep(seconds):
        if seconds == seconds_to_idle:
            done.append("idle")
        real_sleep(seconds)

    monkeypatch.setattr(servers, "IDLE_SECONDS", seconds_to_idle)
    monkeypatch.setattr(time, "sleep", sleep)
    real = Client.ask
    monkeypatch.setattr(Client, "ask", lambda client, order: done.append(client.url) or real(client, order))
    both = Server("baseline", Client(plain.url)), Server("ngram", Client(fake.url))
    server_turns.in_turns(*both, Arm("ngram", "ngram", 2), {0: ORDER}, 1, lambda: None)
    load.under_load(both[0], [ORDER, ORDER], 1)
    assert done == ["idle", plain.url, "idle", fake.url, "idle", plain.url, "idle", plain.url, plain.url]


def test_the_order_of_turns_is_not_tied_to_the_kind_of_prompt(fake, plain):
    """Three kinds take turns, as those of the lab do: each of them meets every order."""
    orders = {i: Order([i], 3, GREEDY) for i in range(9)}
    servers = Server("baseline", Client(plain.url)), Server("ngram", Client(fake.url))
    sent = server_turns.in_turns(*servers, Arm("ngram", "ngram", 2), orders, 1, lambda: None)
    first = [sent[i].arm.method for i in range(0, 27, 3)]
    for kind in range(3):
        assert len({first[turn] for turn in range(kind, 9, 3)}) == 3
