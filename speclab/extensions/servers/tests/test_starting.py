"""The lab's pair on servers of other engines: files that say what the folder says, processes that end."""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import pytest

from speclab.extensions.servers import start, written_gguf
from speclab.models import loading
from speclab.system.errors import EnvironmentProblem

K, PORT = 4, 18090


def test_a_server_that_does_not_start_is_one_line_and_leaves_nothing():
    command = [sys.executable, "-c", "print('one'); print('no such model')"]
    with pytest.raises(EnvironmentProblem, match="no such model"), start.started([command], PORT):
        pass
    with pytest.raises(EnvironmentProblem, match="cannot be run"), start.started([["/no/such/program"]], PORT):
        pass


def test_no_server_is_started_on_a_port_where_another_one_listens(fake):
    port = int(fake.url.rpartition(":")[2])
    with pytest.raises(EnvironmentProblem, match=str(port)), start.started([["/no/such/program"]], port):
        pass


def test_servers_end_with_their_block(tmp_path):
    """And with them what they have started, also where another one of them does not start."""
    program = "import http.server as h, sys, json\nclass H(h.BaseHTTPRequestHandler):\n def do_GET(self):\n"
    program += "  d=json.dumps({'data': [1]}).encode(); self.send_response(200)\n"
    program += "  self.send_header('Content-Length', str(len(d))); self.end_headers(); self.wfile.write(d)\n"
    program += "child = __import__('subprocess').Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    program += f"open(r'{tmp_path}/pid' + sys.argv[-1], 'w').write(str(child.pid))\n"
    program += "h.HTTPServer(('127.0.0.1', int(sys.argv[-1])), H).serve_forever()"
    command = [sys.executable, "-c", program]
    with start.started([command, command], PORT) as urls:
        numbers = [int((tmp_path / f"pid{PORT + place}").read_text()) for place in range(2)]
        for number in numbers:
            os.kill(number, 0)
        assert [url.rpartition(":")[2] for url in urls] == [str(PORT), str(PORT + 1)]
    assert all(map(gone, numbers))
    ends = [sys.executable, "-c", "import time; time.sleep(2); print('no such draft')"]
    with pytest.raises(EnvironmentProblem, match="no such draft"), start.started([command, ends], PORT):
        pass
    assert gone(int((tmp_path / f"pid{PORT}").read_text()))


def gone(number):
    """Tell whether a process has ended, within some seconds. One that nobody has waited for is gone, too."""
    for _ in range(100):
        try:
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("models", [None, ["one", "two"], ["one", "ngram"], [str(loading.LAB_PAIR / "target"), "two"]])
@pytest.mark.parametrize("engine", ["llama", "vllm"])
def test_both_commands_serve_one_target_and_one_of_them_drafts(engine, models, tmp_path, monkeypatch):
    monkeypatch.setattr(written_gguf, "write_model", lambda model, tokenizer, path: path)
    monkeypatch.setattr(loading, "place_of", lambda name: name)
    facts = {"draft_length": 3, "port": 8000, "slots": 5, "models": models}
    first, second = start.commands(argparse.Namespace(engine=engine, program=sys.executable, **facts), tmp_path)
    assert first[: len(second)] == second, "the draft is the one thing that differs"
    assert "3" in " ".join(first[len(second) :])
    assert (engine == "vllm") == ("--per-request-spec-decode-metrics detailed" in " ".join(first)), "rounds are told"
    target, draft = models or ("target", "draft")
    assert any(Path(word).stem == Path(target).name for word in second)
    assert draft in " ".join(first[len(second) :])
    assert draft not in " ".join(second)
    with pytest.raises(EnvironmentProblem, match="/no/such/program"):
        start.commands(argparse.Namespace(engine=engine, program="/no/such/program", **facts), tmp_path)


@pytest.mark.parametrize(("draft", "word"), [("draft", "draft_model"), ("feature", "eagle3"), ("ngram", "ngram")])
def test_vllm_gets_the_word_for_each_kind_of_draft_and_the_name_that_was_typed(draft, word, monkeypatch):
    """A head says in its own file what it is. A converted file lies in a folder whose name says nothing."""
    monkeypatch.setattr(loading, "place_of", lambda name: f"/cache/{'0f' * 20}")
    place = draft if draft == "ngram" else str(loading.LAB_PAIR / draft)
    first, second = start._vllm("python", "some.gguf", place, K)
    said = json.loads(first[-1])
    assert (said["method"], said["num_speculative_tokens"]) == (word, K)
    assert said.get("model") == (None if draft == "ngram" else place)
    assert "some.gguf" in second
