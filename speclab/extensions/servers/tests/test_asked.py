"""The command against simulated servers: what it finds is what was drawn, it names each fault, and each bad input is
one line. The clock of the table is planted: each event carries the seconds at which it comes."""

import contextlib
import math
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from speclab.extensions.servers import __main__ as asks
from speclab.extensions.servers import client, diagnose
from speclab.extensions.servers.__main__ import TIED, UNEXPLAINED, UNJUDGED, Step, make_parser, verdict
from speclab.extensions.servers.client import Order, Stream
from speclab.extensions.servers.diagnose import BUSY, DAMAGED, ENDS, LENIENT, LOAD, OTHER_TARGET, STATES, TOO_LONG
from speclab.extensions.servers.referee import make_parser as referee_parser
from speclab.extensions.servers.tests.simulated import Simulated, usual_text
from speclab.system.errors import EnvironmentProblem
from speclab.system.files import ROOT

RATES = (0.8, 0.6, 0.5, 0.4)
PROMPTS = [client.Prompt(("code", "prose")[i % 2], f"prompt {i}") for i in range(8)]


def asked(fake, plain=None, n=40):
    """Every prompt once; the rounds of the warm-up are forgotten."""
    servers = [client.find(one.url) if one else None for one in (fake, plain)]
    pairs = client.ask_all(*servers, PROMPTS, n, True, math.inf)
    return pairs, fake.rounds[-sum(pair.speculative.counts.n_drafts for pair in pairs) :]


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("engine", ["vllm", "llama"])
def test_what_is_measured_is_what_was_drawn(engine, told):
    """From the counters of a page, and from what is told of each request."""
    with Simulated(engine, RATES, seed=3) as fake:
        fake.told = told
        pairs, rounds = asked(fake)
    found, kept = diagnose.of_pairs(pairs), [n for _, n in rounds]
    assert found.counts.n_drafts == len(rounds)
    assert found.counts.accepted_at == [sum(n > place for n in kept) for place in range(4)]
    assert found.tokens_per_round == pytest.approx(39 * 8 / len(rounds)), "what is kept behind the end makes no text"
    assert found.counts.drafted_fraction == pytest.approx(sum(kept) / sum(n for n, _ in rounds))
    one_token = pairs[0]._replace(speculative=pairs[0].speculative._replace(n_tokens=1))
    assert diagnose.of_pairs([*pairs, one_token]) == found, "it has no time per token"
    low, high = found.tokens_interval
    assert low < found.tokens_per_round < high
    by_kind = [diagnose.of_pairs([pair for pair in pairs if pair.kind == kind]) for kind in ("code", "prose")]
    assert sum(one.counts.n_accepted for one in by_kind) == found.counts.n_accepted
    assert found.seconds == pytest.approx(sum(pair.speculative.decode_seconds for pair in pairs) / (39 * 8))
    assert len(found.parts) == 3 * told
    assert sum(part.n_accepted for part in found.parts) == found.counts.n_accepted * told


def test_the_rounds_of_a_request_are_its_own_whoever_else_asks(fake, command):
    """Counters have the rounds of others, too, and no lengths of drafts."""
    dice = random.Random(4)
    fake.drawn = iter(lambda: (n := dice.randint(1, 4), dice.randint(0, n)), None)
    fake.busy, fake.told = 30, True
    pairs, rounds = asked(fake)
    found = diagnose.of_pairs(pairs).counts
    assert (found.n_drafts, found.n_drafted) == (len(rounds), sum(n for n, _ in rounds))
    tested = sum(kept + (kept < n) for n, kept in rounds)
    assert found.acceptance_rate == pytest.approx(found.n_accepted / tested), "also where drafts are shorter than k"
    assert found.conditional[1] == sum(k > 1 for _, k in rounds) / sum(n > 1 and k > 0 for n, k in rounds)
    assert not any(pair.speculative.shared for pair in pairs)
    out = command("--url", fake.url, "--max-new-tokens", 40)[1]
    assert "α in each third of the answers" in out
    assert "others asked" not in out
    fake.told = False
    pairs, _ = asked(fake)
    assert diagnose.of_pairs(pairs).counts.n_drafts > 2 * found.n_drafts
    assert all(pair.speculative.shared for pair in pairs)
    assert "--per-request-spec-decode-metrics" in command("--url", fake.url, "--max-new-tokens", 40)[1]


