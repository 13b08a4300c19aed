"""What the tests of other engines' servers share: a file that stands for the Python of vLLM's environment."""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from optimized_speculative import speculative_decode
from speclab import load
from speclab.core.rounds import DecodeSettings, tokens_of
from speclab.extensions.servers import client, installed, servers
from speclab.extensions.servers.__main__ import main
from speclab.extensions.servers.server_record import ServingRun
from speclab.extensions.servers.tests.fake_vllm import Fake
from speclab.models import prompts
from speclab.records.files import read

TEXTS = [("code", "def f(x):"), ("prose", "return x + 1"), ("copy", "x + 1, x + 1,")]
N_NEW, K = 12, 2
FAKE = Path(__file__).with_name("fake_vllm.py")


@pytest.fixture(autouse=True)
def idle_at_once(monkeypatch):
    """Do not wait: the fake servers have no workers."""
    monkeypatch.setattr(servers, "IDLE_SECONDS", 0.0)


@pytest.fixture
def fake():
    """A server in this process that speculates."""
    with Fake(speculation={"method": "ngram", "num_speculative_tokens": 2}) as server:
        yield server


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Make a file that stands for the Python of vLLM's environment; call it with a script to change what it does."""
    python, plan = tmp_path / "python", tmp_path / "script.json"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAKE} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv(installed.VARIABLE, str(python))
    monkeypatch.setenv("FAKE_VLLM", str(plan))
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(servers, "DYING_SECONDS", 0.5)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def write(**content):
        plan.write_text(json.dumps(content))
        return plan

    write()
    yield write
    if (tmp_path / "script.json.pids").exists():  # a test that finds a process fails; the process goes all the same
        for pid in filter(is_running, started(tmp_path)):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def honest(pair_folder) -> dict:
    """The script of an engine that does what the lab does. The target drafts for itself, so that tokens are kept."""
    pair = load(str(pair_folder / "target"), str(pair_folder / "target"), engine="eager")
    texts, rounds = {}, {}
    for prompt in prompts.encode(TEXTS, pair.setup.tokenizer):
        target, settings = pair.setup.target.with_own_cache(), DecodeSettings(N_NEW + 2 * K)
        made = list(speculative_decode(target, pair.drafter, prompt.ids, K, settings))
        key = ",".join(map(str, prompt.id_list))
        texts[key] = tokens_of(made)[:N_NEW]
        rounds[key] = [[r.n_drafted, r.n_accepted] for r in made if not r.prefill]
    return {"texts": texts, "rounds": {"draft_model": rounds}}


@pytest.fixture
def run(pair_folder, tmp_path, capsys, monkeypatch, script, honest):
    """The command on the tiny pair; returns (exit code, stdout, stderr, the record or None)."""
    monkeypatch.setattr(prompts, "standard", lambda: TEXTS)
    monkeypatch.setattr(client, "SETTLE_SECONDS", 0.001)
    script(**honest)

    def call(*words, draft="model"):
        draft = draft.replace("model", str(pair_folder / "target"))
        models = ["--target", str(pair_folder / "target"), "--draft", draft, "-k", str(K)]
        size = ["--max-new-tokens", str(N_NEW), "--threads", "1", "--out-dir", str(tmp_path / "out")]
        code = main([*models, *size, "--concurrency", "none", *words])
        path = tmp_path / "out" / "results" / "local-vllm.json"
        return (code, *capsys.readouterr(), read(path, ServingRun) if path.exists() else None)

    return call


def wait_for_processes(tmp_path, n) -> list[int]:
    """Servers, and the children that they fork, write their ids when they are there.  -> all of them"""
    path = tmp_path / "script.json.pids"
    for _ in range(12_000):
        if path.exists() and len(started(tmp_path)) >= n:
            return started(tmp_path)
        time.sleep(0.01)
    raise AssertionError(f"{n} processes were never there")


def started(tmp_path) -> list[int]:
    """The processes of all servers that were started, and those that these have started."""
    return list(map(int, (tmp_path / "script.json.pids").read_text().split()))


def is_running(pid: int) -> bool:
    """A process that has ended, but that nobody has waited for, does not run any more."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()
