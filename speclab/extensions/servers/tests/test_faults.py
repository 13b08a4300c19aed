"""Servers with a fault each, as users meet them: the command names the fault, and shows no number that is not true.

The servers are simulated, and their clock is planted: each event carries the seconds at which it comes.
"""

import re
from types import SimpleNamespace

import pytest

from speclab.extensions.servers import causes, diagnosis
from speclab.extensions.servers.ask import client
from speclab.extensions.servers.ask.stream import Stream
from speclab.extensions.servers.tests.simulated import Simulated, usual_text

STEP, K = 0.02, 4  # seconds of a plain token
SOUND = (0.7, 0.7, 0.7, 0.7)
ROUND = 1.5  # plain tokens


class Timed(Stream):
    """Its clock is what the events say."""

    def __init__(self, url, n_tokens):
        self.now = 0.0
        super().__init__(url, n_tokens, clock=lambda: self.now)

    def _line(self, line):
        if at := re.search(rb'"at": ([\d.e-]+)', line):
            self.now = float(at[1])
        super()._line(line)


@pytest.fixture
def servers(monkeypatch):
    """Make two servers, which are sound until a row damages them: fake speculates, plain does not."""
    monkeypatch.setattr(client, "Stream", Timed)
    made = []

    def make(engine="vllm"):
        fake, plain = Simulated(engine, SOUND, seed=5), Simulated(engine)
        made.extend([fake.__enter__(), plain.__enter__()])
        fake.pace = lambda text, number: 0.1 + ROUND * STEP * number
        plain.pace = lambda text, number: 0.1 + STEP * number
        return SimpleNamespace(fake=fake, plain=plain, words=[])

    yield make
    for one in made:
        one.__exit__()


def row(name, says, *, engine="vllm", not_says=(), code=0, low=None, high=None):
    """One fault. says, not_says: what the screen has, or has not. low, high: between which the speedup is shown."""

    def add(damage):
        ROWS.append(pytest.param(damage, engine, says, not_says, code, low, high, id=name))
        return damage

    return add


ROWS = []
CLEAR = ("not clear", "cause ")


@row("a sound draft model", ["nothing is wrong"], not_says=CLEAR, low=1.7, high=2.1)
def sound(both):
    pass


@row("a sound draft on a server without counters", ["nothing is wrong"], engine="other", low=1.7, high=2.1)
def without_counters(both):
    pass


def drafts_of_no_use(both, kind):
    both.fake.rates, both.words = (0.005, 0.0, 0.0, 0.0), ["--kind", kind]


@row("a draft model with noise", [causes.DAMAGED, causes.FOREIGN], not_says=[causes.STATES, "--kind"])
def noise(both):
    drafts_of_no_use(both, "model")


@row("a head of other layers", [causes.STATES, causes.DAMAGED], not_says=["--kind"])
def other_layers(both):
    both.fake.rates, both.words = (0.04, 0.0, 0.0, 0.0), ["--kind", "head"]


@row("a lookup that finds nothing true", [causes.LITTLE], not_says=[causes.DAMAGED, causes.STATES, causes.FOREIGN])
def lookup(both):
    drafts_of_no_use(both, "lookup")


@row("a kind that the server says", [causes.DAMAGED, causes.FOREIGN], not_says=[causes.STATES])
def said_kind(both):
    drafts_of_no_use(both, "model")
    both.words = []
    both.fake.pages["/server_info"] = (200, b"speculative_config=SpeculativeConfig(method='draft_model', model='x')")


@row("a draft of an unknown kind", [causes.DAMAGED, causes.STATES, "--kind model|head|lookup"])
def unknown_kind(both):
    both.fake.rates = (0.005, 0.0, 0.0, 0.0)