@pytest.mark.parametrize("fades", [True, False])
def test_a_draft_that_fades_along_a_text_is_named(fake, command, fades):
    """Its window ends in every answer, where the server tells its rounds."""
    fake.told, usual = True, fake.text_of

    def text_of(prompt, n):
        fake.drawn = iter([(4, 4)] * 6 + [(4, 0)] * n if fades else [(4, 2)] * n)
        return usual(prompt, n)

    fake.text_of = text_of
    assert (ENDS.name in " ".join(command("--url", fake.url)[1].split())) == fades


def test_rounds_that_draft_nothing_are_rounds():
    """What is kept behind the end of a text hides at most as many of them."""
    with Simulated("vllm", RATES, seed=1, idle=0.5) as fake:
        pairs, _ = asked(fake)
        made, warm_up = 1, 0
        while made < client.WARM_UP_TOKENS:
            made, warm_up = made + fake.rounds[warm_up][1] + 1, warm_up + 1
        rounds = fake.rounds[warm_up:]
    n_rounds = sum(diagnose.n_rounds_of(pair.speculative, 39) for pair in pairs)
    drafting = [kept for drafted, kept in rounds if drafted]
    assert len(drafting) < n_rounds <= len(rounds) <= n_rounds + len(RATES) * len(pairs)
    assert diagnose.of_pairs(pairs).tokens_per_round == 39 * 8 / n_rounds < 1 + sum(drafting) / len(drafting)


def test_a_page_may_be_a_moment_late(fake):
    server = client.find(fake.url)
    fake.late = 4
    counts = server.ask(Order("x", 40)).counts
    assert fake.late == 0
    assert counts.n_drafts == len(fake.rounds)
    fake.late, fake.old = 10**6, ""
    with pytest.raises(EnvironmentProblem, match="counts 0 of the 40 tokens"):
        server.ask(Order("x", 40))


def test_one_server_alone_is_told_what_a_plain_token_must_take(fake, plain, command, monkeypatch):
    """The number of the answer is the time of a token that was measured; so is the one that the plain server's own
    screen says to give, and with it there is a speedup."""
    answers, usual = [], client.ask_all
    monkeypatch.setattr(client, "ask_all", lambda *given: answers.append(usual(*given)) or answers[-1])
    words = r"takes more than ([\d.]+) ms"
    for flag, server, found in (("--url", fake, words), ("--plain-url", plain, r"ms ([\d.]+)")):
        code, out, _ = command(flag, server.url, "--max-new-tokens", 40)
        measured = 1e3 * diagnose.of_pairs(answers[-1]).seconds
        assert (code, out[:6]) == (0, "ANSWER")
        assert float(re.search(found, " ".join(out.split()))[1]) == pytest.approx(measured, abs=0.006)
    code, out, _ = command("--url", fake.url, "--plain-ms", 21.5, "--max-new-tokens", 40)
    assert (code, "21.50" in out, "speedup" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--acceptance 0.35 -k 4 --plain-ms 21.0 --spec-ms 21.4", "ANSWER a round costs too much"),
        ("--acceptance 0.35 -k 4 --plain-ms 21.0 --spec-ms 11.0", "ANSWER nothing is wrong"),
        ("--acceptance 0.35 -k 4 --plain-ms 21.0 --spec-ms 11.0", "brings 2.40 tokens"),
        ("--acceptance 0.35 -k 4 --spec-ms 11.0", "takes more than 11.00 ms"),
        ("--before {0} --after {1} --plain-ms 21.0 --spec-ms 13.3", "kept of all rounds that draft"),
        ("--before {0} --after {1} -k 4", "ANSWER"),
    ],
)
def test_what_is_written_down_is_answered(words, says, fake, command, tmp_path):
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_text(fake.metrics())
        for number in range(20):
            fake.chunks(fake.text_of(f"{number}", 40))
    code, out, err = command(*words.format(*files).split())
    assert (code, out[:6]) == (0, "ANSWER"), err
    assert says in " ".join(out.split())


def test_the_command_needs_no_torch():
    code = "import sys; from speclab.extensions.servers import __main__ as m\n"
    code += "m.main(['--acceptance', '0.35', '-k', '4'])\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True).returncode == 0


COMMAND = re.compile(r"python -m speclab\.extensions\.servers(\.referee)? (-[^`#\n]*)")
SHOWN = [words for page in (ROOT / "docs").rglob("*.md") for words in COMMAND.findall(page.read_text("utf-8"))]


@pytest.mark.parametrize(("referee", "words"), SHOWN)
def test_every_command_of_a_page_can_be_typed(referee, words):
    assert (referee_parser() if referee else make_parser()).parse_args(shlex.split(words))


