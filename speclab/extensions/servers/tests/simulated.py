"""A simulated server on 127.0.0.1, which speaks as vLLM, llama-server or another one and counts its rounds.

Nothing is decoded. Whether a drafted token is kept is drawn from a seeded generator, with a rate for each position of a
draft; the text is made of numbers that follow from the prompt alone. So what a client finds can be held against the
rounds that were drawn.
"""

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAMES = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
PREFIX = {"vllm": "vllm:", "llama": "llamacpp:"}
GENERATED = {"vllm": "generation_tokens", "llama": "tokens_predicted"}


class Simulated(ThreadingHTTPServer):
    """One server. rates: the share of rounds that keep a position once they reach it; none: it does not speculate."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, engine="vllm", rates=(), seed=0, model="org/target", idle=0.0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine, self.rates, self.model, self.idle = engine, rates, model, idle
        self.random, self.lock = random.Random(seed), threading.Lock()
        self.rounds: list[tuple[int, int]] = []  # (drafted, kept) of every round, the prompts' own passes apart
        self.generated, self.running = 0, 0
        self.asked: list[dict] = []
        self.heads: list[dict] = []
        self.answer = None  # what every completion answers instead: (status, bytes)
        self.pages: dict[str, tuple[int, bytes]] = {}  # what pages answer instead
        self.late, self.old = 0, ""  # looks at /metrics that do not see the last request yet, and what they see
        self.text_of = usual_text
        self.top = lambda place, token: {token: -0.1, f"{int(token) + 1} ": -3.0}
        self.drawn = None  # an iterator over rounds that are not drawn but given
        self.busy, self.strangers = 0, []  # tokens of others that are counted with each request of ours; their rounds
        self.pace = lambda text, number: 0.1 + 0.02 * number  # seconds until a round has ended, by the prompt's text
        self.counted = 1.0  # share of the tokens that the usage at the end of an answer counts; 0: there is none
        self.pings = b""  # what is sent before each event
        self.told = False  # the rounds of a request are told with its answer, as vLLM does with a flag

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *stop):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Say nothing of a client that has gone."""

    def one_round(self, left):
        """Draw a round.  -> (drafted, kept)"""
        if self.drawn is not None:
            return next(self.drawn)
        if not self.rates or self.random.random() < self.idle:
            return 0, 0
        drafted = len(self.rates) if self.engine != "llama" else min(len(self.rates), left)
        kept = 0
        while kept < drafted and self.random.random() < self.rates[kept]:
            kept += 1
        return drafted, kept

    def chunks(self, words):
        """Split an answer into what its rounds make."""
        parts, done, rounds = [words[:1]], 1, []
        while done < len(words):
            drafted, kept = self.one_round(len(words) - done)
            rounds.append((drafted, kept))
            parts.append(words[done : done + kept + 1])
            done += kept + 1
        with self.lock:
            self.old = self.metrics() if self.engine in PREFIX else ""
            self.rounds += rounds
            self.strangers += rounds * (self.busy // 10)
            self.generated += len(words) + self.busy
        return parts, rounds

    def metrics(self):
        """The page."""
        prefix = PREFIX[self.engine]
        label = '{engine="0",model_name="target"}' if self.engine == "vllm" else ""
        lines = [f"# TYPE {prefix}{GENERATED[self.engine]}_total counter"]
        lines.append(f"{prefix}{GENERATED[self.engine]}_total{label} {self.generated}")
        lines.append(f"process_open_fds 34.0\n{prefix}num_requests_waiting_by_reason{label} {1 / (1 + self.generated)}")
        name = {"vllm": "num_requests_running", "llama": "requests_processing"}
        lines.append(f"{prefix}{name[self.engine]}{label} {self.running}")
        drafting = [one for one in self.rounds + self.strangers if one[0]]
        if self.rates:
            counts = len(drafting), sum(n for n, _ in drafting), sum(kept for _, kept in drafting)
            for name, value in zip(NAMES, counts, strict=True):
                lines.append(f"# TYPE {prefix}spec_decode_{name}_total counter")
                lines.append(f"{prefix}spec_decode_{name}_total{label} {value}")
            for place in range(len(self.rates) if drafting or self.engine == "vllm" else 0):
                labels = label[:-1] + "," if label else "{"
                value = sum(kept > place for _, kept in drafting)
                lines.append(
                    f'{prefix}spec_decode_num_accepted_tokens_per_pos_total{labels}position="{place}"}} {value}'
                )
        return "\n".join(lines) + "\n"

    def page(self, path):
        """A page.  -> status, bytes"""
        if path in self.pages:
            return self.pages[path]
        if path == "/metrics" and self.engine in PREFIX:
            with self.lock:
                if self.late and self.old:
                    self.late -= 1
                    return 200, self.old.encode()
                return 200, self.metrics().encode()
        found = {
            "/v1/models": {"object": "list", "data": [{"id": self.model, "root": self.model, "owned_by": self.engine}]},
            "/version": {"version": "0.32.0"} if self.engine == "vllm" else None,
            "/props": {"build_info": "b1", "model_path": f"/m/{self.model}"} if self.engine == "llama" else None,
        }.get(path)
        return (200, json.dumps(found).encode()) if found else (404, b'{"error": {"message": "no such page"}}')


def usual_text(prompt, n):
    """Return n tokens that depend on the prompt alone."""
    start = sum(map(ord, prompt))
    return [f"{start + place} " for place in range(n)]


class Handler(BaseHTTPRequestHandler):
    """Speaks for a Simulated."""

    server: Simulated
    protocol_version = "HTTP/1.1"

    def log_message(self, format, *words):
        """Write nothing."""

    def whole(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def event(self, what):
        self.part(b"data: " + json.dumps(what).encode() + b"\n\n")

    def part(self, data):
        if not data:
            return
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        self.server.heads.append(dict(self.headers))
        self.whole(*self.server.page(self.path))

    def do_POST(self):
        fake, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake.asked.append(body)
        if fake.answer or body["model"] not in ("", fake.model):
            self.whole(*fake.answer or (404, b'{"error": {"message": "The model does not exist."}}'))
            return
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else str(body["prompt"])
        words = fake.text_of(prompt, body["max_tokens"])
        if not body.get("stream"):
            steps = [{"token": word, "logprob": fake.top(place, word)[word], "top_logprobs": [
                {"token": token, "logprob": value} for token, value in fake.top(place, word).items()]}
                for place, word in enumerate(words)]  # fmt: skip
            self.whole(200, json.dumps({"choices": [{"logprobs": {"content": steps}}]}).encode())
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        parts, rounds = fake.chunks(words)
        for number, part in enumerate(parts):
            said = {"delta": {"content": "".join(part)}} if chat else {"text": "".join(part)}
            if body.get("return_token_ids"):
                said["token_ids"] = list(map(int, part))
            self.part(fake.pings)
            self.event({"at": fake.pace(prompt, number), "choices": [{"index": 0, **said}]})
        at = fake.pace(prompt, len(parts) - 1)
        self.event({"at": at, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        end = {"choices": [], "usage": {"completion_tokens": int(len(words) * fake.counted)}}
        if fake.told:
            drafting = [one for one in rounds if one[0]]
            steps = {"per_step_drafted": [n for n, _ in drafting], "per_step_accepted": [kept for _, kept in drafting]}
            summary = {"num_spec_steps": len(drafting), "num_spec_tokens": len(fake.rates)}
            end["metrics"] = {"speculative_decoding": {**summary, **steps} if fake.rates else None}
        self.event(end)
        self.part(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
