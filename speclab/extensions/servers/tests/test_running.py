"""The command against simulated servers: what it finds is what was drawn, and what is wrong is one line."""

import math
import re
import subprocess
import sys

import pytest

from speclab.extensions.servers import counters, measured, running, shapes
from speclab.extensions.servers.ask import asking, engines, inputs
from speclab.extensions.servers.ask.client import Order
from speclab.extensions.servers.tests.simulated import Simulated
from speclab.system.errors import EnvironmentProblem
from speclab.system.paths import ROOT

RATES = (0.8, 0.6, 0.5, 0.4)
PROMPTS = [asking.Prompt(("code", "prose")[i % 2], f"prompt {i}") for i in range(8)]


def asked(fake, plain=None, n=40):
    """Every prompt once; the rounds of the warm-up are forgotten."""
    servers = [engines.find(one.url, None) if one else None for one in (fake, plain)]
    pairs, again, _ = asking.ask_all(*servers, PROMPTS, asking.Asking(n, True, math.inf))
    n_again = sum(one.counted.speculation.n_drafts for one in again)  # What is asked a second time came last.
    n_asked = sum(pair.speculative.counted.speculation.n_drafts for pair in pairs)
    return pairs, fake.rounds[::-1][n_again:][:n_asked]


@pytest.mark.parametrize("engine", ["vllm", "llama"])
def test_what_is_measured_is_what_was_drawn(engine):
    with Simulated(engine, RATES, seed=3) as fake:
        pairs, rounds = asked(fake)
    found, kept = measured.of_pairs(pairs), [n for _, n in rounds]
    assert found.counts.n_drafts == len(rounds)
    assert found.counts.accepted_at == [sum(n > place for n in kept) for place in range(4)]
    assert found.tokens_per_round == pytest.approx(39 * 8 / len(rounds)), "what is kept behind the end makes no text"
    assert found.drafted_fraction == pytest.approx(sum(kept) / sum(n for n, _ in rounds))
    low, high = found.tokens_interval
    assert low < found.tokens_per_round < high
    by_kind = [measured.of_pairs([pair for pair in pairs if pair.kind == kind]) for kind in ("code", "prose")]
    assert sum(one.counts.n_accepted for one in by_kind) == found.counts.n_accepted
    answers = [pair.speculative.answer for pair in measured.undisturbed(pairs)]
    assert found.seconds == pytest.approx(sum(one.decode_seconds for one in answers) / (39 * len(answers)))


def test_rounds_that_draft_nothing_are_rounds(monkeypatch):
    """What is kept behind the end of a text hides at most as many of them."""
    monkeypatch.setattr(asking, "AGAIN", 0)
    with Simulated("vllm", RATES, seed=1, idle=0.5) as fake:
        pairs, _ = asked(fake)
        made, warm_up = 1, 0
        while made < asking.WARM_UP_TOKENS:
            made, warm_up = made + fake.rounds[warm_up][1] + 1, warm_up + 1
        rounds = fake.rounds[warm_up:]
    n_rounds = sum(measured._n_rounds(pair.speculative, 39) for pair in pairs)
    drafting = [kept for drafted, kept in rounds if drafted]
    assert len(drafting) < n_rounds <= len(rounds) <= n_rounds + len(RATES) * len(pairs)
    assert measured.of_pairs(pairs).tokens_per_round == 39 * 8 / n_rounds < 1 + sum(drafting) / len(drafting)


def test_pages_know_of_rounds_that_draft_nothing():
    """vLLM counts its outputs. Elsewhere the first token of a request and what is kept behind its end blur it."""
    with Simulated("vllm", RATES, seed=1, idle=0.5) as fake:
        before = counters.read(fake.metrics())
        for i in range(4):
            fake.chunks(fake.text_of(f"{i}", 40))
        found = counters.between(before, counters.read(fake.metrics()))
        n_rounds, n_drafts = len(fake.rounds), sum(drafted > 0 for drafted, _ in fake.rounds)
    assert n_drafts < n_rounds
    estimated = measured.of_pages(found, None, None, 0)
    assert n_rounds + 4 - 4 * len(RATES) <= estimated.n_rounds <= n_rounds + 4
    exact = measured.of_pages(found._replace(n_outputs=float(n_rounds)), None, None, 0)
    assert exact.tokens_per_round == 1 + found.speculation.n_accepted / n_rounds


