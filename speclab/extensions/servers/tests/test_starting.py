"""Servers of other engines: both get one target, processes end, and llama-server makes the lab's rounds."""

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from optimized_speculative import speculative_decode
from speclab.core.rounds import DecodeSettings
from speclab.drafts import registry
from speclab.extensions.servers import client, referee, start, written_gguf
from speclab.extensions.servers.client import Order
from speclab.extensions.servers.counters import of_rounds
from speclab.models import loading, prompts
from speclab.models.setup import load_setup
from speclab.system.errors import EnvironmentProblem

LLAMA_SERVER = os.environ.get("SPECLAB_LLAMA_SERVER", "")  # the program, where it is there
K, N_TOKENS = 3, 40
PORT = 20000 + 2 * (os.getpid() % 5000)  # and the next one: tests run beside others
PYTHON = [sys.executable, "-c"]
ENDS = [*PYTHON, "import time; print('one'); time.sleep(1); print('no such draft')"]
LISTENS = "import runpy, signal; signal.alarm(20); runpy.run_module('http.server', run_name='__main__')"
SERVES = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:4], sys.argv[-1]])"


def words(engine, models=None, program=sys.executable):
    return argparse.Namespace(engine=engine, models=models, program=program, draft_length=K, slots=5)


def test_servers_end_with_their_block_and_with_them_what_they_have_started(tmp_path):
    """Also where another one of them does not start, which is one line. It is a child here that listens."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "models").write_text('{"data": [1]}')
    (tmp_path / "health").touch()
    command = [*PYTHON, SERVES, LISTENS, f"-d{tmp_path}", "-b127.0.0.1"]
    with start.started([command, command], PORT) as running:
        assert [one.url for one in running] == [f"http://127.0.0.1:{PORT + place}" for place in range(2)]
        running[0].check()
        os.killpg(running[1].process.pid, signal.SIGKILL)
        running[1].process.wait()
        with pytest.raises(EnvironmentProblem, match=f"{PORT + 1} has ended"):
            running[1].check()
        with pytest.raises(EnvironmentProblem, match=f"port {PORT} cannot be taken"):
            start.started([ENDS], PORT).__enter__()
    assert all(map(is_free, (PORT, PORT + 1)))
    with pytest.raises(EnvironmentProblem, match=f"{PORT + 1} .*wrote last: no such draft"):
        start.started([command, ENDS], PORT).__enter__()
    assert is_free(PORT)


@pytest.mark.parametrize(("handler", "code"), [(lambda *_: None, 130), (signal.SIG_IGN, 3)])
def test_servers_end_with_their_terminal_unless_nohup_starts_them(handler, code, monkeypatch):
    usual = signal.signal(signal.SIGHUP, handler)
    monkeypatch.setattr(start, "commands", lambda *_: signal.raise_signal(signal.SIGHUP) or [["/no/such"]])
    assert start.main(["vllm", "--port", str(PORT)]) == code
    signal.signal(signal.SIGHUP, usual)


def is_free(port):
    for _ in range(100):
        with contextlib.suppress(EnvironmentProblem):
            start._check_free(port)
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("models", [None, ["one", "two"], ["one", "ngram"], [str(loading.LAB_PAIR / "target"), "two"]])
@pytest.mark.parametrize("engine", ["llama", "vllm"])
def test_both_commands_serve_one_target_and_one_of_them_drafts(engine, models, tmp_path, monkeypatch):
    monkeypatch.setattr(written_gguf, "convert", lambda name, path: path)
    monkeypatch.setattr(loading, "place_of", lambda name: f"/cache/0f0f/{name}")  # of a conversion: it says nothing
    first, second = start.commands(words(engine, models), tmp_path)
    assert first[: len(second)] == second, "the draft is the one thing that differs"
    added = " ".join(first[len(second) :])
    assert str(K) in added
    assert (engine == "vllm") == ("--per-request-spec-decode-metrics detailed" in added), "rounds are told"
    target, draft = models or [str(loading.LAB_PAIR / name) for name in ("target", "draft")]
    assert {"127.0.0.1", Path(target).name} <= {*second, *(Path(word).stem for word in second)}, "to this machine alone"
    assert engine == "llama" or target in second, "its name is the one that was typed"
    assert Path(draft).name in added
    assert Path(draft).name not in " ".join(second)
    with pytest.raises(EnvironmentProblem, match=r"/no/such/program is not there; .*(llama|vLLM)"):
        start.commands(words(engine, program="/no/such/program"), tmp_path)


@pytest.mark.parametrize(("draft", "word"), [("draft", "draft_model"), ("feature", "eagle3"), ("ngram", "ngram")])
def test_vllm_gets_the_word_for_each_kind_of_draft(draft, word):
    """A head says in its own file what it is."""
    place = draft if draft == "ngram" else str(loading.LAB_PAIR / draft)
    said = json.loads(start._vllm("some/model", place, K)[1][-1])
    assert (said["method"], said["num_speculative_tokens"]) == (word, K)
    assert said.get("model") == (None if draft == "ngram" else place)


@pytest.mark.skipif(not Path(LLAMA_SERVER).is_file(), reason="SPECLAB_LLAMA_SERVER names no llama-server")
def test_llama_server_makes_the_rounds_of_the_labs_loop(tmp_path):
    """Text, rounds, drafted and accepted tokens by position, prompt by prompt, in two engines that share no code. No
    draft is longer than what is left of the text, in llama-server as in the lab."""
    setup = load_setup(loading.LAB_TARGET, threads=1, engine="eager")
    draft = registry.make("model", setup, 0)
    with start.started(start.commands(words("llama", program=LLAMA_SERVER), tmp_path), PORT) as (speculates, _):
        server = client.find(speculates.url)
        for prompt in prompts.first_of_each_kind(prompts.encode(prompts.standard(), setup.tokenizer), 1):
            target, settings = setup.target.with_own_cache(), DecodeSettings(N_TOKENS)
            own = referee.own_rounds(list(speculative_decode(target, draft, prompt.ids, K, settings)), N_TOKENS)
            found = server.ask(Order(prompt.text, N_TOKENS, chat=False))
            assert (found.text, found.counts) == (setup.tokenizer.decode(own.tokens), of_rounds(own.rounds, K))