# --- the same text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "rivals", "expected"),
    [
        ("The dog ran", {"dog": -0.8}, TIED),
        ("The dog ran", {"dog": -0.8, "dog ran": -5.0}, TIED),
        ("The dog ran", {"dog": -0.71 - asks.TIE}, UNEXPLAINED),
        ("The cats ran", {"cats": -0.8}, TIED),  # the texts part inside this token, and the plain one begins like it
        ("The cats ran", {"cats": -5.0}, UNEXPLAINED),
        ("The cat ran", {"c": -0.7}, UNEXPLAINED),  # no text parts from the other one in "c"
        ("The cow ran", {"dog": -0.7, "c": -5.0}, UNEXPLAINED),  # the plain server does not think of it
        ("The ", {"dog": -0.7}, UNJUDGED),  # it ended there
        ("The cat sat on", {"dog": -0.7}, UNJUDGED),  # asked again, the plain server writes the same
    ],
)
def test_a_difference(other, rivals, expected):
    steps = [Step("The ", {"The ": -0.1}), Step("cat", {"cat": -0.7, **rivals}), Step(" sat", {" sat": -0.2})]
    assert verdict(steps, "The cat sat", other) == expected
    again = [steps[0], Step("cow", {"cow": -0.7, "dog": -0.7})]
    assert verdict(again, "The cat sat", "The dog ran") == UNJUDGED, "asked again, it writes a third text"
    for one in ([], [Step("\ufffd", {"\ufffd": 0.0, "x": 0.0})], [Step("", {})]):
        assert verdict(one, one[0].token if one else "z", "xy") == UNJUDGED, "it cannot be read"


def altered(prompt, n, place=4, step=1):
    start = sum(map(ord, prompt))
    return [f"{start + i + (step if i >= place else 0)} " for i in range(n)]


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    ("step", "top", "expected"),
    [(1, -0.2, TIED), (1, -2.0, UNEXPLAINED), (5, -0.2, UNEXPLAINED), (1, None, UNJUDGED)],
)
def test_a_server_that_writes_another_text(fake, plain, command, step, top, expected, raw, monkeypatch):
    if expected == UNJUDGED:  # Ctrl-C while texts are asked for again
        monkeypatch.setattr(asks, "asked_again", Mock(side_effect=[[], KeyboardInterrupt]))
    fake.text_of = lambda prompt, n: altered(prompt, n, step=step)
    plain.top = lambda place, token: {token: -0.1, f"{int(token) + 1} ": top}
    code, out, _ = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16, *["--raw"] * raw)
    wrong, same = expected == UNEXPLAINED, expected == TIED
    assert (code, "the text is wrong" in out, OTHER_TARGET in " ".join(out.split())) == (not same, wrong, wrong)
    assert f"0 of 12 greedy texts, 12 {expected}" in out


# --- faults, with a planted clock -------------------------------------------------------------------------------------

STEP, ROUND = 0.02, 1.5  # seconds of a plain token, and what a round costs in plain tokens
SOUND = (0.7, 0.7, 0.7, 0.7)


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
        return SimpleNamespace(fake=fake, plain=plain)

    yield make
    for one in made:
        one.__exit__()


def alter(**values):
    """Set what the server that speculates does."""

    def change(both):
        for name, value in values.items():
            setattr(both.fake, name, value)

    return change


def slow_texts(fast, slow):
    """Rounds that are dear on some texts and cheap on others."""
    return lambda text, number: 0.1 + STEP * number * (fast if len(text) % 2 else slow)


def default_penalty(both, sent):
    """A penalty of the server's own default changes the text, where a request does not unset it."""

    def text_of(prompt, n):
        unset = not sent or both.fake.asked[-1].get("repetition_penalty") != 1.0
        return usual_text(prompt + "!" * unset, n)

    both.fake.text_of = text_of


def counting(generated, rounds):
    names, lines = ("drafts", "draft_tokens", "accepted_tokens"), []
    for engine, n_tokens, values in zip("01", generated, rounds, strict=True):
        lines.append(f'vllm:generation_tokens_total{{engine="{engine}"}} {n_tokens}\n')
        for name, value in zip(names, values, strict=True):
            lines.append(f'vllm:spec_decode_num_{name}_total{{engine="{engine}"}} {value}\n')
    return "".join(lines)


def events(*data):
    return b"".join(b"data: " + one + b"\n\n" for one in data)


