"""The command against simulated servers: what it finds is what was drawn, and the answer is the first thing printed."""

import math
import re
import subprocess
import sys

import pytest

from speclab.extensions.servers import client, counters, diagnose
from speclab.extensions.servers.client import Order
from speclab.extensions.servers.tests.simulated import Simulated
from speclab.system.errors import EnvironmentProblem
from speclab.system.paths import ROOT

RATES = (0.8, 0.6, 0.5, 0.4)
PROMPTS = [client.Prompt(("code", "prose")[i % 2], f"prompt {i}") for i in range(8)]


def asked(fake, plain=None, n=40):
    """Every prompt once; the rounds of the warm-up are forgotten."""
    servers = [client.find(one.url) if one else None for one in (fake, plain)]
    pairs, again, _ = client.ask_all(*servers, PROMPTS, n, True, math.inf)
    n_again = sum(one.counts.n_drafts for one in again)  # What is asked a second time came last.
    n_asked = sum(pair.speculative.counts.n_drafts for pair in pairs)
    return pairs, fake.rounds[::-1][n_again:][:n_asked]


@pytest.mark.parametrize("engine", ["vllm", "llama"])
def test_what_is_measured_is_what_was_drawn(engine):
    with Simulated(engine, RATES, seed=3) as fake:
        pairs, rounds = asked(fake)
    found, kept = diagnose.of_pairs(pairs), [n for _, n in rounds]
    assert found.counts.n_drafts == len(rounds)
    assert found.counts.accepted_at == [sum(n > place for n in kept) for place in range(4)]
    assert found.tokens_per_round == pytest.approx(39 * 8 / len(rounds)), "what is kept behind the end makes no text"
    assert found.drafted_fraction == pytest.approx(sum(kept) / sum(n for n, _ in rounds))
    low, high = found.tokens_interval
    assert low < found.tokens_per_round < high
    by_kind = [diagnose.of_pairs([pair for pair in pairs if pair.kind == kind]) for kind in ("code", "prose")]
    assert sum(one.counts.n_accepted for one in by_kind) == found.counts.n_accepted
    answers = [pair.speculative.answer for pair in diagnose.undisturbed(pairs)]
    assert found.seconds == pytest.approx(sum(one.decode_seconds for one in answers) / (39 * len(answers)))


def test_rounds_that_draft_nothing_are_rounds(monkeypatch):
    """What is kept behind the end of a text hides at most as many of them."""
    monkeypatch.setattr(client, "AGAIN", 0)
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


def test_pages_know_of_rounds_that_draft_nothing():
    """vLLM counts its outputs. Elsewhere the first token of a request and what is kept behind its end blur it."""
    with Simulated("vllm", RATES, seed=1, idle=0.5) as fake:
        before = counters.read(fake.metrics())
        for i in range(4):
            fake.chunks(fake.text_of(f"{i}", 40))
        found = counters.between(before, counters.read(fake.metrics()))
        n_rounds, n_drafts = len(fake.rounds), sum(drafted > 0 for drafted, _ in fake.rounds)
    assert n_drafts < n_rounds
    estimated = diagnose.of_pages(found, None, None, 0)
    assert n_rounds + 4 - 4 * len(RATES) <= estimated.n_rounds <= n_rounds + 4
    exact = diagnose.of_pages(found._replace(n_outputs=float(n_rounds)), None, None, 0)
    assert exact.tokens_per_round == 1 + found.speculation.n_accepted / n_rounds


def test_llama_server_without_its_page_says_f_and_tokens_of_a_round():
    with Simulated("llama", RATES, seed=3) as fake:
        fake.metrics_on = False
        server = client.find(fake.url)
        counts = server.ask(Order("x", 40)).counts
        drafted, kept = sum(n for n, _ in fake.rounds), sum(n for _, n in fake.rounds)
    assert (server.engine, server.has_page) == ("llama-server", False)
    assert (counts.n_drafted, counts.n_accepted, counts.accepted_at) == (drafted, kept, [])
    assert counts.n_drafts == 39 - kept


def test_long_texts_that_are_kept_less_are_named(fake, command, tmp_path):
    """The draft's window ends: the same prompt, and a long one."""
    usual = fake.text_of

    def text_of(prompt, n):
        fake.rates = (0.1, 0.1, 0.1) if len(prompt) > 300 else (0.8, 0.6, 0.5)
        return usual(prompt, n)

    fake.text_of = text_of
    for length, named in ((2000, True), (10, False)):
        prompts = [f"%% text\n{number} {'x' * (length if number % 2 else 10)}" for number in range(9)]
        (tmp_path / "texts").write_text("\n".join(prompts))
        _, out, _ = command("--url", fake.url, "--texts", tmp_path / "texts")
        assert (diagnose.ENDS.name[:30] in out) == named