@row("k = 12", ["not clear", causes.TOO_LONG, "more prompts", "k = 3"], not_says=["nothing is wrong"])
def long_drafts(both):
    """Rounds that are dear on some texts and cheap on others."""
    both.fake.rates = (0.8, 0.7, 0.6, *[0.4] * 9)
    both.fake.pace = lambda text, number: 0.1 + STEP * number * (1.3 if len(text) % 2 else 3.8)


def default_penalty(both, sent):
    """A penalty of the server's own default changes the text, where a request does not unset it."""
    fake = both.fake

    def text_of(prompt, n):
        unset = not sent or fake.asked[-1].get("repetition_penalty") != 1.0
        return usual_text(prompt + "!", n) if unset else usual_text(prompt, n)

    fake.text_of = text_of


@row("a repetition penalty by default, which a request unsets", ["nothing is wrong", "12 of 12"], low=1.7, high=2.1)
def unset_penalty(both):
    default_penalty(both, sent=True)


@row("a repetition penalty that no request unsets", [causes.DEFAULTS, "the text is wrong", "sampling default"], code=1)
def forced_penalty(both):
    default_penalty(both, sent=False)


@row("a temperature that no request unsets", ["the text is wrong", causes.SAMPLES], code=1)
def forced_temperature(both):
    count = iter(range(10**6))
    both.fake.text_of = lambda prompt, n: usual_text(prompt + "!" * (next(count) % 97), n)


@row("five other clients", [diagnosis.LOAD, causes.BUSY, "others asked", "tok/rnd"], not_says=["nothing is wrong"])
def busy(both):
    both.fake.running, both.fake.busy = 5, 70
    both.fake.pace = lambda text, number: 0.1 + STEP * number * (1.3 if len(text) % 2 else 4.5)


@row("no usage, one event a round", ["events are no tokens", "12 of 12"], engine="other", low=1.6, high=2.1)
def no_usage(both):
    both.fake.usage = both.plain.usage = "none"


@row("usage halved on one server", ["counts wrongly", "12 of 12"], engine="other", low=1.6, high=2.1)
def halved(both):
    both.fake.usage = "half"


@row("usage halved where ids are sent", ["nothing is wrong"], not_says=["counts wrongly"], low=1.7, high=2.1)
def halved_beside_ids(both):
    both.fake.usage = "half"


@row("usage too high", ["sent", "were asked for"], code=3)
def too_high(both):
    both.fake.answer = (
        200,
        events(b'{"choices": [{"text": "x"}]}', b'{"usage": {"completion_tokens": 9999}}', b"[DONE]"),
    )


@row("a slow first token", ["nothing is wrong"], low=1.7, high=2.1)
def slow_first(both):
    usual = both.fake.pace
    both.fake.pace = lambda text, number: 3.0 + usual(text, number)


@row("pings and lines of another end", ["nothing is wrong"], low=1.7, high=2.1)
def pings(both):
    both.fake.pings = both.plain.pings = b": ping\r\n\r\nevent: x\r\n"


@row("counters that are late", ["nothing is wrong"], not_says=["others asked"], low=1.7, high=2.1)
def late(both):
    both.fake.late = 5


@row("status 429", ["answers 429: Rate limit reached; try again"], code=3)
def limited(both):
    both.fake.answer = (429, b'{"error": {"message": "Rate limit reached."}}')


@row("status 500", ["answers 500", "try again"], code=3)
def failing(both):
    both.fake.answer = (500, b"oops")


@row("an end in the middle", ["in the middle"], code=3)
def cut(both):
    both.fake.answer = (200, events(b'{"choices": [{"text": "x"}]}'))


@row("a page of HTML", ["a page of HTML"], not_says=["in the middle"], code=3)
def page(both):
    both.fake.answer = (200, b"<!doctype html>\n<html><body>Welcome</body></html>")


@row("an answer that is not streamed", ["as a whole", "stream"], not_says=["in the middle"], code=3)
def whole(both):
    both.fake.answer = (
        200,
        b'{\n"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 8}}',
    )