def test_llama_server_without_its_page_says_f_and_tokens_of_a_round():
    with Simulated("llama", RATES, seed=3) as fake:
        fake.metrics_on = False
        server = engines.find(fake.url, None)
        found = server.ask(Order("x", 40))
        drafted, kept = sum(n for n, _ in fake.rounds), sum(n for _, n in fake.rounds)
    assert (server.engine, server.has_page) == ("llama-server", False)
    counts = found.counted.speculation
    assert (counts.n_drafted, counts.n_accepted, counts.accepted_at) == (drafted, kept, [])
    assert counts.n_drafts == 39 - kept


def test_another_server_has_times_and_texts_only(command, plain):
    with Simulated("other") as fake, Simulated("other") as other:
        code, out, _ = command("--url", fake.url, "--plain-url", other.url, "--max-new-tokens", 16)
    assert code == 0
    assert "times and texts only" in out
    assert "12 of 12" in out


def forgetful(fake, rates):
    """Answers to a prompt that the server has had before are drafted with other rates."""
    usual, fresh, seen = fake.text_of, fake.rates, set()

    def text_of(prompt, n):
        fake.rates = rates if prompt in seen else fresh
        seen.add(prompt)
        return usual(prompt, n)

    fake.text_of = text_of


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
        assert (shapes.ENDS.name[:30] in out) == named


def test_a_prompt_that_something_held_up_gives_no_time(fake, plain, monkeypatch):
    """Its counts stay; its times, of either server, are left out of the speedup."""
    pairs, _ = asked(fake, plain)
    clean = measured.of_pairs(pairs)

    def held_up(one):
        return one._replace(answer=one.answer._replace(decode_seconds=100 * one.answer.decode_seconds))

    def evened(pair):
        answers = [one._replace(answer=one.answer._replace(decode_seconds=0.5)) for one in pair[2:]]
        return pair._replace(speculative=answers[0], plain=answers[1])

    even = [evened(pair) for pair in pairs]
    for side in ("speculative", "plain"):
        bad = [even[0]._replace(**{side: held_up(getattr(even[0], side))}), *even[1:]]
        found = measured.of_pairs(bad)
        assert found.counts == clean.counts
        assert found.n_disturbed == 1
        assert found.speedup == pytest.approx(measured.of_pairs(even[1:]).speedup)
    assert measured.of_pairs(even).n_disturbed == 0


@pytest.mark.parametrize("rates", [(0.02, 0.6, 0.5, 0.4), (0.8, 0.6, 0.5, 0.4)])
def test_a_second_request_that_is_kept_less_is_named(fake, command, rates):
    forgetful(fake, rates)
    _, out, _ = command("--url", fake.url, "--max-new-tokens", 96)
    assert (shapes.FORGETS.name[:40] in out) == (rates[0] < 0.1)
    assert len(out.splitlines()) <= 25


@pytest.mark.parametrize("rates", [(0.9,) * 12, (0.02, 0.0), (1.0,)])
def test_the_first_screen_has_at_most_25_lines(rates, command):
    with Simulated(rates=rates) as fake, Simulated() as plain:
        _, out, _ = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
    assert len(out.splitlines()) <= 25
    assert max(map(len, out.splitlines())) <= 110
    assert "ANSWER" in out


def test_a_page_may_be_a_moment_late(fake):
    server = engines.find(fake.url, None)
    fake.late = 4
    found = server.ask(Order("x", 40))
    assert fake.late == 0
    assert found.counted.n_generated == 40
    assert found.counted.speculation.n_drafts == len(fake.rounds)