def test_a_prompt_that_something_held_up_gives_no_time(fake, plain):
    """Its counts stay; its times, of either server, are left out of the speedup."""
    pairs, _ = asked(fake, plain)

    def timed(one, seconds):
        return one._replace(answer=one.answer._replace(decode_seconds=seconds))

    even = [pair._replace(speculative=timed(pair.speculative, 0.5), plain=timed(pair.plain, 0.5)) for pair in pairs]
    for side in ("speculative", "plain"):
        found = diagnose.of_pairs([even[0]._replace(**{side: timed(getattr(even[0], side), 50.0)}), *even[1:]])
        assert found.counts == diagnose.of_pairs(pairs).counts
        assert found.n_disturbed == 1
        assert found.speedup == pytest.approx(diagnose.of_pairs(even[1:]).speedup)
    assert diagnose.of_pairs(even).n_disturbed == 0


@pytest.mark.parametrize("again", [(0.02, 0.6, 0.5, 0.4), RATES])
def test_a_second_request_that_is_kept_less_is_named(fake, command, again):
    """Answers to a prompt that the server has had before are drafted with other rates."""
    usual, seen = fake.text_of, set()

    def text_of(prompt, n):
        fake.rates = again if prompt in seen else RATES
        seen.add(prompt)
        return usual(prompt, n)

    fake.text_of = text_of
    _, out, _ = command("--url", fake.url, "--max-new-tokens", 96)
    assert (diagnose.FORGETS.name[:40] in out) == (again[0] < 0.1)


@pytest.mark.parametrize("rates", [(0.9,) * 12, (0.02, 0.0), (1.0,)])
def test_the_first_screen_has_at_most_25_lines_and_begins_with_the_answer(rates, command):
    with Simulated(rates=rates) as fake, Simulated() as plain:
        _, out, _ = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
    assert out.startswith("ANSWER")
    assert len(out.splitlines()) <= 25
    assert max(map(len, out.splitlines())) <= 110


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
    for flag, server, words in (
        ("--url", fake, r"takes more than ([\d.]+) ms"),
        ("--plain-url", plain, r"ms ([\d.]+)"),
    ):
        code, out, _ = command(flag, server.url, "--max-new-tokens", 40)
        measured = 1e3 * diagnose.of_pairs(answers[-1][0]).seconds
        assert code == 0
        assert out.startswith("ANSWER")
        assert float(re.search(words, " ".join(out.split()))[1]) == pytest.approx(measured, abs=0.006)
    code, out, _ = command("--url", fake.url, "--plain-ms", 21.5, "--max-new-tokens", 40)
    assert (code, "21.50" in out, "speedup" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--acceptance 0.35 -k 4 --plain-ms 21.0 --spec-ms 21.4", "ANSWER    a round costs too much"),
        ("--acceptance 0.35 -k 4 --plain-ms 21.0 --spec-ms 11.0", "ANSWER    nothing is wrong"),
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
    assert (code, out.startswith("ANSWER")) == (0, True), err
    assert says in " ".join(out.split()) or says in out


@pytest.mark.parametrize(
    ("problem", "at", "code"),
    [
        (EnvironmentProblem("out of memory"), 6, 0),
        (EnvironmentProblem("out of memory"), 2, 3),
        (KeyboardInterrupt(), 6, 0),
        (KeyboardInterrupt(), 2, 130),  # too few are there: the command is over
    ],
)
def test_what_was_measured_before_the_end_stays(fake, plain, command, monkeypatch, problem, at, code):
    """In the sixth prompt: five are counted. The warm-up comes first."""
    usual, count = client.Server.ask, iter(range(1000))

    def ask(self, order):
        if self.url == fake.url and next(count) == at:
            raise problem
        return usual(self, order)

    monkeypatch.setattr(client.Server, "ask", ask)
    found, out, err = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
    assert (found, "ANSWER" in out) == (code, at == 6)
    assert (f"only the first 5 of 12 prompts are counted: {str(problem) or 'stopped'}" in err) == (at == 6)
    assert "of 5 greedy texts" in out or at < 6


def test_the_command_needs_no_torch():
    code = "import sys; from speclab.extensions.servers import __main__ as m\n"
    code += "m.main(['--acceptance', '0.35', '-k', '4'])\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True).returncode == 0


def test_the_labs_own_prompts_have_kinds_in_turns():
    prompts = client.prompts_of(None)
    assert [one.kind for one in prompts[:3]] == ["code", "question", "copy"]
    assert len(prompts) == 12
