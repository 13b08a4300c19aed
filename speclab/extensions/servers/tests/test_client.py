"""Requests to a server that nobody vouches for: whatever it sends ends in one line, in bounded time and memory."""

import contextlib
import gzip
import json
import socket
import threading

import pytest

from speclab.extensions.servers import client, counters
from speclab.extensions.servers.client import Order, Server, Stream, check_url
from speclab.system.errors import EnvironmentProblem, UsageProblem

ORDER = Order("say nine", 9)


def event(text, end=b""):
    return b'data: {"choices": [{"text": "' + text + b'"}]' + end + b"}\n\n"


DONE, USAGE = b"data: [DONE]\n\n", b'data: {"usage": {"completion_tokens": %d}}\n\n'


def test_a_text_comes_back_with_the_servers_own_count_and_ids_where_they_are_asked_for(fake):
    answer = Server(fake.url).answer(ORDER)
    assert (answer.text, answer.n_tokens) == ("".join(fake.text_of("say nine", 9)), 9)
    assert answer.seconds_per_token == answer.decode_seconds / 8
    assert fake.asked[0].items() >= {"temperature": 0, "max_tokens": 9, "stream": True}.items()
    assert "top_p" not in fake.asked[0], "TGI refuses 1.0"
    answer = Server(fake.url).answer(Order([5, 6], 9, chat=False, ids=True))
    assert answer.ids == [int(word) for word in fake.text_of("[5, 6]", 9)]
    assert fake.asked[1].items() >= {"prompt": [5, 6], "ignore_eos": True}.items()


def streamed(*parts):
    """The answer of a stream whose clock goes on by a second at every look."""
    stream = Stream("x", 9, clock=iter(range(100)).__next__)
    for part in parts:
        stream.take(part)
    return stream.answer()


def test_the_end_has_the_time_at_which_it_came():
    """Behind the last token the server may say for a while that it goes on."""
    thought = event(b'", "reasoning": "a", "reasoning_content": "a')  # one and its copy
    answer = streamed(thought, event(b"b", b', "usage": {"completion_tokens": 2}'), event(b""), DONE)
    assert (answer.first_seconds, answer.decode_seconds, answer.whole_seconds, answer.text) == (1, 1, 4, "ab")


def test_a_chunk_may_carry_several_tokens(fake):
    """They were there at its time, so none of them belongs to the time per token."""
    ids = [b"[1, 2, 3]", b"[4, 5]", b"[6, 7, 8, 9]"]
    chunks = [b'data: {"choices": [{"text": "x", "token_ids": ' + some + b"}]}\n\n" for some in ids]
    fake.answer = (200, b"".join([*chunks, DONE]))
    answer = Server(fake.url).answer(ORDER)
    assert (answer.n_tokens, answer.n_first, answer.ids) == (9, 3, [*range(1, 10)])
    assert answer.seconds_per_token == answer.decode_seconds / 6


@pytest.mark.parametrize(
    ("told", "rounds"),
    [
        ({"per_step_drafted": [3, 2], "per_step_accepted": [3, 0], "num_spec_tokens": 3}, [(3, 3), (2, 0)]),
        ({"per_step_drafted": [], "per_step_accepted": [], "num_spec_tokens": 3}, []),
        ({"num_spec_steps": 2, "num_accepted_draft_tokens": 3, "num_spec_tokens": 3}, None),  # `summary` has no rounds
        *(
            ({"per_step_drafted": drafted, "per_step_accepted": kept, "num_spec_tokens": 3}, None)
            for drafted, kept in [([3, 2], [3]), ([3], [4]), ([4], [0]), ([True], [0]), ([1], ["1"]), ({"0": 1}, [1])]
        ),
        *((told, None) for told in (None, [7])),
    ],
)
def test_rounds_that_a_server_tells_are_taken_in_their_own_form_alone(told, rounds):
    """As vLLM 0.32 sends them with its usage. In another form there are no counts, and the page's are taken."""
    metrics = json.dumps({"speculative_decoding": told}).encode()
    end = b'data: {"choices": [], "usage": {"completion_tokens": 3}, "metrics": ' + metrics + b"}\n\n"
    answer = streamed(event(b"a"), event(b"b"), end, DONE)
    assert answer.rounds == (rounds or [])
    assert answer.counts == (None if rounds is None else counters.of_rounds(rounds, 3))