def test_a_page_that_stays_behind_is_one_line(fake):
    server = engines.find(fake.url, None)
    fake.late = 10**6
    with pytest.raises(EnvironmentProblem, match="counts 0 of the 40 tokens"):
        server.ask(Order("x", 40))


def test_one_server_alone_is_told_what_a_plain_token_must_take(fake, command, monkeypatch):
    """The number of the answer is the time of a token that was measured."""
    answers, usual = [], asking.ask_all
    monkeypatch.setattr(running, "ask_all", lambda *given: answers.append(usual(*given)) or answers[-1])
    code, out, _ = command("--url", fake.url, "--max-new-tokens", 40)
    assert code == 0
    said = float(re.search(r"takes more\s+than\s+([\d.]+) ms", out[out.index("ANSWER") :])[1])
    assert said == pytest.approx(1e3 * measured.of_pairs(answers[0][0]).seconds, abs=0.006)
    assert len(out.splitlines()) <= 25


def test_somebody_elses_tokens_are_noticed(fake, command):
    fake.busy = 7
    _, out, _ = command("--url", fake.url, "--max-new-tokens", 16)
    assert "others asked the server meanwhile" in out


def test_what_was_measured_before_a_failure_stays(fake, command):
    """The server goes away after some prompts."""
    usual, count = fake.text_of, iter(range(1000))

    def text_of(prompt, n):
        if next(count) == 5:
            fake.answer = (500, b"out of memory")
        return usual(prompt, n)

    fake.text_of = text_of
    code, out, err = command("--url", fake.url, "--max-new-tokens", 16)
    assert code == 0
    assert "only the first 5 of 12 prompts are counted" in err
    assert "out of memory" in err
    assert "ANSWER" in out


def test_ctrl_c_keeps_the_prompts_that_are_answered(fake, plain, command, monkeypatch):
    """In the sixth prompt: five are counted. In the second one, where too few are there, the command is over."""
    usual, count = engines.Server.ask, iter(range(1000))
    for stopped_at, code, said in ((6, 0, True), (2, 130, False)):  # the warm-up comes first
        count = iter(range(1000))

        def ask(self, order, count=count, stopped_at=stopped_at):
            if self.client.url == fake.url and next(count) == stopped_at:
                raise KeyboardInterrupt
            return usual(self, order)

        monkeypatch.setattr(engines.Server, "ask", ask)
        found, out, err = command("--url", fake.url, "--plain-url", plain.url, "--max-new-tokens", 16)
        assert (found, "ANSWER" in out) == (code, said)
        assert ("only the first 5 of 12 prompts are counted: stopped" in err) == said
        assert f"{5 if said else 0} of 5 greedy texts" in out or not said


def test_the_command_needs_no_torch():
    code = "import sys; from speclab.extensions.servers import __main__ as m, running, written\n"
    code += "m.main(['--acceptance', '0.35', '-k', '4'])\n"
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False, capture_output=True).returncode == 0


def test_the_labs_own_prompts_have_kinds_in_turns():
    prompts = inputs.prompts_of(None)
    assert [one.kind for one in prompts[:3]] == ["code", "question", "copy"]
    assert len(prompts) == 12


def test_servers_that_are_asked_one_after_the_other_have_the_same_speedup(fake, plain, command, monkeypatch):
    """What the plain server's own screen says to give is what it took."""
    answers = []
    usual = asking.ask_all
    monkeypatch.setattr(running, "ask_all", lambda *given: answers.append(usual(*given)) or answers[-1])
    code, out, _ = command("--plain-url", plain.url, "--max-new-tokens", 40)
    assert code == 0
    given_ms = float(out.rpartition("--plain-ms")[2])
    assert given_ms == pytest.approx(1e3 * measured.of_pairs(answers[0][0]).seconds, abs=0.006)
    assert len(plain.asked) >= 12
    code, out, _ = command("--url", fake.url, "--plain-ms", 21.5, "--max-new-tokens", 40)
    assert code == 0
    assert "21.50" in out
    assert "speedup" in out
