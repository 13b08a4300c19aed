"""Servers as processes: started, waited for, and gone afterwards, whatever happened."""

import os
import signal

import pytest

from speclab.core.sampling import GREEDY
from speclab.extensions.servers import servers
from speclab.extensions.servers.client import Order
from speclab.extensions.servers.installed import ServerSettings, find
from speclab.extensions.servers.servers import ServerProblem, last_meaningful_line, log_folder, running
from speclab.extensions.servers.tests.conftest import is_running, started, wait_for_processes
from speclab.extensions.servers.tests.fake_vllm import Fake
from speclab.system.errors import Stopped

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
ORDER = Order([5, 6], 9, GREEDY)
SPEC = {"method": "ngram", "num_speculative_tokens": 2}


def start(logs, speculation=None):
    settings = ServerSettings("models/target", "cpu", "float32", 128, 1)
    return running("ngram k=2", find(), "models/target", settings.words(speculation), settings.environment(), logs)


def test_a_server_answers_and_is_gone_afterwards_with_all_that_it_started(script, tmp_path):
    script(child=True)
    with log_folder() as logs:
        with start(logs, SPEC) as server:
            assert server.client.look().speculation is not None
            assert server.start_seconds >= 0
            pids = wait_for_processes(tmp_path, 2)
            assert all(map(is_running, pids))
        assert not any(map(is_running, pids))
        assert logs.folder.exists()
    assert not logs.folder.exists(), "logs are kept where a server has failed"


def test_what_it_started_is_waited_for(script, tmp_path, monkeypatch):
    """SIGKILL takes a moment: the group is looked at until nothing of it is there."""
    script(child=True)
    signals, there = [], [True, True, False]
    real = servers._signal

    def signalled(process, number):
        real(process, number or signal.SIGKILL)
        signals.append(number)
        return there.pop(0) if number == 0 else True

    with log_folder() as logs, start(logs):
        wait_for_processes(tmp_path, 2)
        monkeypatch.setattr(servers, "_signal", signalled)
    assert signals == [signal.SIGTERM, signal.SIGKILL, 0, 0, 0]


def test_every_server_has_a_name_that_only_it_knows(script):
    with log_folder() as logs, start(logs) as one, start(logs) as other:
        names = one.client.served_model().name, other.client.served_model().name
    assert names[0] != names[1]
    assert all(len(name) > 16 for name in names)


def test_who_answers_on_the_port_of_a_dead_server_is_another_one(script, monkeypatch):
    """Its port is that of a server which runs already; it ends, and the other one says that it is healthy."""
    with Fake() as other:
        monkeypatch.setattr(servers, "free_port", lambda: other.server_address[1])
        said = "ended with exit code 1|did not get its port"
        with pytest.raises(ServerProblem, match=said), log_folder() as logs, start(logs):
            raise AssertionError


def test_who_answers_before_the_server_does_is_another_one(script, tmp_path, monkeypatch):
    """The server itself is never healthy there: it cannot listen, and has not noticed yet."""
    with Fake() as other:
        places = iter([other.server_address[1], servers.free_port()])
        monkeypatch.setattr(servers, "free_port", lambda: next(places))
        monkeypatch.setattr(servers.Server, "ended", lambda server: None)
        with log_folder() as logs, start(logs) as server:
            assert server.client.url != other.url
            assert server.client.served_model().name == server.client.model
    assert not any(map(is_running, started(tmp_path)))


def test_a_taken_port_is_tried_once_more_elsewhere(script, tmp_path):
    script(taken=1)
    with log_folder() as logs, start(logs) as server:
        assert server.client.healthy()
        assert len(started(tmp_path)) == 2
    script(taken=9)
    said = "ended with exit code 1; its log ends with: OSError: .* in use"
    with pytest.raises(ServerProblem, match=said) as caught, log_folder() as logs, start(logs):
        raise AssertionError
    assert not caught.value.refused, "that is no matter of settings"
    assert len(started(tmp_path)) == 4
    assert not any(map(is_running, started(tmp_path)))


@pytest.mark.parametrize("error", [RuntimeError, Stopped(signal.SIGTERM)])
def test_nothing_is_left_running_after_an_error(script, tmp_path, error):
    script(child=True)

    def fail():
        wait_for_processes(tmp_path, 2)
        raise error

    with pytest.raises((RuntimeError, KeyboardInterrupt)), log_folder() as logs, start(logs):
        fail()
    assert not any(map(is_running, started(tmp_path)))
    assert not logs.folder.exists()


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
    assert not caught.value.refused
    assert not any(map(is_running, started(tmp_path)))
    assert folder.folder.exists()


def test_a_server_that_refuses_says_why(script, tmp_path):
    script(refuse={"ngram": "ValueError: Model Runner V1 does not support: /srv/models/dspark"})
    said = "ended with exit code 1; its log ends with: ValueError: Model Runner"
    with pytest.raises(ServerProblem, match=said) as caught, log_folder() as folder, start(folder, SPEC):
        raise AssertionError
    assert caught.value.refused
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
    assert len(list(folder.folder.glob("*.log"))) == 1


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
    assert not caught.value.refused


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization",
        "ValueError: To serve at least one request, 9 GiB KV cache is needed, more than the available memory",
        "OSError: We couldn't connect to 'https://hub.example' to load the files",
        "requests.exceptions.ConnectionError: Max retries exceeded",
        "RuntimeError: Engine process failed to start",
        "loading weights",
    ],
)
def test_what_is_no_matter_of_settings_is_a_failure(script, line):
    """It ends the run, for the next arm would meet it, too; and nobody is told that vLLM cannot do it."""
    script(refuse={"ngram": line})
    said = "ended with exit code 1; its log ends with"
    with pytest.raises(ServerProblem, match=said) as caught, log_folder() as logs, start(logs, SPEC):
        raise AssertionError
    assert not caught.value.refused
    assert "ended with exit code 1" in caught.value.reason


@pytest.mark.parametrize(
    "line",
    [
        "Value error, Model Runner V1 does not support: dspark speculative decoding",
        "ValueError: num_speculative_tokens must be divisible by n_predict",
        "NotImplementedError: not with this method",
        "ImportError: Arctic Inference is required for suffix decoding.",
        "api_server.py: error: unrecognized arguments: --no-such-flag",
    ],
)
def test_settings_that_are_not_taken_are_a_refusal_whose_log_is_kept(script, line):
    script(refuse={"ngram": line})
    with log_folder() as logs:
        with pytest.raises(ServerProblem) as caught, start(logs, SPEC):
            raise AssertionError
        assert caught.value.refused
        assert caught.value.reason == line
    assert line in caught.value.log.read_text()


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