def hide(both, engine_usage="end"):
    """Neither server speculates, as far as anybody can tell."""
    both.fake.rates = ()
    both.fake.pace, both.fake.hidden, both.fake.usage = both.plain.pace, 0.5, engine_usage


@row("tokens before the first text", ["were seen to arrive"], engine="other", low=0.95, high=1.05)
def hidden(both):
    hide(both)


@row("tokens before the first text, on both", ["were seen to arrive"], engine="other", low=0.95, high=1.05)
def hidden_on_both(both):
    hide(both)
    both.plain.hidden = 0.5


@row("empty events with a usage that grows", [], engine="other", not_says=["were seen"], low=0.99, high=1.01)
def growing(both):
    hide(both, "each")


@row("an end token without text", [], engine="other", not_says=["were seen"], low=0.99, high=1.01)
def end_token(both):
    hide(both)
    both.fake.hidden, both.fake.end_token = 0.0, True
    both.plain.text_of = lambda prompt, n: usual_text(prompt, n)[:-1]


def counting(generated, rounds):
    names = ("drafts", "draft_tokens", "accepted_tokens")
    lines = []
    for engine, n_tokens, (n, drafted, kept) in zip("01", generated, rounds, strict=True):
        values = zip(names, (n, drafted, kept), strict=True)
        lines += [f'vllm:generation_tokens_total{{engine="{engine}"}} {n_tokens}\n']
        lines += [f'vllm:spec_decode_num_{name}_total{{engine="{engine}"}} {value}\n' for name, value in values]
    return "".join(lines)


@row("two engines, one of them started anew", ["went back"], code=3)
def restarted(both):
    """The sums of both engines go on."""
    both.words = {
        "--before": counting((100, 1000), ((20, 80, 60), (400, 1600, 600))),
        "--after": counting((2000, 200), ((500, 2000, 1400), (50, 200, 110))),
    }


@row("counters without a limit", ["no amount"], code=3)
def endless(both):
    huge = "vllm:inter_token_latency_seconds_count 1e308\nvllm:inter_token_latency_seconds_sum 1e308\n"
    page = counting((100, 1000), ((20, 80, 60), (400, 1600, 600)))
    both.words = {"--before": page, "--after": page + huge}


@row("garbage at a temperature of .05", ["sampling is broken", "keeps none of", "rule out"], code=1)
def broken_sampling(both):
    both.fake.sampled = (0.0,) * K, lambda prompt, n: usual_text(prompt + "!", n)


@row("a near tie at a temperature of .05", ["nothing is wrong"], not_says=["sampling"], low=1.7, high=2.1)
def tie_when_sampled(both):
    both.fake.sampled = SOUND, lambda prompt, n: [*usual_text(prompt, 9), *usual_text(prompt, n)[10:n], "7 "]
    both.plain.top = lambda place, token: {token: -0.7, f"{int(token) + 1} ": -0.8}


def events(*data):
    return b"".join(b"data: " + one + b"\n\n" for one in data)


@pytest.mark.parametrize(("damage", "engine", "says", "not_says", "code", "low", "high"), ROWS)
def test_a_fault_is_named(damage, engine, says, not_says, code, low, high, servers, command, tmp_path):
    both = servers(engine)
    damage(both)
    words = ["--url", both.fake.url, "--plain-url", both.plain.url, "--max-new-tokens", 48, *both.words]
    if isinstance(both.words, dict):
        words = []
        for flag, page in both.words.items():
            (tmp_path / flag).write_text(page)
            words += [flag, tmp_path / flag]
    found, out, err = command(*words)
    text = " ".join((out + err).split())
    assert found == code, text
    assert [one for one in says if one not in text] == [], out + err
    assert [one for one in not_says if one in text] == [], out + err
    assert len(out.splitlines()) <= 25
    assert "inf" not in text.split()
    if low:
        speedup = float(re.search(r"^all .*?([\d.]+)x", out, re.MULTILINE)[1])
        assert low <= speedup <= high, out