PAGE = counting((100, 1000), ((20, 80, 60), (400, 1600, 600)))
RESTARTED = counting((2000, 200), ((500, 2000, 1400), (50, 200, 110)))  # the sums of both engines go on
HUGE = "vllm:inter_token_latency_seconds_count 1e308\nvllm:inter_token_latency_seconds_sum 1e308\n"
FINE, USELESS = ["nothing is wrong"], (0.005, 0.0, 0.0, 0.0)
TOO_HIGH = events(b'{"choices": [{"text": "x"}]}', b'{"usage": {"completion_tokens": 9999}}', b"[DONE]")
WHOLE = b'{\n"choices": [{"text": "x", "finish_reason": "length"}], "usage": {"completion_tokens": 8}}'
VERSION = {"/version": (200, b'{"version": "1.0"}')}  # vLLM is not the only one that has such a page
CUT = events(b'{"choices": [{"text": "x"}]}')
LIMIT = b'{"error": {"message": "Rate limit reached."}}'


class Row(NamedTuple):
    """One fault. says, hides: what the screen has, or has not; between: where the speedup is shown."""

    damage: Callable = lambda both: None
    says: list[str] = FINE
    hides: list[str] = []  # noqa: RUF012
    engine: str = "vllm"
    code: int = 0
    between: tuple[float, float] | None = None
    pages: dict[str, str] = {}  # noqa: RUF012 - two pages in the place of servers