@pytest.mark.parametrize(
    ("status", "data", "words"),
    [
        (400, b'{"error": {"message": "max_tokens is too large"}}', "answers 400: max_tokens is too large$"),
        (401, b"", "wants an API key; .*SPECLAB_API_KEY"),  # llama-server lists its models without one
        (500, b"", "answers 500: no reason given; try again later"),
        (500, b"[" * 100_000, r"answers 500: \[\["),
        (400, b'{"error": {"message": "one\ntwo"}}', "answers 400: one two"),
        (200, b"data: {oops\n\n", "no JSON"),
        (200, b"data: 7\n\n", "no object"),
        (200, b"data: " + b"[" * 100_000 + b"\n\n", "no JSON"),
        (200, b'data: {"error": {"message": "engine dead"}}\n\n', "ends its answer: engine dead"),
        (200, event(b"x"), "ended its answer in the middle"),
        (200, b"hello", "sends no events of an answer"),
        (200, USAGE % 1 + DONE, "sent no text"),
        (200, b'data: {"choices": [{"text": null}]}\n\n' + DONE, "sent no text"),
        (200, b'data: {"choices": {"a": 1}}\n\n' + DONE, "sent no text"),
        (200, event(b"x") * 2 + USAGE % 99 + DONE, "counts 99 tokens"),
        (200, event(b"x") * 2 + DONE, "counts 0 tokens"),  # events are no tokens
        *(
            (200, b'data: {"choices": [{"text": "", "token_ids": ' + ids + b"}]}\n\n", "no ids")
            for ids in (b"[-1]", b"[true]", b'{"0": 1}')
        ),
        (400, (b" " * 2**12 + b"\n") * 512, "more than 1 MiB"),
    ],
)
def test_what_is_no_answer_is_one_line(fake, status, data, words, monkeypatch):
    monkeypatch.setattr(client, "MOST_BYTES", 2**20)
    fake.answer = (status, data)
    with pytest.raises(EnvironmentProblem, match=words) as caught:
        Server(fake.url).answer(ORDER)
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


PAGE, HEAD = b"vllm:generation_tokens_total 1234567\n", b"HTTP/1.1 200 OK\r\n"
LENGTH, CHUNKED = HEAD + b"Content-Length: %d\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@contextlib.contextmanager
def says(answer: bytes, drips: bool = False):
    """The address of a server that answers once with these bytes; drips: and then a byte now and then."""
    ends = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as place:

        def serve() -> None:
            with contextlib.suppress(OSError), place.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(answer)
                for _ in range(300 * drips):  # where nobody ends it, the test fails, and is not held up
                    if ends.wait(0.01):
                        break
                    connection.sendall(b"x")

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    ends.set()


@pytest.mark.parametrize("left", [1, 9, len(PAGE) - 1])
def test_a_page_that_is_cut_is_not_taken_for_a_whole_one(left):
    cut = PAGE[:-left]
    whole_chunk = CHUNKED + b"%x\r\n%s\r\n" % (len(cut), cut)  # and the last one is not there
    for answer in (LENGTH % len(PAGE) + cut, CHUNKED + b"%x\r\n" % len(PAGE) + cut, whole_chunk, CHUNKED + b"zz\r\n"):
        with says(answer) as url, pytest.raises(EnvironmentProblem):
            Server(url).page("/metrics")
    with says(b"HTTP/1.0 200 OK\r\n\r\n" + cut) as url, pytest.raises(EnvironmentProblem):  # nothing says how long
        counters.read(Server(url).page("/metrics").decode())


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX: ", LENGTH % 10**6, b"HTTP/1.0 200 OK\r\n\r\n"])
def test_what_never_ends_is_ended(head, monkeypatch):
    """Also where bytes come all the time, each of them early enough."""
    monkeypatch.setattr(client, "PAGE_SECONDS", 0.2)
    ends = pytest.raises(EnvironmentProblem, match=r"did not end its answer within 0\.2 s")
    with says(head, drips=True) as url, ends:
        Server(url).page("/metrics")


def test_an_answer_is_unpacked_up_to_the_bound_of_all_answers(monkeypatch):
    """What it holds counts, however small it is on the way."""
    monkeypatch.setattr(client, "MOST_BYTES", 2**19)
    for length, ends in ((2**10, contextlib.nullcontext()), (2**20, pytest.raises(EnvironmentProblem, match="more"))):
        packed = gzip.compress(b" " * length)
        gzipped = LENGTH.replace(HEAD, HEAD + b"Content-Encoding: gzip\r\n")
        with says(gzipped % len(packed) + packed) as url, ends:
            assert Server(url).page("/metrics") == b" " * length


def test_a_redirect_is_not_followed_and_no_proxy_is_asked(fake, plain, monkeypatch):
    answer = b"HTTP/1.1 302 Found\r\nLocation: %s/metrics\r\nContent-Length: 0\r\n\r\n" % fake.url.encode()
    with says(answer) as url, pytest.raises(EnvironmentProblem, match="answers 302"):
        Server(url).page("/metrics")
    assert not fake.heads
    monkeypatch.setenv("HTTP_PROXY", plain.url)
    monkeypatch.setenv("ALL_PROXY", plain.url)
    Server(fake.url, "secret-key").json("/v1/models")
    assert fake.heads[-1]["Authorization"] == "Bearer secret-key"
    assert not plain.heads


ODD = ["http://[::1", "http://:1", "http://x/ä", "http://a b", "http://u:p@x", "http://x?y", "http://x:0", "http://x#y"]


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://x:nine", "http://x:99999", *ODD])
def test_an_address_is_checked_before_anything_is_sent(url):
    assert check_url("http://127.0.0.1:8000/v1/") == "http://127.0.0.1:8000", "where all pages are"
    with pytest.raises(UsageProblem, match="is no address"):
        check_url(url)