PAYS = (1.7, 2.1)
ROWS = {
    "a sound draft model": Row(hides=["not clear", "cause "], between=PAYS),
    "a sound draft that tells its rounds": Row(alter(told=True), [*FINE, "each third"], between=PAYS),
    "a sound draft on a server without counters": Row(alter(pages=VERSION), engine="other", between=PAYS),
    "llama-server after a million": Row(alter(generated=10**6), [*FINE, "six digits"], engine="llama", between=PAYS),
    "a draft that knows nothing": Row(alter(rates=USELESS), [STATES, DAMAGED, "the draft is rejected too often"]),
    "k = 12": Row(
        alter(rates=(0.8, 0.7, 0.6, *[0.4] * 9), pace=slow_texts(1.3, 3.8)),
        ["not clear", TOO_LONG, "more prompts", "k = 3"],
        FINE,
    ),
    "a default that is unset": Row(lambda both: default_penalty(both, sent=True), [*FINE, "12 of 12"], between=PAYS),
    "a default penalty that no request unsets": Row(
        lambda both: default_penalty(both, sent=False), ["the text is wrong", "sampling defaults"], code=1
    ),
    "a draft of which everything is kept, and another text": Row(
        alter(rates=(1.0,) * 4, text_of=lambda prompt, n: usual_text(prompt + "!", n)), [LENIENT, OTHER_TARGET], code=1
    ),
    "five other clients": Row(
        alter(running=5, busy=70, pace=slow_texts(1.3, 4.5)), [LOAD, BUSY, "others asked", "tok/rnd"], FINE
    ),
    "no usage": Row(alter(counted=0.0), ["counts 0 tokens"], engine="other", code=3),
    "usage halved on one server": Row(alter(counted=0.5), ["counts wrongly"], engine="other", code=3),
    "usage halved where ids are sent": Row(alter(counted=0.5), hides=["counts wrongly"], between=PAYS),
    "usage too high": Row(alter(answer=(200, TOO_HIGH)), ["counts", "were asked for"], code=3),
    "a slow first token": Row(alter(pace=lambda text, number: 3.1 + ROUND * STEP * number), between=PAYS),
    "pings and lines of another end": Row(alter(pings=b": ping\r\n\r\nevent: x\r\n"), between=PAYS),
    "counters that are late": Row(alter(late=5), hides=["others asked"], between=PAYS),
    "status 429": Row(alter(answer=(429, LIMIT)), ["429: Rate limit reached; try again"], code=3),
    "status 500": Row(alter(answer=(500, b"oops")), ["answers 500", "try again"], code=3),
    "an end in the middle": Row(alter(answer=(200, CUT)), ["in the middle"], code=3),
    "a page of HTML": Row(alter(answer=(200, b"<!doctype html>\n")), ["no events", "streams"], ["middle"], code=3),
    "an answer that is not streamed": Row(alter(answer=(200, WHOLE)), ["no events", "streams"], ["middle"], code=3),
    "two engines, one started anew": Row(says=["went back"], code=3, pages={"--before": PAGE, "--after": RESTARTED}),
    "counters without a limit": Row(says=["no metric"], code=3, pages={"--before": PAGE, "--after": PAGE + HUGE}),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_fault_is_named(row, servers, command, tmp_path):
    both = servers(row.engine)
    row.damage(both)
    words = ["--url", both.fake.url, "--plain-url", both.plain.url, "--max-new-tokens", 48] if not row.pages else []
    for flag, page in row.pages.items():
        (tmp_path / flag).write_text(page)
        words += [flag, tmp_path / flag]
    found, out, err = command(*words)
    text = " ".join((out + err).split())
    assert found == row.code, text
    assert [one for one in row.says if one not in text] == [], out + err
    assert [one for one in row.hides if one in text] == [], out + err
    assert out[:6] in ("ANSWER", "")
    assert len(out.splitlines()) <= 25
    assert max(map(len, ["", *out.splitlines()])) <= 110
    assert "inf" not in text.split()
    if row.between:
        speedup = float(re.search(r"^all .*?([\d.]+)x", out, re.MULTILINE)[1])
        assert row.between[0] <= speedup <= row.between[1], out


# --- bad inputs -------------------------------------------------------------------------------------------------------

GOOD = "\xef\xbb\xbfvllm:generation_tokens_total 30\n"  # with the mark that some editors put before a text
FILES = {"good": GOOD, "less": GOOD.replace("30", "3"), "cut": GOOD[:-3], "hello": "hello\n", "bytes": "\xff\xfe"}
PAGES = "--before {folder}/good --after {folder}"
BAD = [
    ("", 2, "give --url"),
    ("--url nowhere", 2, "no address of a server"),
    ("--url http://127.0.0.1:1", 3, "start it, or check the address"),
    ("--url {other}/wrong", 3, "give the address of an OpenAI-compatible server"),
    ("--url {plain}", 3, "start it with a draft"),
    ("--url {fake} --plain-url {fake}", 3, "give it as --url"),
    ("--url {fake} --plain-url {another}", 3, "compare one model with itself"),
    ("--plain-url {fake}", 3, "give it with --url"),
    ("--url {locked}", 3, "SPECLAB_API_KEY"),
    ("--url {off}", 3, "--disable-log-stats"),
    ("--url {bare}", 3, "add --raw"),
    ("--url {fake} --texts {folder}/none", 3, "give another file"),
    ("--url {fake} --texts {folder}/hello", 3, "begin each with a line"),
    ("--url {fake} --texts {folder}/bytes", 3, "no UTF-8 text"),
    ("--url {fake} --max-new-tokens 3", 2, "give 16 or more"),
    ("--before {folder}/good", 2, "--before, --after"),
    (f"{PAGES}/less", 3, "went back"),
    (f"{PAGES}/cut", 3, "take it whole"),
    (f"{PAGES}/hello", 3, "no counters of vLLM"),
    (f"{PAGES}/good", 3, "take them from the server that speculates"),
    (f"{PAGES}/none", 3, "give another file"),
    ("--acceptance nan -k 4", 2, "from 0 to 1"),
    ("--acceptance 0.35 -k 0", 2, "give 1 or more"),
    ("--acceptance 0.9 -k 4 --plain-ms 21 --spec-ms 2", 2, "in milliseconds per token"),
    ("--acceptance 0.35 -k 4 --plain-ms nan", 2, "too small"),
    ("--url {fake} --load 1,many", 2, "give a list"),
    ("--url {fake} --load 999999", 2, "give 256 or less"),
    ("--acceptance 0.35 -k 4 --load 1", 2, "give --url and --load"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Servers and files."""
    folder = tmp_path_factory.mktemp("places")
    for name, content in FILES.items():
        (folder / name).write_bytes(content.encode("latin-1"))
    made = {name: Simulated() for name in ("plain", "locked", "off", "bare")}
    made |= {"fake": Simulated(rates=(0.5,)), "another": Simulated(model="org/another"), "other": Simulated("other")}
    made["locked"].pages["/v1/models"] = (401, b'{"error": {"message": "Unauthorized"}}')
    made["off"].pages["/metrics"] = (200, b"python_gc_objects 3\n")
    made["bare"].answer = (400, b'{"error": {"message": "you must provide a chat template."}}')  # as vLLM says it
    with contextlib.ExitStack() as stack:
        yield {"folder": folder, **{name: stack.enter_context(server).url for name, server in made.items()}}


@pytest.mark.parametrize(("words", "code", "says"), BAD)
def test_a_bad_input_is_one_line(words, code, says, places, command):
    found, _, err = command(*words.format(**places).split())
    error = [line for line in err.splitlines() if line.startswith("error: ")]
    assert (found, len(error)) == (code, 1), err
    assert says in error[0]


def test_a_key_is_never_shown(places, command, monkeypatch):
    for key, server, expected in (("very secret\tkey", "fake", 2), ("sesame", "locked", 3)):
        monkeypatch.setenv("SPECLAB_API_KEY", key)
        code, out, err = command("--url", places[server])
        assert code == expected
        assert key[:6] not in out + err
